"""What one step is given: its tokens and what else the graph of its shape reads."""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np
import numpy.typing as npt

from tampu.kvcache import Segment
from tampu.runner.adapters import TokenAdapters
from tampu.runner.capture import CapturedRows
from tampu.runner.steering import StepSteering

CANDIDATES = (1, 64, 256)
"""How many of the best logits graphs may return: few numbers, so that few graphs differ by them."""


@dataclass(frozen=True, slots=True)
class CrossAttentionRows:
    """The rows that layers with cross-attention read in one step.

    Attributes:
        rows: F32, (rows, features): of all images that a token of the batch attends to.
        visible: for each token, (start, end) of the rows of each image that it attends to.
    """

    rows: npt.NDArray[np.float32]
    visible: list[tuple[tuple[int, int], ...]]


@dataclass(frozen=True, slots=True)
class NextTokens:
    """A token more of the first sequences of a step, in the same graph: the best one so far.

    Attributes:
        positions: I32, (n,), or (k, n) for models with k coordinates.
        segments: of these sequences, of one token each.
    """

    positions: npt.NDArray[np.int32]
    segments: list[Segment]


@dataclass(frozen=True, slots=True)
class StepInputs:
    """One step's data, except for tokens that are being sampled.

    Attributes:
        tokens: I32, (n,); may be filled in until the step is launched.
        sources: I32, (n,), filled in like them: where each token comes from, i for token i, n + m
            for the one that the step before chose from its output m and left on the device.
        positions: I32, (n,), or (k, n) for models with k coordinates.
        outputs: I32, (m,): rows of the tokens with an output.
        segments: of the sequences, in the order of the tokens.
        wants_logits: whether outputs are logits, else final hidden states.
        embeddings: F32, (rows, features): of images; None without any.
        embedded_rows: I64, (rows,): rows of the tokens that they replace.
        crossing: for layers with cross-attention; None if no token attends to an image.
        adapters: None if no request chose any.
        candidates: how many of the best logits of each output are enough; 0: all are needed.
        in_full: I32, (f,): outputs that need all logits besides, if candidates are enough for the
            others; the last one may be repeated. None: none does.
        captured: what is returned besides; None if no request captures anything.
        steering: of values inside the model; None if no request changes any.
        drafts_from: multi-token prediction computes it, with the logits of so many of the first
            tokens of the vocabulary; 0: the model does.
        guesses: how many tokens after each an assistant guesses; 0: another part computes it.
        state_rows: I64, (m,): where the final hidden states of outputs are kept for an assistant,
            or where it reads them; None: they are not needed again.
        following: what a draft model computes in the same graph, one after the other: tokens that
            were the best of the outputs before. The sequences have an output each.
    """

    tokens: npt.NDArray[np.int32]
    sources: npt.NDArray[np.int32] = field(init=False)
    positions: npt.NDArray[np.int32]
    outputs: npt.NDArray[np.int32]
    segments: list[Segment]
    wants_logits: bool = True
    embeddings: npt.NDArray[np.float32] | None = None
    embedded_rows: npt.NDArray[np.int64] | None = None
    crossing: CrossAttentionRows | None = None
    adapters: TokenAdapters | None = None
    candidates: int = 0
    in_full: npt.NDArray[np.int32] | None = None
    captured: CapturedRows | None = None
    steering: StepSteering | None = None
    drafts_from: int = 0
    guesses: int = 0
    state_rows: npt.NDArray[np.int64] | None = None
    following: tuple[NextTokens, ...] = ()

    def __post_init__(self) -> None:
        """Take all tokens as given."""
        object.__setattr__(self, "sources", np.arange(len(self.tokens), dtype=np.int32))


def most_in_full(outputs: int) -> int:
    """Return how many outputs may be in full beside candidates of the others: a power of two."""
    return 1 << (outputs - 1).bit_length() - 1 if outputs > 1 else 0


def crossing_data(crossing: CrossAttentionRows) -> list[npt.NDArray[np.generic]]:
    """Return the rows, their mask and which tokens see any, as layers with cross-attention read."""
    mask = np.full((len(crossing.visible), len(crossing.rows)), -np.inf, np.float16)
    seeing = np.zeros((len(crossing.visible), 1), np.float32)
    for token, visible in enumerate(crossing.visible):
        for start, end in visible:  # the same image twice counts twice
            mask[token, start:end] = np.logaddexp(mask[token, start:end], np.float16(0))
        seeing[token] = bool(visible)
        if not visible:
            mask[token] = 0
    return [crossing.rows, mask, seeing]
