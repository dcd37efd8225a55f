"""Activations that few models have; `Tensor` has the usual ones."""

from __future__ import annotations

from tampu.ml.checks import SINGLE, require
from tampu.ml.library import gg
from tampu.ml.tensor import Tensor

_SLOPE = 1.702  # of the sigmoid that is nearest to the normal distribution


def gelu_quick(x: Tensor) -> Tensor:
    """Return x · sigmoid(1.702 x), by SiLU: ggml has it only in a half-precision table."""
    return (x * _SLOPE).silu() * (1 / _SLOPE)


def xielu(x: Tensor, negative: float, positive: float, slope: float, bound: float) -> Tensor:
    """Return xIELU (arXiv:2411.13010), F32, of the shape of x.

    It is softplus(positive) · x² + slope · x above 0, and below it (slope + softplus(negative))
    · (exp(min(x, bound)) - 1 - x) + slope · x.

    Raises:
        ShapeError: unless x is F32.
    """
    require(x._is(SINGLE), "xielu", x)
    numbers = (negative, positive, slope, bound)
    return x._like(gg.ggml_xielu(x._context().arena, x.pointer, *numbers))
