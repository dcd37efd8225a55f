"""Sampling from a full vocabulary with top-p and min-p, but without sorting it.

Both filters keep a prefix of the tokens in descending order, and whether a token is in the prefix
follows from the token alone: top-p keeps it if the tokens before it have together at most p of the
mass, min-p if its own weight is large enough. So this is rejection sampling: a token is sampled
from everything, which takes one pass, and then accepted or rejected. An accepted token has the
right distribution. If not, the next is sampled from the tokens before it: those that follow
are rejected too. That takes 1 + ln(1 / p) rounds on average, whatever the distribution.
"""

from __future__ import annotations

import math

import numpy as np
from numpy.typing import NDArray

from tampu.sampling.chain import Uniform
from tampu.sampling.transforms import Doubles, Floats, cumsum, multinomial

_ROWS = 128  # divides the vocabulary of most models


class FullVocabulary:
    """Samples from the weights of a whole vocabulary; owns the buffers for it."""

    def __init__(self, vocabulary_size: int) -> None:
        self._kept = np.empty(vocabulary_size, np.float32)
        self._mask = np.empty(vocabulary_size, np.bool_)

    def sample(self, weights: Floats, top_p: float, min_p: float, random: Uniform) -> int:
        """Return a token, sampled by the weights of the tokens that the filters keep.

        Args:
            weights: (vocabulary,), unnormalized; the best token's is 1. Not changed.
            top_p: 1 keeps all.
            min_p: 0 keeps all.
            random: the source of random numbers.
        """
        columns = column_cumsum(weights)
        total = float(columns[-1])
        limit = top_p * total if top_p < 1.0 else math.inf
        if min_p > 0.0:
            weights = self._keep(np.greater_equal(weights, min_p, out=self._mask), weights)
            columns = column_cumsum(weights)
        while True:
            token = multinomial_in_columns(weights, columns, random.random())
            weight = weights[token]
            if weight >= total - limit:  # so much that what is before it cannot exceed the limit
                return token
            equal = np.equal(weights, weight, out=self._mask).nonzero()[0]
            weights = self._keep(np.greater(weights, weight, out=self._mask), weights)
            columns = column_cumsum(weights)
            fitting = _count_fitting(limit - float(columns[-1]), float(weight))
            if token in equal[:fitting]:
                return token
            if fitting > 0:  # the limit lies among equals: the first of them are kept
                weights[equal[:fitting]] = weight
                columns, limit = column_cumsum(weights), math.inf

    def _keep(self, mask: NDArray[np.bool_], weights: Floats) -> Floats:
        return np.multiply(weights, mask, out=self._kept)


def column_cumsum(weights: Floats) -> Doubles:
    """Return the cumulative sums of the table's columns, then those of the remaining weights."""
    columns = len(weights) // _ROWS
    table, rest = weights[: _ROWS * columns].reshape(_ROWS, columns), weights[_ROWS * columns :]
    totals = table.sum(axis=0)
    return cumsum(np.append(totals, rest.sum()) if len(rest) else totals)


def multinomial_in_columns(weights: Floats, columns: Doubles, share: float) -> int:
    """Return a token by its weight: first a column by its total, then a row of that column."""
    column = multinomial(columns, share)
    before = columns[column - 1] if column else 0.0
    within = float((share * columns[-1] - before) / (columns[column] - before))
    count = len(weights) // _ROWS
    if column == count:
        return _ROWS * count + multinomial(cumsum(weights[_ROWS * count :]), within)
    entries = weights[column : _ROWS * count : count]
    return column + count * multinomial(cumsum(entries), within)


def _count_fitting(room: float, weight: float) -> int:
    """Count the equal weights that begin within `room`."""
    return math.floor(room / weight) + 1 if room >= 0.0 else 0
