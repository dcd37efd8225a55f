"""The graphs of a model, built once per shape and reused with other inputs."""

from __future__ import annotations

import logging
import math
from collections import OrderedDict
from collections.abc import Callable, Hashable, Mapping, Sequence
from concurrent.futures import Future, wait
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from tampu.errors import TampuError
from tampu.kvcache import Cache
from tampu.ml import Backend
from tampu.ml.backend import Computed
from tampu.ml.device_states import DeviceStates
from tampu.ml.device_tokens import DeviceTokens
from tampu.nn import MediaItem, Model
from tampu.nn.lora import AdapterStacks, Pair
from tampu.nn.points import ATTENTIONS, Point
from tampu.runner.capture import SeenShape
from tampu.runner.context_shift import shift_keys
from tampu.runner.encoder_cache import PartialEmbedding
from tampu.runner.graph_builder import DATA_TYPES, Data, Graph, GraphBuilder
from tampu.runner.graph_shape import GraphShape
from tampu.runner.step_inputs import StepInputs

log = logging.getLogger("tampu.runner")

_MAX_GRAPHS = 32
_TICK_S = 1.0
_BEST = 16  # tensors for the best tokens of a part of a graph, and their inputs
_MAX_ENCODERS = 2  # each for one size of images or sounds, or one chunk


class WarmUpBatch(NamedTuple):
    """A batch that is computed while a model is loaded.

    Attributes:
        tokens: how many.
        candidates: how many of the best logits it returns; 0: all logits.
        is_full: whether attention reads the whole cache, not as little as possible.
        words: its tokens are the first so many words of the vocabulary in turns, so that they
            choose different experts.
    """

    tokens: int
    candidates: int = 0
    is_full: bool = False
    words: int = 1


@dataclass(frozen=True, slots=True)
class PreparedGraph:
    """A graph with the data for one step.

    Attributes:
        is_new: whether the graph was built for it, not reused.
    """

    graph: Graph
    data: list[Data]
    is_new: bool

    @property
    def is_complete(self) -> bool:
        """Whether its result is final, or the input of an encoder's next chunk."""
        return self.graph.is_complete


@dataclass(slots=True)
class GraphCounts:
    """How many graphs were built, reused and evicted."""

    built: int = 0
    reused: int = 0
    evicted: int = 0


class _LRUGraphs:
    """Graphs by key; the least recently used of more than `limit` are evicted."""

    def __init__(self, limit: int, counts: GraphCounts) -> None:
        self._limit = max(limit, 2)  # one may be computing while one is planned
        self._counts = counts
        self._graphs: OrderedDict[Hashable, Graph] = OrderedDict()

    def __len__(self) -> int:
        return len(self._graphs)

    def get(self, key: Hashable, build: Callable[[], Graph]) -> Graph:
        """Return the graph of a key, built if there is none."""
        if key in self._graphs:
            self._counts.reused += 1
            self._graphs.move_to_end(key)
            return self._graphs[key]
        self._counts.built += 1
        graph = self._graphs[key] = build()
        while len(self._graphs) > self._limit:
            self._graphs.popitem(last=False)[1].context.close()
            self._counts.evicted += 1
        return graph

    def clear(self) -> None:
        """Free all graphs."""
        while self._graphs:
            self._graphs.popitem()[1].context.close()


class GraphCache:
    """Builds and keeps the model's graphs, computes steps with them, and counts both (`counts`).

    Attributes:
        backend: computes them.
        model: whose graphs they are.
        keeps_tokens: whether a step with one candidate per output leaves them on the device for the
            next.
    """

    def __init__(
        self,
        backend: Backend,
        model: Model,
        cache: Cache,
        *,
        reuse: bool = True,
        device_tokens: DeviceTokens | None = None,
        device_states: DeviceStates | None = None,
    ) -> None:
        self.backend = backend
        self.model = model
        self.counts = GraphCounts()
        self.keeps_tokens = device_tokens is not None
        self._cache = cache
        self._builder = GraphBuilder(backend, model, cache, device_tokens, device_states)
        self._decoders = _LRUGraphs(_MAX_GRAPHS if reuse else 0, self.counts)
        self._encoders = _LRUGraphs(_MAX_ENCODERS, self.counts)
        self._reserved = 0
        self._largest = 0  # tensors of a graph
        self._reservation = (0, 0, (0, 0))
        self._widths: Mapping[Point, int] | None = None
        self._stacks = AdapterStacks(model, [], backend, self._builder.adapters)

    @property
    def largest_group(self) -> int:
        """The maximum number of tokens that must share a batch: of an image or a whole text."""
        held = [encoder.largest().placeholders.groups for encoder in self.model.encoders]
        lengths = [length for groups in held for _, length in groups]
        return max([*lengths, self.max_bidirectional_tokens or 0])

    @property
    def max_bidirectional_tokens(self) -> int | None:
        """The maximum text length of a bidirectional model; None for causal models."""
        return self.model.max_bidirectional_tokens

    @property
    def positions_per_token(self) -> int:
        """The number of coordinates of a token's position."""
        return self.model.positions_per_token

    @property
    def can_shift_keys(self) -> bool:
        """Whether keys in the cache can be moved to other positions; rounded, they differ then."""
        has_shift = type(self.model).shift is not Model.shift
        return has_shift and not self.backend.is_deterministic

    @property
    def max_following(self) -> int:
        """How many `NextTokens` of a step surely fit into its graph."""
        most = self.backend.max_nodes // (self._largest + _BEST) if self._largest else 1
        return max(most - 1, 0)

    def find_points(self) -> Mapping[Point, int]:
        """Return the points at which texts can be captured, and the features of each.

        Those of attention weights are the heads.
        """
        if self._widths is None:
            views = next(self._cache.views_by_fill(1))
            every = tuple(
                Point(name, n) for name, of in self._builder.points.layers.items() for n in of
            )
            shape = GraphShape(1, views, 1, wants_logits=False, captured=every, captured_rows=1)
            graph = self._builder.build(shape._replace(seen=SeenShape(1, 1, states=1)))
            self._widths = {
                point: each.shape[0] if point.name == ATTENTIONS else math.prod(each.shape[1:])
                for point, each in graph.captured.items()
            }
            graph.context.close()
        return self._widths

    def reserve(self, tokens: int, outputs: int, best: tuple[int, int] = (0, 0)) -> None:
        """Allocate memory for batches of so many tokens and outputs; no step allocates later.

        Args:
            tokens: in a batch.
            outputs: of a batch that returns all logits.
            best: the outputs of one that returns the best, and how many; (0, 0): none does.

        Raises:
            OutOfMemoryError: if it does not fit.
        """
        self._reservation = tokens, outputs, best
        for graph in self._builder.largest(tokens, outputs, best, int(bool(self._stacks))):
            self._largest = max(self._largest, graph.context.tensors)
            try:
                self.backend.reserve(graph.context)
            finally:
                graph.context.close()
        self._reserved = self.backend.graph_bytes

    def check(self, tokens: int) -> None:
        """Build graphs of so many tokens, without memory and without data.

        Raises:
            ShapeError: if weights do not match each other or the model's options.
        """
        for graph in self._builder.largest(tokens, 1, (0, 0), int(bool(self._stacks))):
            graph.context.close()

    def stack_adapters(self, adapters: Sequence[Mapping[str, Pair]]) -> None:
        """Replace the adapters that requests may choose, between two steps.

        Args:
            adapters: the matrices of each; the first one's place in the stacks is 1.

        Raises:
            OutOfMemoryError: if they do not fit; then nothing changes.
            ShapeError: if one changes what is not computed token by token; then nothing changes.
        """
        self.backend.wait()
        stacks = AdapterStacks(self.model, adapters, self.backend, self._builder.adapters)
        self.close()
        before, self._stacks = self._stacks, stacks
        try:
            stacks.attach()
            self.reserve(*self._reservation)
        except TampuError:
            self._stacks = before
            before.attach()
            stacks.close()
            raise
        before.close()

    def warm_up(
        self,
        batches: Sequence[WarmUpBatch],
        outputs: int,
        progress: Callable[[int], None] = lambda _: None,
        cells: Sequence[int] | None = None,
    ) -> list[float]:
        """Compute batches whose results are not used; return the seconds of each.

        Drivers of GPUs compile their code when it is first needed, and ggml allocates some of its
        memory on them only then.

        Args:
            batches: in their order.
            outputs: at most, of one that returns all logits.
            progress: called every second with the number of those that are done.
            cells: of each group of the cache, the one that is overwritten; None: the first.

        Raises:
            OutOfMemoryError: if it does not fit.
            ComputeError: if a device fails.
        """
        seconds = []
        for done, batch in enumerate(batches):
            fills = [*self._cache.views_by_fill(batch.tokens)]
            views = fills[0] if batch.is_full else fills[-1]
            shape = GraphShape(batch.tokens, views, min(outputs, batch.tokens), wants_logits=True)
            graph = self._builder.build(shape._replace(candidates=batch.candidates))
            try:
                data = [np.zeros(each.shape, DATA_TYPES[each.type]) for each in graph.inputs]
                data[0] += np.arange(batch.tokens, dtype=np.int32) % batch.words
                cached = self._cache.scratch(batch.tokens, views, cells or [0] * len(views))
                data[len(data) - len(cached) :] = cached
                inputs = list(zip(graph.inputs, data, strict=True))
                computed = self.backend.submit(graph.context, inputs, [])
                while wait([computed], _TICK_S).not_done:
                    progress(done)
                seconds.append(computed.result().compute_ns / 1e9)
            finally:
                self.backend.wait()  # if it was interrupted
                graph.context.close()
        progress(len(batches))
        return seconds

    def detect_nan(self) -> None:
        """Check everything computed from now on for NaN and infinity; this is slow."""
        self.backend.detect_nan()

    def prepare(self, step: StepInputs) -> PreparedGraph:
        """Prepare the graph and the data of a step; computes nothing.

        Raises:
            OutOfMemoryError: if memory for the values that it captures runs out.
        """
        cached = self._cache.step(step.segments)
        following = [self._cache.step(each.segments) for each in step.following]
        built = self.counts.built
        shape = GraphShape.of(step, cached.views, [each.views for each in following])
        graph = self._decoders.get(shape, lambda: self._builder.build(shape))
        data = self._builder.data(step, cached, following)
        if step.captured is not None:  # all other graphs fit into what is reserved
            self.backend.reserve(graph.context)
        return PreparedGraph(graph, data, self.counts.built > built)

    def prepare_encoder(
        self, item: MediaItem, partial: PartialEmbedding | None = None
    ) -> PreparedGraph:
        """Prepare the encoder of an image or a sound, or its next chunk.

        The result is the embedding (rows, features), or the input of the following chunk.
        """
        built = self.counts.built
        number = partial.chunks if partial else 0
        key = item.is_audio, item.key, number
        graph = self._encoders.get(key, lambda: self._builder.build_encoder(item, number))
        data: list[Data] = [np.ascontiguousarray(array) for array in item.arrays.values()]
        data += [partial.rows] if partial else []
        return PreparedGraph(graph, data, self.counts.built > built)

    def launch(self, prepared: PreparedGraph) -> Future[Computed]:
        """Start computing a step.

        The result is one array (m, vocabulary or features), and one (rows, features) for each point
        that is captured.
        """
        graph = prepared.graph
        inputs = list(zip(graph.inputs, prepared.data, strict=True))
        outputs = [graph.result, *graph.captured.values()]
        return self.backend.submit(graph.context, inputs, outputs)

    def submit(self, step: StepInputs) -> Future[Computed]:
        """Prepare a step and start computing it."""
        return self.launch(self.prepare(step))

    def shift_keys(self, cells: Sequence[npt.NDArray[np.int32]], offset: int) -> None:
        """Move the keys of some cells to other positions; see `context_shift.shift_keys`."""
        shift_keys(self.backend, self.model, self._cache, cells, offset)

    def check_reservation(self) -> None:
        """Drop all graphs if the device's memory was reallocated: theirs would be stale."""
        if self.backend.graph_bytes != self._reserved:
            log.warning("a graph outgrew the reservation of %d bytes", self._reserved)
            self._reserved = self.backend.graph_bytes
            self.close()

    def close(self) -> None:
        """Wait for the graph that is computing, if any, and free all graphs."""
        if self._decoders or self._encoders:
            self.backend.wait()
        self._decoders.clear()
        self._encoders.clear()
