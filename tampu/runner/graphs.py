"""Graphs of the model by shape, built once and used again with other inputs."""

from __future__ import annotations

import logging
from collections import OrderedDict
from concurrent.futures import Future
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from tampu.errors import TampuError
from tampu.kvcache import CausalCache, Segment
from tampu.kvcache.causal import FUSED_FROM
from tampu.ml import Backend, Context, GGMLType, Tensor
from tampu.ml.backend import Computed
from tampu.nn import Batch, Model

log = logging.getLogger("tampu.runner")

_KEPT = 32


class GraphShape(NamedTuple):
    """What two steps must have in common to use the same graph.

    Attributes:
        tokens: in the batch.
        history: cells that the batch reads, padded.
        outputs: tokens whose result is wanted.
        wants_logits: logits, else final hidden states.
    """

    tokens: int
    history: int
    outputs: int
    wants_logits: bool


@dataclass(frozen=True, slots=True)
class StepInputs:
    """One step's data, known but for the values of tokens that are being sampled.

    Attributes:
        tokens: I32, (n,).
        positions: I32, (n,).
        outputs: I32, (m,).
        segments: the sequences' parts, in the order of the tokens.
        wants_logits: logits, else final hidden states.
    """

    tokens: npt.NDArray[np.int32]
    positions: npt.NDArray[np.int32]
    outputs: npt.NDArray[np.int32]
    segments: list[Segment]
    wants_logits: bool = True


@dataclass(frozen=True, slots=True)
class _Graph:
    """A graph that is ready to be computed."""

    context: Context
    inputs: list[Tensor]
    result: Tensor


@dataclass(slots=True)
class GraphCounts:
    """How often graphs were built, used again and thrown away."""

    built: int = 0
    reused: int = 0
    evicted: int = 0


class Graphs:
    """Builds the model's graphs and computes steps with them."""

    def __init__(
        self, backend: Backend, model: Model, cache: CausalCache, *, reuse: bool = True
    ) -> None:
        self._backend = backend
        self._model = model
        self._cache = cache
        self._kept: OrderedDict[GraphShape, _Graph] = OrderedDict()
        self._limit = _KEPT if reuse else 0
        self._reserved = 0
        self.counts = GraphCounts()

    def reserve(self, tokens: int, outputs: int) -> None:
        """Allocate what the largest batches take: after this, no step allocates on the device.

        Args:
            tokens: the most tokens in a batch.
            outputs: the most tokens whose logits are wanted at once.

        Raises:
            OutOfMemoryError: if it does not fit.
        """
        history = self._cache.cells
        for count in {tokens, min(tokens, FUSED_FROM - 1)}:
            graph = self._build(GraphShape(count, history, min(outputs, count), wants_logits=True))
            try:
                self._backend.reserve(graph.context)
            finally:
                graph.context.close()
        self._reserved = self._backend.graph_bytes

    def submit(self, step: StepInputs) -> Future[Computed]:
        """Begin to compute a step; the result is one array (m, vocabulary or features)."""
        history = self._cache.history(step.segments)
        shape = GraphShape(len(step.tokens), history, len(step.outputs), step.wants_logits)
        graph = self._graph(shape)
        data = [step.tokens, step.positions, step.outputs]
        arrays = self._cache.arrays(step.segments, history).arrays
        inputs = list(zip(graph.inputs, [*data, *arrays], strict=True))
        return self._backend.submit(graph.context, inputs, [graph.result])

    def check_reservation(self) -> None:
        """Drop all graphs if the device's memory grew: theirs would lie where it was before."""
        if self._backend.graph_bytes != self._reserved:
            log.warning("a graph outgrew the reservation of %d bytes", self._reserved)
            self._reserved = self._backend.graph_bytes
            self.close()

    def close(self) -> None:
        """Wait for the graph that is computing, if any, and free them all."""
        if self._kept:
            self._backend.wait()
        while self._kept:
            self._kept.popitem()[1].context.close()

    def _graph(self, shape: GraphShape) -> _Graph:
        if shape in self._kept:
            self.counts.reused += 1
            self._kept.move_to_end(shape)
            return self._kept[shape]
        self.counts.built += 1
        graph = self._kept[shape] = self._build(shape)
        while len(self._kept) > max(self._limit, 2):  # one may be computing while one is planned
            self._kept.popitem(last=False)[1].context.close()
            self.counts.evicted += 1
        return graph

    def _build(self, shape: GraphShape) -> _Graph:
        context = self._backend.context()
        try:
            return self._built(shape, context)
        except TampuError:
            context.close()
            raise

    def _built(self, shape: GraphShape, context: Context) -> _Graph:
        batch = Batch(
            context.input("tokens", (shape.tokens,), GGMLType.I32),
            context.input("positions", (shape.tokens,), GGMLType.I32),
            context.input("outputs", (shape.outputs,), GGMLType.I32),
        )
        cache = self._cache.begin(context, shape.tokens, shape.history)
        result = self._model.hidden(batch, cache.layers)
        if shape.wants_logits:
            result = self._model.head(result)
        context.output(result)
        inputs = [batch.tokens, batch.positions, batch.outputs, *cache.inputs]
        return _Graph(context, inputs, result)
