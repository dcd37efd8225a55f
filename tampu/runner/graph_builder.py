"""Builds the graphs of a model: of a step, and of each chunk of an encoder of images or sounds."""

from __future__ import annotations

from collections.abc import Generator, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import reduce
from typing import TypeAlias

import numpy as np
import numpy.typing as npt

from tampu.errors import ShapeError, TampuError
from tampu.kvcache import Cache, CacheStep
from tampu.kvcache.causal import FUSED_FROM
from tampu.ml import Backend, Context, GGMLType, Tensor
from tampu.ml.device_states import DeviceStates
from tampu.ml.device_tokens import DeviceTokens
from tampu.ml.tensor import Shape
from tampu.ml.top_k import find_best, find_top_k, with_logits, with_rows
from tampu.nn import Batch, CrossAttentionInputs, LayerCache, MediaItem, Model
from tampu.nn.lora import ChosenAdapters
from tampu.nn.points import ATTENTIONS, ModelPoints, Point
from tampu.runner.capture import CapturedRows
from tampu.runner.encoder_cache import EncoderChunk
from tampu.runner.graph_points import GraphPoints
from tampu.runner.graph_shape import GraphShape, adapter_inputs
from tampu.runner.step_inputs import StepInputs, crossing_data, most_in_full

Data: TypeAlias = npt.NDArray[np.generic]

_TYPES = {
    np.dtype(np.float32): GGMLType.F32,
    np.dtype(np.float16): GGMLType.F16,
    np.dtype(np.int32): GGMLType.I32,
    np.dtype(np.int64): GGMLType.I64,
}
DATA_TYPES = {type: data for data, type in _TYPES.items()}


@dataclass(frozen=True, slots=True)
class Graph:
    """A graph that can be computed.

    Attributes:
        context: which its owner closes.
        inputs: in the order in which their data are given.
        result: the outputs of a step, an embedding, or the input of the next chunk.
        captured: the values at points.
        is_complete: whether the result is final, or the input of an encoder's next chunk.
    """

    context: Context
    inputs: list[Tensor]
    result: Tensor
    captured: Mapping[Point, Tensor]
    is_complete: bool = True


class GraphBuilder:
    """Builds the graphs of a model. The caller closes the context of each.

    Attributes:
        adapters: those that requests choose, in the graph that is being built.
        points: at which values can be captured.
    """

    def __init__(
        self,
        backend: Backend,
        model: Model,
        cache: Cache,
        device_tokens: DeviceTokens | None,
        device_states: DeviceStates | None = None,
    ) -> None:
        self.adapters = ChosenAdapters()
        self.points = ModelPoints(model)
        self._backend = backend
        self._model = model
        self._cache = cache
        self._device_tokens = device_tokens
        self._device_states = device_states

    def build(self, shape: GraphShape) -> Graph:
        """Build the graph of a step.

        Raises:
            ShapeError: if weights do not match each other or the model's options.
        """
        context = self._backend.context()
        try:
            return self._built(shape, context)
        except TampuError:
            context.close()
            raise

    def data(
        self, step: StepInputs, cached: CacheStep, following: Sequence[CacheStep] = ()
    ) -> list[Data]:
        """Return the data of a step's inputs, in the order of `Graph.inputs`."""
        data: list[Data] = [step.tokens, step.positions, step.outputs]
        data += [step.sources] if self._device_tokens else []
        data += [_state_rows(step, self._device_states)] if self._device_states else []
        data += [] if step.in_full is None else [step.in_full]
        if step.embeddings is not None and step.embedded_rows is not None:
            data += [step.embeddings, step.embedded_rows]
        if step.crossing is not None:
            data += crossing_data(step.crossing)
        if step.adapters is not None:
            data += [step.adapters.places, step.adapters.scales, *step.adapters.of(step.outputs)]
        if step.captured is not None:
            data += [step.captured.rows, np.arange(len(step.tokens), dtype=np.int32)]
            data += [step.captured.seen_rows] if step.captured.seen else []
        if step.steering is not None:
            data += step.steering.data(step.outputs)
        if step.captured is not None:
            data += self._seen_arrays(step.captured)
        data += cached.arrays
        for tokens, read in zip(step.following, following, strict=True):
            data += [tokens.positions, np.arange(len(tokens.segments), dtype=np.int32)]
            data += read.arrays
        return data

    def build_encoder(self, item: MediaItem, number: int) -> Graph:
        """Build the graph of an item's encoder, or of one of its chunks; the first is number 0."""
        encoder = self._model.encoder_of(item)
        context = self._backend.context()
        try:
            inputs = {
                name: context.input(name, array.shape, _TYPES[array.dtype])
                for name, array in item.arrays.items()
            }
            chunk = EncoderChunk(context, number)
            embedding = encoder.encode(context, item.key, inputs)
            is_complete = chunk.result is None
            result = context.output(embedding if chunk.result is None else chunk.result)
            given = [chunk.given] if chunk.given else []
            return Graph(context, [*inputs.values(), *given], result, {}, is_complete)
        except TampuError:
            context.close()
            raise

    def largest(
        self, tokens: int, outputs: int, best: tuple[int, int], adapters: int
    ) -> Iterator[Graph]:
        """Yield the graphs that need the most memory.

        Args:
            tokens: in a batch.
            outputs: of a batch that returns all logits.
            best: the outputs of one that returns the best, and how many; (0, 0): none does.
            adapters: of each token.
        """
        for count in (tokens, min(tokens, FUSED_FROM - 1)):
            for views in self._cache.views_by_fill(count):  # memory use varies
                shape = GraphShape(count, views, min(outputs, count), wants_logits=True)
                shape = shape._replace(adapters=adapters)
                yield self.build(shape)
                if best[1]:
                    outputs_of_best = min(best[0], count)
                    shape = shape._replace(outputs=outputs_of_best, candidates=best[1])
                    shape = shape._replace(in_full=most_in_full(outputs_of_best))
                    yield self.build(shape)
        for encoder in self._model.encoders:
            largest = encoder.largest()
            embedding = yield from self._encoders_of(largest)
            fullest = next(self._cache.views_by_fill(tokens))
            shape = GraphShape(tokens, fullest, min(outputs, tokens), wants_logits=True)
            if largest.placeholders.is_cross:
                shape = shape._replace(crossed=embedding)
            else:
                shape = shape._replace(embedded=(min(embedding[0], tokens), embedding[1]))
            yield self.build(shape)

    def _encoders_of(self, item: MediaItem) -> Generator[Graph, None, Shape]:
        """Yield the graph of each chunk, which the caller closes; return the embedding's shape."""
        number = 0
        while True:
            chunk = self.build_encoder(item, number)
            shape, is_complete = chunk.result.shape, chunk.is_complete
            yield chunk
            if is_complete:
                return shape
            number += 1

    def _built(self, shape: GraphShape, context: Context) -> Graph:
        n = shape.tokens
        batch = self._batch(context, context.input("tokens", (n,), GGMLType.I32), shape.outputs)
        inputs = [batch.tokens, batch.positions, batch.outputs]
        if self._device_tokens:
            inputs.append(context.input("sources", (n,), GGMLType.I32))
            batch = replace(batch, tokens=self._device_tokens.select(batch.tokens, inputs[-1]))
        if self._device_states:
            kind = GGMLType.I32 if shape.guesses else GGMLType.I64
            inputs.append(context.input("state_rows", (shape.outputs,), kind))
        state_rows = inputs[-1]
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
        elif (shape.captured or shape.steering.points) and (width := self._model.crossed_features):
            batch = replace(batch, cross_attention=_no_image(context, n, width))
        adapters = [
            adapter_inputs(context, rows, shape.adapters)
            for rows in ((n, shape.outputs) if shape.adapters else ())
        ]
        inputs += [each for rows in adapters for each in (rows.chosen, rows.scales)]
        inside = GraphPoints.of(context, shape)
        inputs += inside.inputs
        cache = self._cache.build(context, n, shape.views)
        layers, seen = inside.watch(self._cache, cache.layers)
        inputs += seen
        with self.adapters.building(*reversed(adapters)):
            result = self._result(shape, batch, layers, inside, state_rows)
            if shape.following:
                result, more = self._followed(shape, context, result)
                return Graph(context, [*inputs, *cache.inputs, *more], context.output(result), {})
            if shape.candidates and not shape.guesses:
                found = find_top_k(result, shape.candidates)
                if self._device_tokens and shape.candidates == 1 and not shape.drafts_from:
                    context.forward(self._device_tokens.store(found, result.shape[1]))
                best = with_logits(found, result)
                result = with_rows(best, result, in_full) if shape.in_full else best
        context.output(result)
        return Graph(context, [*inputs, *cache.inputs], result, inside.values)

    def _batch(self, context: Context, tokens: Tensor, outputs: int) -> Batch:
        """Return a batch of tokens I32, (n,), whose positions and outputs are inputs."""
        (n,), per_token = tokens.shape, self._model.positions_per_token
        return Batch(
            tokens,
            context.input("positions", (n,) if per_token == 1 else (per_token, n), GGMLType.I32),
            context.input("outputs", (outputs,), GGMLType.I32),
        )

    def _result(
        self,
        shape: GraphShape,
        batch: Batch,
        caches: Sequence[LayerCache],
        inside: GraphPoints,
        state_rows: Tensor,
    ) -> Tensor:
        """Return the logits or the hidden states of a batch's outputs, or an assistant's guesses.

        `state_rows`: where hidden states are kept for an assistant, or are read, if there is one.
        """
        if shape.guesses:
            return self._guessed(shape, batch, caches, state_rows)
        if shape.drafts_from:
            return self._model.draft_logits(batch, caches, shape.drafts_from)
        hidden = self._hidden(batch, caches, inside)
        if self._device_states:
            batch.context.forward(self._device_states.store(hidden, state_rows))
        return self._model.head(hidden) if shape.wants_logits else hidden

    def _guessed(
        self, shape: GraphShape, batch: Batch, caches: Sequence[LayerCache], state_rows: Tensor
    ) -> Tensor:
        """Return what an assistant guesses (guesses * tokens, 3), as `with_logits` does."""
        if self._device_states is None:
            raise ShapeError("no hidden states are kept for an assistant")
        hidden, found = self._device_states.load(state_rows), list[Tensor]()
        for _ in range(shape.guesses):
            logits, hidden = self._model.guess(batch, hidden, caches, shape.drafts_from)
            tokens, best = find_best(logits)
            found.append(best)
            batch = replace(batch, tokens=tokens)
        return _concatenated(found)

    def _followed(
        self, shape: GraphShape, context: Context, logits: Tensor
    ) -> tuple[Tensor, list[Tensor]]:
        """Return the best tokens of outputs, and of the tokens that follow these.

        Returns:
            F32, (n, 3), as of `with_logits`: first those of the logits; and the inputs of the
            tokens that follow.
        """
        tokens, best = find_best(logits)
        found, inputs = [best], list[Tensor]()
        for count, views in shape.following:
            batch = self._batch(context, tokens.strided((count,), ()), count)
            cache = self._cache.build(context, count, views)
            inputs += [batch.positions, batch.outputs, *cache.inputs]
            hidden = self._model.hidden(batch, cache.layers)
            tokens, best = find_best(self._model.head(hidden))
            found.append(best)
        return _concatenated(found), inputs

    def _seen_arrays(self, captured: CapturedRows) -> list[Data]:
        layers = {point.layer for point in captured.points if point.name == ATTENTIONS}
        found: list[Data] = []
        if captured.seen:
            found += self._cache.seen_arrays(captured.seen, captured.shape.columns, layers)
        if captured.states:
            found += self._cache.seen_state_arrays(captured.states)
        return found

    def _hidden(self, batch: Batch, caches: Sequence[LayerCache], inside: GraphPoints) -> Tensor:
        """Return the final hidden states of a batch's outputs; change and capture values."""
        capture, points = inside.capture, inside.points
        given = replace(batch, outputs=capture.every) if capture else batch
        with self.points.seen(points, inside.see):
            states = self._model.hidden(given, caches)
        if self.points.last in points:
            states = inside.see(self.points.last, states)
        return states.rows(batch.outputs) if capture else states


def _no_image(context: Context, tokens: int, features: int) -> CrossAttentionInputs:
    """Return what layers with cross-attention read beside tokens that attend to no image.

    Without points such layers are skipped. With these inputs they return what they read.
    """
    return CrossAttentionInputs(
        context.constant(np.zeros((1, features))),
        context.host.from_halves(np.zeros((tokens, 1), np.float16)),
        context.constant(np.zeros((tokens, 1))),
    )


def _concatenated(parts: list[Tensor]) -> Tensor:
    return reduce(lambda every, each: every.concat(each, 0), parts)


def _state_rows(step: StepInputs, states: DeviceStates) -> Data:
    """Return which rows of hidden states a step reads or writes."""
    if step.state_rows is None:
        return np.full(len(step.outputs), states.spare, np.int64)
    rows = np.where(step.state_rows < 0, states.spare, step.state_rows)
    return rows.astype(np.int32) if step.guesses else rows
