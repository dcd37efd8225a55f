"""The graphs of a model, built once per shape and reused with other inputs."""

from __future__ import annotations

import logging
from collections import OrderedDict
from collections.abc import Callable, Generator, Hashable, Iterator, Mapping, Sequence
from concurrent.futures import Future, wait
from dataclasses import dataclass, replace
from typing import NamedTuple, TypeAlias

import numpy as np
import numpy.typing as npt

from tampu.errors import TampuError
from tampu.kvcache import Cache
from tampu.kvcache.causal import FUSED_FROM
from tampu.ml import Backend, Context, GGMLType, Tensor
from tampu.ml.backend import Computed
from tampu.ml.device_tokens import DeviceTokens
from tampu.ml.tensor import Shape
from tampu.ml.top_k import find_top_k, with_logits, with_rows
from tampu.nn import Batch, CrossAttentionInputs, LayerCache, Model, PreparedImage
from tampu.nn.lora import AdapterStacks, ChosenAdapters, Pair
from tampu.nn.points import ModelPoints, Point
from tampu.runner.capture import GraphCapture
from tampu.runner.context_shift import shift_keys
from tampu.runner.graph_shape import GraphShape, adapter_inputs
from tampu.runner.images import EncoderChunk, PartialEmbedding
from tampu.runner.step_inputs import StepInputs, crossing_data, most_in_full

log = logging.getLogger("tampu.runner")

Data: TypeAlias = npt.NDArray[np.generic]

_MAX_GRAPHS = 32
_TICK_S = 1.0
_MAX_ENCODERS = 2  # each for one size of images, or one chunk
_TYPES = {
    np.dtype(np.float32): GGMLType.F32,
    np.dtype(np.float16): GGMLType.F16,
    np.dtype(np.int32): GGMLType.I32,
    np.dtype(np.int64): GGMLType.I64,
}
_DATA_TYPES = {type: data for data, type in _TYPES.items()}


@dataclass(frozen=True, slots=True)
class _Graph:
    """A graph that can be computed."""

    context: Context
    inputs: list[Tensor]
    result: Tensor
    captured: Mapping[Point, Tensor]
    is_complete: bool = True


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

    graph: _Graph
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


class GraphCache:
    """Builds the model's graphs, computes steps with them, and counts both (`counts`).

    Attributes:
        backend: computes them.
        model: whose graphs they are.
        adapters: those that requests choose, in the graph that is being built.
    """

    def __init__(
        self,
        backend: Backend,
        model: Model,
        cache: Cache,
        *,
        reuse: bool = True,
        device_tokens: DeviceTokens | None = None,
    ) -> None:
        self.backend = backend
        self.model = model
        self._cache = cache
        self._device_tokens = device_tokens
        self._kept: OrderedDict[Hashable, _Graph] = OrderedDict()
        self._encoders: OrderedDict[Hashable, _Graph] = OrderedDict()
        self._limit = _MAX_GRAPHS if reuse else 0
        self._reserved = 0
        self._reservation = (0, 0, (0, 0))
        self.adapters = ChosenAdapters()
        self._points = ModelPoints(model)
        self._widths: Mapping[Point, int] | None = None
        self._stacks = AdapterStacks(model, [], backend, self.adapters)
        self.counts = GraphCounts()

    @property
    def largest_group(self) -> int:
        """The maximum number of tokens that must share a batch: of an image or a whole text."""
        held = [encoder.largest().placeholders.groups for encoder in self.model.encoders]
        lengths = [length for groups in held for _, length in groups]
        return max(lengths, default=self.max_bidirectional_tokens or 0)

    @property
    def max_bidirectional_tokens(self) -> int | None:
        """The maximum text length of a bidirectional model; None for causal models."""
        return self.model.max_bidirectional_tokens

    @property
    def keeps_tokens(self) -> bool:
        """Whether a step with one candidate per output leaves them on the device for the next."""
        return self._device_tokens is not None

    @property
    def positions_per_token(self) -> int:
        """The number of coordinates of a token's position."""
        return self.model.positions_per_token

    @property
    def can_shift_keys(self) -> bool:
        """Whether keys in the cache can be moved to other positions."""
        return type(self.model).shift is not Model.shift

    def find_points(self) -> Mapping[Point, int]:
        """Return the points at which texts can be captured, and the features of each."""
        if self._widths is None:
            views = next(self._cache.views_by_fill(1))
            every = tuple(Point(name, n) for name, of in self._points.layers.items() for n in of)
            shape = GraphShape(1, views, 1, wants_logits=False, captured=every, captured_rows=1)
            graph = self._build(shape)
            self._widths = {point: each.shape[-1] for point, each in graph.captured.items()}
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
        for graph in self._largest(tokens, outputs, best):
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
        for graph in self._largest(tokens, 1, (0, 0)):
            graph.context.close()

    def _largest(self, tokens: int, outputs: int, best: tuple[int, int]) -> Iterator[_Graph]:
        """Yield the graphs that need the most memory; the caller closes each."""
        for count in (tokens, min(tokens, FUSED_FROM - 1)):
            for views in self._cache.views_by_fill(count):  # memory use varies
                shape = GraphShape(count, views, min(outputs, count), wants_logits=True)
                shape = shape._replace(adapters=int(bool(self._stacks)))
                yield self._build(shape)
                if best[1]:
                    outputs_of_best = min(best[0], count)
                    shape = shape._replace(outputs=outputs_of_best, candidates=best[1])
                    shape = shape._replace(in_full=most_in_full(outputs_of_best))
                    yield self._build(shape)
        for encoder in self.model.encoders:
            largest = encoder.largest()
            embedding = yield from self._encoders_of(largest)
            fullest = next(self._cache.views_by_fill(tokens))
            shape = GraphShape(tokens, fullest, min(outputs, tokens), wants_logits=True)
            if largest.placeholders.is_cross:
                shape = shape._replace(crossed=embedding)
            else:
                shape = shape._replace(embedded=(min(embedding[0], tokens), embedding[1]))
            yield self._build(shape)

    def stack_adapters(self, adapters: Sequence[Mapping[str, Pair]]) -> None:
        """Replace the adapters that requests may choose, between two steps.

        Args:
            adapters: the matrices of each; the first one's place in the stacks is 1.

        Raises:
            OutOfMemoryError: if they do not fit; then nothing changes.
            ShapeError: if one changes what is not computed token by token; likewise.
        """
        self.backend.wait()
        stacks = AdapterStacks(self.model, adapters, self.backend, self.adapters)
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
        """Compute batches that write what nobody reads; return the seconds of each.

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
            graph = self._build(shape._replace(candidates=batch.candidates))
            try:
                data = [np.zeros(each.shape, _DATA_TYPES[each.type]) for each in graph.inputs]
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
        """Prepare the graph and the data of a step; computes nothing."""
        cached = self._cache.step(step.segments)
        built = self.counts.built
        graph = self._graph(GraphShape.of(step, cached.views))
        data: list[Data] = [step.tokens, step.positions, step.outputs]
        data += [step.sources] if self._device_tokens else []
        data += [] if step.in_full is None else [step.in_full]
        if step.embeddings is not None and step.embedded_rows is not None:
            data += [step.embeddings, step.embedded_rows]
        if step.crossing is not None:
            data += crossing_data(step.crossing)
        if step.adapters is not None:
            data += [step.adapters.places, step.adapters.scales, *step.adapters.of(step.outputs)]
        if step.captured is not None:
            data += [step.captured.rows, np.arange(len(step.tokens), dtype=np.int32)]
        data += cached.arrays
        return PreparedGraph(graph, data, self.counts.built > built)

    def prepare_image(
        self, image: PreparedImage, partial: PartialEmbedding | None = None
    ) -> PreparedGraph:
        """Prepare an image's encoder, or its next chunk.

        The result is the embedding (rows, features), or the input of the following chunk.
        """
        built = self.counts.built
        number = partial.chunks if partial else 0
        graph = self._kept_or_new(
            self._encoders,
            _MAX_ENCODERS,
            (image.is_audio, image.key, number),
            lambda: self._encoder(image, number),
        )
        data: list[Data] = [np.ascontiguousarray(array) for array in image.arrays.values()]
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
        if self._kept or self._encoders:
            self.backend.wait()
        for kept in (self._kept, self._encoders):
            while kept:
                kept.popitem()[1].context.close()

    # -- inside ----------------------------------------------------------------------------------

    def _graph(self, shape: GraphShape) -> _Graph:
        return self._kept_or_new(self._kept, self._limit, shape, lambda: self._build(shape))

    def _kept_or_new(
        self,
        kept: OrderedDict[Hashable, _Graph],
        limit: int,
        key: Hashable,
        build: Callable[[], _Graph],
    ) -> _Graph:
        if key in kept:
            self.counts.reused += 1
            kept.move_to_end(key)
            return kept[key]
        self.counts.built += 1
        graph = kept[key] = build()
        while len(kept) > max(limit, 2):  # one may be computing while one is planned
            kept.popitem(last=False)[1].context.close()
            self.counts.evicted += 1
        return graph

    def _encoders_of(self, image: PreparedImage) -> Generator[_Graph, None, Shape]:
        """Yield the graph of each chunk, which the caller closes; return the embedding's shape."""
        number = 0
        while True:
            chunk = self._encoder(image, number)
            shape, is_complete = chunk.result.shape, chunk.is_complete
            yield chunk
            if is_complete:
                return shape
            number += 1

    def _build(self, shape: GraphShape) -> _Graph:
        context = self.backend.context()
        try:
            return self._built(shape, context)
        except TampuError:
            context.close()
            raise

    def _built(self, shape: GraphShape, context: Context) -> _Graph:
        n, per_token = shape.tokens, self.model.positions_per_token
        batch = Batch(
            context.input("tokens", (n,), GGMLType.I32),
            context.input("positions", (n,) if per_token == 1 else (per_token, n), GGMLType.I32),
            context.input("outputs", (shape.outputs,), GGMLType.I32),
        )
        inputs = [batch.tokens, batch.positions, batch.outputs]
        if self._device_tokens:
            inputs.append(context.input("sources", (n,), GGMLType.I32))
            batch = replace(batch, tokens=self._device_tokens.select(batch.tokens, inputs[-1]))
        if shape.in_full:
            inputs.append(context.input("in_full", (shape.in_full,), GGMLType.I32))
        in_full = inputs[-1]
        if shape.embedded:
            embeddings = context.input("embeddings", shape.embedded, GGMLType.F32)
            rows = context.input("embedded_rows", shape.embedded[:1], GGMLType.I64)
            batch = replace(batch, embeddings=embeddings, embedded_rows=rows)
            inputs += [embeddings, rows]
        if shape.crossed:
            crossed = CrossAttentionInputs(
                context.input("image", shape.crossed, GGMLType.F32, is_persistent=True),
                context.input("image_mask", (n, shape.crossed[0]), GGMLType.F16),
                context.input("seeing", (n, 1), GGMLType.F32),
            )
            batch = replace(batch, cross_attention=crossed)
            inputs += [crossed.embeddings, crossed.mask, crossed.sees_image]
        adapters = [
            adapter_inputs(context, rows, shape.adapters)
            for rows in ((n, shape.outputs) if shape.adapters else ())
        ]
        inputs += [each for rows in adapters for each in (rows.chosen, rows.scales)]
        capture = GraphCapture(context, n, shape.captured_rows) if shape.captured else None
        inputs += capture.inputs if capture else ()
        cache = self._cache.build(context, n, shape.views)
        with self.adapters.building(*reversed(adapters)):
            result = self._hidden(batch, cache.layers, shape.captured, capture)
            if shape.wants_logits:
                result = self.model.head(result)
            if shape.candidates:
                found = find_top_k(result, shape.candidates)
                if self._device_tokens and shape.candidates == 1:
                    context.forward(self._device_tokens.store(found, result.shape[1]))
                best = with_logits(found, result)
                result = with_rows(best, result, in_full) if shape.in_full else best
        context.output(result)
        seen = capture.found if capture else {}
        captured = {point: seen[point] for point in shape.captured if point in seen}
        return _Graph(context, [*inputs, *cache.inputs], result, captured)

    def _hidden(
        self,
        batch: Batch,
        caches: Sequence[LayerCache],
        points: tuple[Point, ...],
        capture: GraphCapture | None,
    ) -> Tensor:
        """Return the final hidden states of a batch's outputs, and capture values at points."""
        if capture is None:
            return self.model.hidden(batch, caches)
        with self._points.seen(points, capture.see):
            states = self.model.hidden(replace(batch, outputs=capture.every), caches)
        if self._points.last in points:
            states = capture.see(self._points.last, states)
        return states.rows(batch.outputs)

    def _encoder(self, image: PreparedImage, number: int) -> _Graph:
        encoder = self.model.encoder_of(image)
        context = self.backend.context()
        try:
            inputs = {
                name: context.input(name, array.shape, _TYPES[array.dtype])
                for name, array in image.arrays.items()
            }
            chunk = EncoderChunk(context, number)
            embedding = encoder.encode(context, image.key, inputs)
            is_complete = chunk.result is None
            result = context.output(embedding if chunk.result is None else chunk.result)
            given = [chunk.given] if chunk.given else []
            return _Graph(context, [*inputs.values(), *given], result, {}, is_complete)
        except TampuError:
            context.close()
            raise
