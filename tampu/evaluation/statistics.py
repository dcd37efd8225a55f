"""How two models' logits at the same positions differ: divergence, agreement and perplexity.

The formulas are those of llama.cpp's perplexity tool. The error of a mean is the standard error,
with positions taken as independent of each other.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Self

import numpy as np
import numpy.typing as npt

from tampu.errors import ComputeError

Numbers = npt.NDArray[np.float64]
Tokens = npt.NDArray[np.int32]
_ROWS = 16  # that are converted to float64 at a time


@dataclass(frozen=True, slots=True)
class Positions:
    """What was measured at each scored position; every array has one entry for each.

    Attributes:
        tokens: the token of the text, I32.
        kl: the Kullback-Leibler divergence of B's distribution from A's, in nats, float64.
        logprobs_a: the natural log-probability of the token in A, float64.
        logprobs_b: the same in B.
        best_a: the most probable token in A, I32.
        best_b: the same in B.
    """

    tokens: Tokens
    kl: Numbers
    logprobs_a: Numbers
    logprobs_b: Numbers
    best_a: Tokens
    best_b: Tokens

    @classmethod
    def of(
        cls, tokens: Tokens, a: npt.NDArray[np.float32], b: npt.NDArray[np.float32]
    ) -> Positions:
        """Compare the logits before each of some tokens, float32, (tokens, vocabulary).

        Raises:
            ComputeError: if a logit is NaN or infinite.
        """
        parts = [
            cls._of(tokens[at : at + _ROWS], a[at : at + _ROWS], b[at : at + _ROWS])
            for at in range(0, len(tokens), _ROWS)
        ]
        return cls.joined(parts)

    @classmethod
    def _of(
        cls, tokens: Tokens, a: npt.NDArray[np.float32], b: npt.NDArray[np.float32]
    ) -> Positions:
        logprobs_a, logprobs_b = log_softmax(a), log_softmax(b)
        kl = (np.exp(logprobs_a) * (logprobs_a - logprobs_b)).sum(axis=-1)
        rows = np.arange(len(tokens))
        return cls(
            tokens,
            np.maximum(kl, 0.0),  # rounding makes it as little as -1e-16
            logprobs_a[rows, tokens],
            logprobs_b[rows, tokens],
            a.argmax(axis=-1).astype(np.int32),
            b.argmax(axis=-1).astype(np.int32),
        )

    @classmethod
    def joined(cls, parts: Sequence[Positions]) -> Positions:
        """Return the positions of several parts of a text."""
        return cls(
            np.concatenate([part.tokens for part in parts]),
            np.concatenate([part.kl for part in parts]),
            np.concatenate([part.logprobs_a for part in parts]),
            np.concatenate([part.logprobs_b for part in parts]),
            np.concatenate([part.best_a for part in parts]),
            np.concatenate([part.best_b for part in parts]),
        )

    @property
    def same_best(self) -> npt.NDArray[np.bool_]:
        """Where both have the same most probable token."""
        return np.equal(self.best_a, self.best_b)


def log_softmax(logits: npt.NDArray[np.float32]) -> Numbers:
    """Return natural log-probabilities, float64, of rows of logits.

    Raises:
        ComputeError: if a logit is NaN or infinite.
    """
    values = logits.astype(np.float64)
    if not np.isfinite(values).all():
        raise ComputeError("the model computed NaN or infinite logits")
    values -= values.max(axis=-1, keepdims=True)
    values -= np.log(np.exp(values).sum(axis=-1, keepdims=True))
    return values


@dataclass(frozen=True, slots=True)
class Estimate:
    """A mean over positions, and its standard error."""

    value: float
    error: float

    @classmethod
    def mean(cls, values: Numbers) -> Self:
        """Return the mean of values."""
        mean = float(values.mean())
        variance = max(float((values**2).mean()) - mean**2, 0.0)
        return cls(mean, math.sqrt(variance / max(len(values) - 1, 1)))

    @classmethod
    def perplexity(cls, logprobs: Numbers) -> Self:
        """Return the perplexity of tokens with these log-probabilities."""
        loss = Estimate.mean(-logprobs)
        value = math.exp(loss.value)
        return cls(value, value * loss.error)


@dataclass(frozen=True, slots=True)
class Divergence:
    """The distribution of the divergences of all positions, in nats."""

    mean: Estimate
    median: float
    percentile_99: float
    maximum: float

    @classmethod
    def of(cls, kl: Numbers) -> Self:
        """Summarize the divergences of positions."""
        median, percentile_99 = np.quantile(kl, (0.5, 0.99))
        return cls(Estimate.mean(kl), float(median), float(percentile_99), float(kl.max()))
