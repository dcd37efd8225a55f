"""What the engine computes, the slow and obvious way, in NumPy."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import numpy.typing as npt

from tampu.ml import RopeMode, RopeScaling

Floats = npt.NDArray[Any]


def silu(x: Floats) -> Floats:
    return x / (1 + np.exp(-x))


def gelu(x: Floats) -> Floats:
    return 0.5 * x * (1 + np.tanh(math.sqrt(2 / math.pi) * (x + 0.044715 * x**3)))


def softmax(x: Floats) -> Floats:
    weights = np.exp(x - x.max(-1, keepdims=True))
    return weights / weights.sum(-1, keepdims=True)


def rms_norm(x: Floats, weight: Floats, epsilon: float) -> Floats:
    return x / np.sqrt((x**2).mean(-1, keepdims=True) + epsilon) * weight


def rope(
    x: Floats,
    positions: npt.NDArray[np.integer],
    *,
    dimensions: int,
    base: float,
    mode: RopeMode,
    scaling: RopeScaling,
    factors: Floats | None = None,
) -> Floats:
    """Rotate the pairs of (tokens, heads, features): arXiv:2104.09864, YaRN arXiv:2309.00071."""
    pair = np.arange(dimensions // 2)
    frequency = base ** (-2.0 * pair / dimensions) / (1.0 if factors is None else factors)
    angle = positions[:, None] * frequency
    magnitude = scaling.magnitude
    if scaling.extrapolation:
        kept = scaling.extrapolation * _kept(pair, dimensions, base, scaling)
        angle = angle * (scaling.frequency_scale * (1 - kept) + kept)
        magnitude *= 1 + 0.1 * math.log(1 / scaling.frequency_scale)
    else:
        angle = angle * scaling.frequency_scale
    cos, sin = np.cos(angle)[:, None] * magnitude, np.sin(angle)[:, None] * magnitude
    first = pair if mode is RopeMode.HALVES else 2 * pair
    second = first + (dimensions // 2 if mode is RopeMode.HALVES else 1)
    rotated = x.copy()
    rotated[..., first] = x[..., first] * cos - x[..., second] * sin
    rotated[..., second] = x[..., first] * sin + x[..., second] * cos
    return rotated


def _kept(
    pair: npt.NDArray[np.integer], dimensions: int, base: float, scaling: RopeScaling
) -> Floats:
    """Return how much of each frequency YaRN keeps: 1 for the fast ones, 0 for the slow ones."""

    def pair_of(rotations: float) -> float:
        length = scaling.original_context / (rotations * 2 * math.pi)
        return dimensions * math.log(length) / (2 * math.log(base))

    fast = max(0, math.floor(pair_of(scaling.beta_fast)))
    slow = min(dimensions - 1, math.ceil(pair_of(scaling.beta_slow)))
    return 1 - np.clip((pair - fast) / max(0.001, slow - fast), 0, 1)
