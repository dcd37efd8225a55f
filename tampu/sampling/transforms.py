"""The steps of sampling as pure functions on arrays; none of them knows a token id.

`weights` are unnormalized probabilities: the best token's is 1. The filters get them in
descending order; those that return a number keep that many of the first, at least one.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float32]
Doubles = NDArray[np.float64]

COLDEST = 1e-7  # temperatures below this would overflow; the best token wins long before


def penalized(
    logits: Floats, counts: Floats, *, repeat: float, presence: float, frequency: float
) -> Floats:
    """Return the logits of tokens that occurred `counts` times, made less likely.

    The formula is that of CTRL (Keskar et al. 2019) for `repeat`, sign-aware as everywhere
    today, and of OpenAI's API for the other two; the order is llama.cpp's.
    """
    factor = np.where(logits > 0, np.float32(1.0 / repeat), np.float32(repeat))
    logits = logits * factor
    if frequency or presence:
        logits -= counts * np.float32(frequency) + np.float32(presence)
    return logits


def top_n_sigma(logits: Floats, n: float) -> float:
    """Return the lowest logit to keep: `n` standard deviations below the best.

    Tang et al. 2024; as in llama.cpp forbidden tokens (-inf) do not count.
    """
    possible = logits[logits > -np.inf]
    if not len(possible):
        return -np.inf
    return float(possible.max()) - n * float(possible.std(dtype=np.float64))


@np.errstate(over="ignore")  # a difference too large is -inf, a weight of 0
def softmax_weights(
    values: Floats, best: np.float32, temperature: float, out: Floats | None = None
) -> Floats:
    """Return exp((values - best) / temperature), in `out` if given; 1 for the best value."""
    out = np.subtract(values, best, out=out)
    if temperature != 1.0:
        np.multiply(out, np.float32(1.0 / max(temperature, COLDEST)), out=out)
    return np.exp(out, out=out)


def cumsum(weights: Floats) -> Doubles:
    """Return the sums of the first one, two, three ... weights."""
    return np.add.accumulate(weights, dtype=np.float64)  # faster than `cumsum` of few


def top_p(cumulative: Doubles, p: float) -> int:
    """Count the best tokens up to and including the one at which their sum exceeds `p`."""
    if p >= 1.0:
        return len(cumulative)
    return min(int(cumulative.searchsorted(p * cumulative[-1], "right")) + 1, len(cumulative))


def min_p(weights: Floats, p: float) -> int:
    """Count the tokens with at least `p` times the weight of the best."""
    if p <= 0.0:
        return len(weights)
    return max(int(np.count_nonzero(weights >= np.float32(p) * weights[0])), 1)


def typical_p(weights: Floats, p: float) -> NDArray[np.intp]:
    """Return, ascending, the ranks of the locally typical tokens (Meister et al. 2022).

    Tokens are taken in the order of the distance between their surprise and the entropy of the
    distribution, up to and including the one at which their sum exceeds `p`.
    """
    positive = weights[weights > 0].astype(np.float64)
    probabilities = positive / positive.sum()
    surprise = -np.log(probabilities)
    distance = np.abs(surprise - (probabilities * surprise).sum())
    order = np.argsort(distance, kind="stable")
    kept = top_p(np.add.accumulate(probabilities[order]), p)
    return np.sort(order[:kept])


def xtc(weights: Floats, threshold: float) -> int:
    """Count the best tokens to leave out ("exclude top choices", as in llama.cpp).

    Those are all whose probability is `threshold` or more, except the least likely of them.
    """
    least = threshold * float(weights.sum(dtype=np.float64))
    return max(int(np.count_nonzero(weights >= least)) - 1, 0)


def multinomial(cumulative: Doubles, share: float) -> int:
    """Return the index at which the cumulative sum exceeds `share` of the total.

    With a uniformly random share from 0 to 1 this samples an index with the probability of its
    weight; an index of weight 0 is never returned.
    """
    total = cumulative[-1]
    index = int(cumulative.searchsorted(share * total, "right"))
    return index if index < len(cumulative) else int(cumulative.searchsorted(total))
