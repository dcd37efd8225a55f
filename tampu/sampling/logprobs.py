"""Log-probabilities of tokens from raw logits, before any transform of sampling."""

from __future__ import annotations

import math

import numpy as np
from numpy.typing import NDArray

from tampu.sampling.candidates import best_of


def top_logprobs(
    logits: NDArray[np.float32], token: int, count: int
) -> tuple[float, list[tuple[int, float]]]:
    """Return the natural log-probability of `token` and the `count` best tokens with theirs.

    Args:
        logits: (vocabulary,), float32, as the model gave them.
        token: the id that was chosen.
        count: how many of the best to list; `token` is among them only if it is one of the best.

    Returns:
        The log-probability of `token`, and pairs of id and log-probability in descending order,
        equal ones in the order of their ids.

    Raises:
        ComputeError: a logit is NaN or +inf, or all are -inf.
    """
    candidates = best_of(logits, max(count, 1))
    best = candidates.descending[0]
    weights = np.subtract(logits, best)
    surprise = math.log(float(np.exp(weights, out=weights).sum()))  # the best token's
    listed = [
        (candidates.token(rank), float(candidates.descending[rank]) - float(best) - surprise)
        for rank in range(min(count, len(candidates.descending)))
    ]
    return float(logits[token]) - float(best) - surprise, listed


def entropy(logits: NDArray[np.float32]) -> float:
    """Return the entropy of the whole distribution of logits (vocabulary,), in nats.

    With weights w = exp(logit - best) and their sum W it is log W - sum(w * (logit - best)) / W.
    """
    below = np.subtract(logits, logits.max(), dtype=np.float64)
    weights = np.exp(below)
    total = float(weights.sum())
    below[weights == 0] = 0.0  # else 0 * -inf, which is NaN
    return max(math.log(total) - float(np.dot(weights, below)) / total, 0.0)
