"""What steps must have in common to use the same graph."""

from __future__ import annotations

from collections.abc import Iterable
from typing import NamedTuple

from tampu.kvcache import CacheView
from tampu.ml import Context, GGMLType
from tampu.nn.lora import AdapterRows
from tampu.nn.points import Point
from tampu.runner.capture import NOTHING_SEEN, SeenShape
from tampu.runner.steering import UNSTEERED, SteeringShape
from tampu.runner.step_inputs import StepInputs


class GraphShape(NamedTuple):
    """What steps must have in common to use the same graph.

    Attributes:
        tokens: in the batch.
        views: what the batch reads in each group of the cache.
        outputs: the number of tokens with an output.
        wants_logits: whether outputs are logits, else final hidden states.
        candidates: how many of the best logits, as `with_logits` returns them; 0: all.
        in_full: outputs of which all logits are returned besides.
        embedded: (rows, features) of images that replace tokens.
        crossed: (rows, features) of images that layers with cross-attention read.
        adapters: of each token, at most, chosen by requests.
        captured: the points whose values are returned besides.
        captured_rows: of how many tokens.
        seen: what is seen in the cache besides.
        steering: the points at which values are changed.
        drafts_from: multi-token prediction computes it, with the logits of so many of the first
            tokens of the vocabulary; 0: the model does.
        guesses: how many tokens after each an assistant guesses; 0: another part computes it.
        following: of each `NextTokens`, their number and what they read in the cache.
    """

    tokens: int
    views: tuple[CacheView, ...]
    outputs: int
    wants_logits: bool
    candidates: int = 0
    in_full: int = 0
    embedded: tuple[int, ...] = ()
    crossed: tuple[int, ...] = ()
    adapters: int = 0
    captured: tuple[Point, ...] = ()
    captured_rows: int = 0
    seen: SeenShape = NOTHING_SEEN
    steering: SteeringShape = UNSTEERED
    drafts_from: int = 0
    guesses: int = 0
    following: tuple[tuple[int, tuple[CacheView, ...]], ...] = ()

    @classmethod
    def of(
        cls,
        step: StepInputs,
        views: tuple[CacheView, ...],
        following: Iterable[tuple[CacheView, ...]] = (),
    ) -> GraphShape:
        """Return the shape of a step that reads these parts of the cache.

        `following`: the parts that each of the tokens that follow read.
        """
        return cls(
            len(step.tokens),
            views,
            len(step.outputs),
            step.wants_logits,
            step.candidates,
            0 if step.in_full is None else len(step.in_full),
            () if step.embeddings is None else step.embeddings.shape,
            () if step.crossing is None else step.crossing.rows.shape,
            0 if step.adapters is None else step.adapters.places.shape[1],
            () if step.captured is None else step.captured.points,
            0 if step.captured is None else len(step.captured.rows),
            NOTHING_SEEN if step.captured is None else step.captured.shape,
            UNSTEERED if step.steering is None else step.steering.tables.shape,
            step.drafts_from,
            step.guesses,
            tuple(
                (len(each.segments), read)
                for each, read in zip(step.following, following, strict=True)
            ),
        )


def adapter_inputs(context: Context, rows: int, count: int) -> AdapterRows:
    """Return the inputs by which each of `rows` rows chooses `count` adapters."""
    return AdapterRows(
        context.input("adapters", (rows, count), GGMLType.I32),
        context.input("adapter_scales", (rows, count, 1), GGMLType.F32),
    )
