"""Sampling the slow and obvious way: sort everything, add up in float64."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray


def descending(values: NDArray[np.float32]) -> NDArray[np.intp]:
    """Token ids by value, equal ones by id."""
    return np.argsort(-values, kind="stable")


def softmax(values: NDArray[np.float32], temperature: float = 1.0) -> NDArray[np.float64]:
    scaled = values.astype(np.float64) / temperature
    weights = np.exp(scaled - scaled.max())
    return weights / weights.sum()


def nucleus(weights: NDArray[np.float32], p: float) -> list[int]:
    """The ids that top-p keeps, best first."""
    kept: list[int] = []
    before = 0.0
    limit = p * sum(weights[descending(weights)].tolist())
    for token in descending(weights).tolist():
        if before > limit:
            break
        kept.append(token)
        before += float(weights[token])
    return kept


def frequencies(tokens: list[int], size: int) -> NDArray[np.float64]:
    return np.bincount(tokens, minlength=size) / len(tokens)


def close(observed: NDArray[np.float64], expected: NDArray[np.float64], count: int) -> bool:
    """Whether each frequency of `count` draws is within five standard deviations."""
    deviation = np.sqrt(expected * (1.0 - expected) / count)
    return bool(np.all(np.abs(observed - expected) <= 5.0 * deviation + 1e-9))
