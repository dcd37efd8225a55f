"""Graphs of the model by shape, built once and used again with other inputs."""

from __future__ import annotations

import logging
import time
from collections import OrderedDict
from collections.abc import Callable, Hashable, Sequence
from concurrent.futures import Future
from dataclasses import dataclass, replace
from typing import NamedTuple, TypeAlias

import numpy as np
import numpy.typing as npt

from tampu.errors import ComputeError, TampuError
from tampu.kvcache import Cache, CacheView, Segment
from tampu.kvcache.causal import FUSED_FROM
from tampu.ml import Backend, Context, GGMLType, Tensor
from tampu.ml.backend import Computed
from tampu.ml.tensor import Shape
from tampu.nn import Batch, CrossAttentionInputs, Model, PreparedImage
from tampu.runner.chunked_encoder import Piece
from tampu.runner.images import Begun
from tampu.runner.k_shift import rotate_keys

log = logging.getLogger("tampu.runner")

Data: TypeAlias = npt.NDArray[np.generic]

_KEPT = 32
_ENCODERS = 2  # of a size of pictures each, or of a piece
_TYPES = {
    np.dtype(np.float32): GGMLType.F32,
    np.dtype(np.float16): GGMLType.F16,
    np.dtype(np.int32): GGMLType.I32,
    np.dtype(np.int64): GGMLType.I64,
}


class GraphShape(NamedTuple):
    """What two steps must have in common to use the same graph.

    Attributes:
        tokens: in the batch.
        views: what the batch reads, for each space of the cache.
        outputs: tokens whose result is wanted.
        wants_logits: logits, else final hidden states.
        embedded: (rows, features) of images that take the place of tokens.
        crossed: (rows, features) of images that layers with cross-attention read.
    """

    tokens: int
    views: tuple[CacheView, ...]
    outputs: int
    wants_logits: bool
    embedded: tuple[int, ...] = ()
    crossed: tuple[int, ...] = ()


@dataclass(frozen=True, slots=True)
class Crossing:
    """What layers with cross-attention read in one step.

    Attributes:
        rows: F32, (rows, features): of all images that a token of the batch sees.
        seen: (start, end) of the rows of each image that each token sees.
    """

    rows: npt.NDArray[np.float32]
    seen: list[tuple[tuple[int, int], ...]]


@dataclass(frozen=True, slots=True)
class StepInputs:
    """One step's data, known but for the values of tokens that are being sampled.

    Attributes:
        tokens: I32, (n,); may be filled in until the step is launched.
        positions: I32, (n,), or (k, n) for models that take k.
        outputs: I32, (m,).
        segments: the sequences' parts, in the order of the tokens.
        wants_logits: logits, else final hidden states.
        embeddings: F32, (rows, features): of images; None without any.
        embedded_rows: I64, (rows,): the tokens whose place they take.
        crossing: None if no layer reads any image.
    """

    tokens: npt.NDArray[np.int32]
    positions: npt.NDArray[np.int32]
    outputs: npt.NDArray[np.int32]
    segments: list[Segment]
    wants_logits: bool = True
    embeddings: npt.NDArray[np.float32] | None = None
    embedded_rows: npt.NDArray[np.int64] | None = None
    crossing: Crossing | None = None


@dataclass(frozen=True, slots=True)
class _Graph:
    """A graph that is ready to be computed."""

    context: Context
    inputs: list[Tensor]
    result: Tensor
    is_whole: bool = True


@dataclass(frozen=True, slots=True)
class PreparedGraph:
    """A graph with the data for one step.

    Attributes:
        is_new: whether the graph was built for it.
        build_ns: how long preparing it took.
    """

    graph: _Graph
    data: list[Data]
    is_new: bool
    build_ns: int

    @property
    def is_whole(self) -> bool:
        """Whether its result is complete; else it is where the next piece begins."""
        return self.graph.is_whole


@dataclass(slots=True)
class GraphCounts:
    """How often graphs were built, used again and thrown away."""

    built: int = 0
    reused: int = 0
    evicted: int = 0


class Graphs:
    """Builds the model's graphs and computes steps with them.

    Attributes:
        counts: how often graphs were built, used again and thrown away.
    """

    def __init__(self, backend: Backend, model: Model, cache: Cache, *, reuse: bool = True) -> None:
        self._backend = backend
        self._model = model
        self._cache = cache
        self._kept: OrderedDict[Hashable, _Graph] = OrderedDict()
        self._encoders: OrderedDict[Hashable, _Graph] = OrderedDict()
        self._limit = _KEPT if reuse else 0
        self._reserved = 0
        self.counts = GraphCounts()

    @property
    def positions_per_token(self) -> int:
        """How many numbers a token's position is made of."""
        return self._model.positions_per_token

    @property
    def largest_group(self) -> int:
        """The most tokens that an image, or a text that is read both ways, needs in one batch."""
        vision = self._model.vision
        groups = vision.largest().placeholders.groups if vision else ()
        return max((length for _, length in groups), default=self.longest_text or 0)

    @property
    def longest_text(self) -> int | None:
        """The longest text of a model that reads texts both ways; None: of one that does not."""
        return self._model.longest_text

    @property
    def can_rotate(self) -> bool:
        """Whether keys in the cache can be moved to other positions."""
        return type(self._model).shift is not Model.shift

    def reserve(self, tokens: int, outputs: int) -> None:
        """Allocate what the largest batches take: after this, no step allocates on the device.

        Args:
            tokens: the most tokens in a batch.
            outputs: the most tokens whose logits are wanted at once.

        Raises:
            OutOfMemoryError: if it does not fit.
        """
        for count in (tokens, min(tokens, FUSED_FROM - 1)):
            for views in self._cache.views_by_fill(
                count
            ):  # how a graph's parts fit together varies
                shape = GraphShape(count, views, min(outputs, count), wants_logits=True)
                self._reserve(self._build(shape))
        if vision := self._model.vision:
            largest = vision.largest()
            embedding = self._reserve_encoder(largest)
            fullest = next(self._cache.views_by_fill(tokens))
            shape = GraphShape(tokens, fullest, min(outputs, tokens), wants_logits=True)
            if largest.placeholders.is_cross:
                shape = shape._replace(crossed=embedding)
            else:
                shape = shape._replace(embedded=(min(embedding[0], tokens), embedding[1]))
            self._reserve(self._build(shape))
        self._reserved = self._backend.graph_bytes

    def watch_values(self) -> None:
        """Look for unusable numbers in all that is computed from now on; this is slow."""
        self._backend.watch_values()

    def prepare(self, step: StepInputs) -> PreparedGraph:
        """Have everything ready for a step but the values of its tokens; computes nothing."""
        began = time.perf_counter_ns()
        cached = self._cache.step(step.segments)
        shape = GraphShape(
            len(step.tokens),
            cached.views,
            len(step.outputs),
            step.wants_logits,
            () if step.embeddings is None else step.embeddings.shape,
            () if step.crossing is None else step.crossing.rows.shape,
        )
        built = self.counts.built
        graph = self._graph(shape)
        data: list[Data] = [step.tokens, step.positions, step.outputs]
        if step.embeddings is not None and step.embedded_rows is not None:
            data += [step.embeddings, step.embedded_rows]
        if step.crossing is not None:
            data += _crossing_data(step.crossing)
        data += cached.arrays
        return PreparedGraph(graph, data, self.counts.built > built, time.perf_counter_ns() - began)

    def prepare_image(self, image: PreparedImage, begun: Begun | None = None) -> PreparedGraph:
        """Have an image's encoder ready, or its next piece.

        The result is the embedding (rows, features), or what the piece after it goes on with.
        """
        began = time.perf_counter_ns()
        built = self.counts.built
        number = begun.pieces if begun else 0
        graph = self._kept_or_new(
            self._encoders, _ENCODERS, (image.key, number), lambda: self._encoder(image, number)
        )
        data: list[Data] = [np.ascontiguousarray(array) for array in image.arrays.values()]
        data += [begun.rows] if begun else []
        return PreparedGraph(graph, data, self.counts.built > built, time.perf_counter_ns() - began)

    def launch(self, prepared: PreparedGraph) -> Future[Computed]:
        """Begin to compute a step; the result is one array (m, vocabulary or features)."""
        graph = prepared.graph
        inputs = list(zip(graph.inputs, prepared.data, strict=True))
        return self._backend.submit(graph.context, inputs, [graph.result])

    def submit(self, step: StepInputs) -> Future[Computed]:
        """Prepare a step and begin to compute it."""
        return self.launch(self.prepare(step))

    def rotate(self, cells: Sequence[npt.NDArray[np.int32]], offset: int) -> None:
        """Move the keys of some cells to other positions, and wait until that is done.

        Args:
            cells: for each space.
            offset: is added to their positions.

        Raises:
            ComputeError: if the architecture cannot; see `can_rotate`.
            OutOfMemoryError: if there is no memory for it.
        """
        rotate_keys(self._backend, self._model, self._cache, cells, offset)

    def check_reservation(self) -> None:
        """Drop all graphs if the device's memory grew: theirs would lie where it was before."""
        if self._backend.graph_bytes != self._reserved:
            log.warning("a graph outgrew the reservation of %d bytes", self._reserved)
            self._reserved = self._backend.graph_bytes
            self.close()

    def close(self) -> None:
        """Wait for the graph that is computing, if any, and free them all."""
        if self._kept or self._encoders:
            self._backend.wait()
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

    def _reserve_encoder(self, image: PreparedImage) -> Shape:
        """Reserve all pieces; return the shape of the embedding."""
        number = 0
        while True:
            piece = self._encoder(image, number)
            self._reserve(piece)
            if piece.is_whole:
                return piece.result.shape
            number += 1

    def _reserve(self, graph: _Graph) -> None:
        try:
            self._backend.reserve(graph.context)
        finally:
            graph.context.close()

    def _build(self, shape: GraphShape) -> _Graph:
        context = self._backend.context()
        try:
            return self._built(shape, context)
        except TampuError:
            context.close()
            raise

    def _built(self, shape: GraphShape, context: Context) -> _Graph:
        n, per_token = shape.tokens, self._model.positions_per_token
        batch = Batch(
            context.input("tokens", (n,), GGMLType.I32),
            context.input("positions", (n,) if per_token == 1 else (per_token, n), GGMLType.I32),
            context.input("outputs", (shape.outputs,), GGMLType.I32),
        )
        inputs = [batch.tokens, batch.positions, batch.outputs]
        if shape.embedded:
            embeddings = context.input("embeddings", shape.embedded, GGMLType.F32)
            places = context.input("embedded_rows", shape.embedded[:1], GGMLType.I64)
            batch = replace(batch, embeddings=embeddings, embedded_rows=places)
            inputs += [embeddings, places]
        if shape.crossed:
            crossed = CrossAttentionInputs(
                context.input("image", shape.crossed, GGMLType.F32, stays=True),
                context.input("image_mask", (n, shape.crossed[0]), GGMLType.F16),
                context.input("seeing", (n, 1), GGMLType.F32),
            )
            batch = replace(batch, cross_attention=crossed)
            inputs += [crossed.embeddings, crossed.mask, crossed.sees_image]
        cache = self._cache.build(context, n, shape.views)
        result = self._model.hidden(batch, cache.layers)
        if shape.wants_logits:
            result = self._model.head(result)
        context.output(result)
        return _Graph(context, [*inputs, *cache.inputs], result)

    def _encoder(self, image: PreparedImage, number: int) -> _Graph:
        vision = self._model.vision
        if vision is None:
            raise ComputeError("the model does not see")
        context = self._backend.context()
        try:
            inputs = {
                name: context.input(name, array.shape, _TYPES[array.dtype])
                for name, array in image.arrays.items()
            }
            piece = Piece(context, number)
            embedding = vision.encode(context, image.key, inputs)
            is_whole = piece.result is None
            result = context.output(embedding if piece.result is None else piece.result)
            given = [piece.given] if piece.given else []
            return _Graph(context, [*inputs.values(), *given], result, is_whole)
        except TampuError:
            context.close()
            raise


def _crossing_data(crossing: Crossing) -> list[Data]:
    mask = np.full((len(crossing.seen), len(crossing.rows)), -np.inf, np.float16)
    seeing = np.zeros((len(crossing.seen), 1), np.float32)
    for token, shown in enumerate(crossing.seen):
        for start, end in shown:  # the same picture twice counts twice
            mask[token, start:end] = np.logaddexp(mask[token, start:end], np.float16(0))
        seeing[token] = bool(shown)
        if not shown:
            mask[token] = 0
    return [crossing.rows, mask, seeing]
