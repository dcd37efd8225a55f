"""The steps of sampling as pure functions on arrays; none of them knows a token id.

`weights` are unnormalised probabilities: the best token's is 1. The filters get them in
descending order and return how many to keep, always at least one, because what they keep is a
prefix.
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
    return logits * factor - (counts * np.float32(frequency) + np.float32(presence))


def weigh(
    values: Floats, best: np.float32, temperature: float, out: Floats | None = None
) -> Floats:
    """Return exp((values - best) / temperature), in `out` if given; 1 for the best value."""
    with np.errstate(over="ignore"):  # a difference too large is -inf, a weight of 0
        out = np.subtract(values, best, out=out)
        if temperature != 1.0:
            np.multiply(out, np.float32(1.0 / max(temperature, COLDEST)), out=out)
    return np.exp(out, out=out)


def running_total(weights: Floats) -> Doubles:
    """Return the sums of the first one, two, three ... weights."""
    return weights.astype(np.float64).cumsum()


def top_p(running: Doubles, p: float) -> int:
    """Count the best tokens up to and including the one that takes their share beyond `p`."""
    if p >= 1.0:
        return len(running)
    return min(int(running.searchsorted(p * running[-1], "right")) + 1, len(running))


def min_p(weights: Floats, p: float) -> int:
    """Count the tokens with at least `p` times the weight of the best."""
    if p <= 0.0:
        return len(weights)
    return max(int(np.count_nonzero(weights >= np.float32(p) * weights[0])), 1)


def typical_p(weights: Floats, p: float) -> NDArray[np.intp]:
    """Return, ascending, the ranks of the locally typical tokens (Meister et al. 2022).

    Tokens are taken in the order of the distance between their surprise and the entropy of the
    distribution, up to and including the one that takes their share beyond `p`.
    """
    positive = weights[weights > 0].astype(np.float64)
    probabilities = positive / positive.sum()
    surprise = -np.log(probabilities)
    distance = np.abs(surprise - (probabilities * surprise).sum())
    order = np.argsort(distance, kind="stable")
    kept = top_p(probabilities[order].cumsum(), p)
    return np.sort(order[:kept])


def drawn(running: Doubles, share: float) -> int:
    """Return the index whose weight takes the running total beyond `share` of the whole.

    With a share that is random, uniformly from 0 to 1, this draws an index with the probability
    of its weight; one of weight 0 never.
    """
    whole = running[-1]
    index = int(running.searchsorted(share * whole, "right"))
    return index if index < len(running) else int(running.searchsorted(whole))
