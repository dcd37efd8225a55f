"""Finding the k best tokens among a whole vocabulary of logits without sorting it.

Write the logits as a table and take the maximum of each column. The k-th largest of these maxima
is reached by at least k logits. So all of the best k are at or above it, and they are in columns
whose maximum is: the result is exact, and only these columns are searched.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from tampu.errors import ComputeError
from tampu.sampling.transforms import Floats

Mask = NDArray[np.uint32]
"""Tokens that a grammar allows: bit i % 32 of word i // 32 is set if token i may come."""

_ROWS = 128  # divides the vocabulary of most models
_FEWEST_ROWS = 8  # shorter columns bound no better than a partition of everything
_FEW_WORDS = 256  # of a mask
_LOWEST = np.finfo(np.float32).min  # anything below is -inf: a forbidden token


@dataclass(slots=True)  # not frozen: that takes three times as long to make
class Candidates:
    """Tokens that may be sampled, in their logits' descending order.

    Attributes:
        descending: the logits; equal ones are in the order of their tokens.
        tokens: the ids in ascending order; `logits` has the same order.
    """

    descending: Floats
    tokens: NDArray[np.intp]
    logits: Floats

    @classmethod
    def of(cls, logits: Floats, tokens: NDArray[np.intp]) -> Candidates:
        """Order tokens (ascending ids) by their logits."""
        return cls(np.sort(logits)[::-1], tokens, logits)

    def token(self, rank: int) -> int:
        """Return the id at `rank` of the descending order."""
        value = self.descending[rank]
        same = (self.logits == value).nonzero()[0]
        earlier = np.count_nonzero(self.descending[:rank] == value) if len(same) > 1 else 0
        return int(self.tokens[same[earlier]])

    def tokens_at(self, ranks: NDArray[np.intp]) -> NDArray[np.intp]:
        """Return the ids at some ranks of the descending order."""
        order = np.argsort(-self.logits, kind="stable")  # equals by their ids
        return self.tokens[order[ranks]]


def require_finite(best: float) -> None:
    """Raise an error if the largest logit is not finite.

    Raises:
        ComputeError: it is NaN (then any logit was) or infinite.
    """
    if not math.isfinite(best):
        raise ComputeError(
            f"the largest logit is {best}: the model's output is unusable;"
            " check the model's file, or whether every token was forbidden"
        )


def best_of(logits: Floats, k: int) -> Candidates:
    """Return at least the `k` best tokens; fewer only if all others are forbidden (-inf).

    Raises:
        ComputeError: a logit is NaN or +inf, or all are -inf.
    """
    rows = min(_ROWS, len(logits) // (4 * k))
    if rows < _FEWEST_ROWS:
        require_finite(float(logits.max()))
        k = min(k, len(logits))
        return at_or_above(logits, float(np.partition(logits, -k)[-k]))
    columns = len(logits) // rows
    table, rest = logits[: rows * columns].reshape(rows, columns), logits[rows * columns :]
    maxima = table.max(axis=0)
    best = maxima.max()
    require_finite(float(np.maximum(best, rest.max()) if len(rest) else best))
    bound = max(np.partition(maxima, -k)[-k], _LOWEST)
    chosen = (maxima >= bound).nonzero()[0]
    part = table[:, chosen].ravel()
    places = (part >= bound).nonzero()[0]
    row, column = np.divmod(places, len(chosen))
    tokens, values = row * columns + chosen[column], part[places]
    if len(rest):
        tail = at_or_above(rest, float(bound))
        tokens = np.concatenate([tokens, tail.tokens + rows * columns])
        values = np.concatenate([values, tail.logits])
    return Candidates.of(values, tokens)


def at_or_above(logits: Floats, bound: float) -> Candidates:
    """Return all tokens whose logit is `bound` or more, without forbidden ones (-inf)."""
    tokens = (logits >= max(bound, float(_LOWEST))).nonzero()[0]
    return Candidates.of(logits[tokens], tokens)


def few_tokens(mask: Mask) -> NDArray[np.intp] | None:
    """Return the tokens that a mask allows, ascending; None if they are many."""
    words = mask.nonzero()[0]
    if len(words) > _FEW_WORDS:
        return None
    bits = np.unpackbits(mask[words].view(np.uint8), bitorder="little").reshape(-1, 32)
    word, bit = bits.nonzero()
    return words[word] * 32 + bit


def is_allowed(mask: Mask, token: int) -> bool:
    """Return whether a mask allows a token."""
    return bool(mask[token >> 5] >> np.uint32(token & 31) & 1)


def filtered(candidates: Candidates, mask: Mask) -> Candidates:
    """Return those of the candidates that a mask allows."""
    tokens = candidates.tokens
    kept = (mask[tokens >> 5] >> (tokens & 31).astype(np.uint32) & 1).nonzero()[0]
    return Candidates.of(candidates.logits[kept], tokens[kept])


def masked(logits: Floats, mask: Mask, out: Floats) -> Floats:
    """Return the logits with -inf for all tokens that a mask forbids, in `out`."""
    allowed = np.unpackbits(mask.view(np.uint8), count=len(logits), bitorder="little")
    np.copyto(out, -np.inf)
    np.copyto(out, logits, where=allowed.view(np.bool_))
    return out
