"""Looks at what the layers of a model return for the token that is being written.

The run loop captures one step of one running request, which is computed as without it: its drafts,
its cache and its end do not change. Nothing is captured between two looks.
"""

from __future__ import annotations

import queue
import threading
import time
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Any, ClassVar

import msgspec
import numpy as np
import numpy.typing as npt

from tampu.engine.model_loader import LoadedModel
from tampu.engine.request import Lane, Request, Result
from tampu.ml import Tensor
from tampu.nn.points import LAYER_OUTPUTS, ROUTER_INDICES, ROUTER_LOGITS, Point, final_norm
from tampu.runner.capture import Positions, SequenceCapture, Values
from tampu.runner.loop import EngineLoop
from tampu.runner.pooled import compute_rows
from tampu.runner.sequence import Sequence
from tampu.sampling import top_logprobs

_STEP_SECONDS = 2.0  # a step that takes longer is looked at the next time
_TOP = 3  # tokens of each layer


class SeenLayer(msgspec.Struct, frozen=True):
    """What one layer makes of a token.

    Attributes:
        layer: its number, from 0.
        norm: the length of what it returns.
        tokens: the likeliest next ones if the model ended after it, as text, the likeliest first.
        probabilities: of these, 0 to 1.
        experts: those that its router chose; of a layer without a router none.
    """

    layer: int
    norm: float
    tokens: tuple[str, ...]
    probabilities: tuple[float, ...]
    experts: tuple[int, ...] = ()


class LayersSeen(Result, frozen=True):
    """What the layers make of the last token of a running request.

    Attributes:
        request: its number, in the order of getting a slot; 0: none writes an answer.
        position: of the token.
        token: its text.
        experts: how many each layer has that has any.
        layers: of text decoders all that return one row for each token.
        took_ms: how long the next tokens of all layers took to compute.
    """

    request: int = 0
    position: int = 0
    token: str = ""
    experts: int = 0
    layers: tuple[SeenLayer, ...] = ()
    took_ms: float = 0.0


class WatchLayers(Request[LayersSeen], frozen=True):
    """Return what the layers make of the token that is being written.

    Attributes:
        request: the number of the running request that is wanted; another one is taken if it has
            ended, or writes no answer.
    """

    runs_in: ClassVar[Lane] = "score"
    request: int = 0


@dataclass(frozen=True, slots=True)
class _Look:
    """The values of one token: (features,) at each point."""

    request: int
    position: int
    token: int
    values: Mapping[Point, npt.NDArray[Any]]


class LayerWatch:
    """Looks at the running requests of one model, one look at a time."""

    def __init__(self, model: LoadedModel, runner: EngineLoop) -> None:
        """Look at nothing yet."""
        self._model = model
        self._runner = runner
        self._turn = threading.Lock()

    def look(self, wanted: int) -> LayersSeen:
        """Wait for the next step of a request; return what its layers make of its last token."""
        seen: queue.SimpleQueue[_Look] = queue.SimpleQueue()
        with self._turn:
            points = self._points
            if not self._runner.call(lambda: self._attach(wanted, points, seen)):
                return LayersSeen()
            try:
                return self._read(seen.get(timeout=_STEP_SECONDS))
            except queue.Empty:  # it has ended, or its step takes long
                return LayersSeen()

    @cached_property
    def _known(self) -> Mapping[Point, int]:
        """The points of the model, with the features of each."""
        return self._runner.call(self._model.graphs.find_points)

    @cached_property
    def _points(self) -> tuple[Point, ...]:
        """The points that are looked at: what layers return, and what their routers choose."""
        return tuple(sorted(p for p in self._known if p.name in (LAYER_OUTPUTS, ROUTER_INDICES)))

    def _attach(
        self, wanted: int, points: tuple[Point, ...], seen: queue.SimpleQueue[_Look]
    ) -> bool:
        """Have the next step of a request captured; return whether there is one that writes."""
        writing = [each for each in self._model.scheduler.running if _writes(each)]
        if not writing:
            return False
        sequence = next((each for each in writing if each.number == wanted), writing[-1])

        def take(positions: Positions, values: Mapping[Point, Values]) -> None:
            if sequence.watch is watch:
                sequence.watch = None
            position = int(positions[0])  # those after it may be drafts that are wrong
            token = int(sequence.tokens[position])
            rows = {point: rows[0] for point, rows in values.items()}
            seen.put(_Look(sequence.number, position, token, rows))

        sequence.watch = watch = SequenceCapture(points, None, take)
        return True

    def _read(self, look: _Look) -> LayersSeen:
        graphs, tokenizer = self._model.graphs, self._model.tokenizer
        outputs = {p.layer: row for p, row in look.values.items() if p.name == LAYER_OUTPUTS}
        chosen = {p.layer: row for p, row in look.values.items() if p.name == ROUTER_INDICES}

        def head(x: Tensor) -> Tensor:
            return graphs.model.head(final_norm(graphs.model, x))

        began_ns = time.perf_counter_ns()
        logits = compute_rows(graphs.backend, head, np.stack([*outputs.values()]))
        layers = []
        for (layer, row), own in zip(outputs.items(), logits, strict=True):
            tokens, logprobs = zip(*top_logprobs(own, 0, _TOP)[1], strict=True)
            layers.append(
                SeenLayer(
                    layer,
                    float(np.linalg.norm(row)),
                    tuple(tokenizer.token_text(int(token)) for token in tokens),
                    tuple(np.exp(logprobs).tolist()),
                    tuple(map(int, chosen.get(layer, ()))),
                )
            )
        return LayersSeen(
            look.request,
            look.position,
            tokenizer.token_text(look.token),
            max((n for p, n in self._known.items() if p.name == ROUTER_LOGITS), default=0),
            tuple(layers),
            (time.perf_counter_ns() - began_ns) * 1e-6,
        )


def _writes(sequence: Sequence) -> bool:
    """Whether the next step of a request computes a token of its answer."""
    is_answering = sequence.generated > 0 and not sequence.is_prefilling
    return is_answering and sequence.collector is None and sequence.finish is None
