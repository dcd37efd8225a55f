"""Operations on feature maps: shapes are (channels, rows, columns)."""

from __future__ import annotations

from tampu.ml.checks import SINGLE, require
from tampu.ml.library import gg
from tampu.ml.tensor import Tensor


def average_pool(x: Tensor, side: int) -> Tensor:
    """Return the means of squares of so many rows and columns, which fill the map exactly."""
    fits = len(x.shape) == 3 and side >= 1 and not any(length % side for length in x.shape[1:])
    require(fits and x.type in SINGLE and x.is_contiguous, f"average_pool of {side}", x)
    channels, rows, columns = x.shape
    context = x._context()
    pointer = gg.ggml_pool_2d(
        context.arena, x.pointer, gg.GGML_OP_POOL_AVG, side, side, side, side, 0.0, 0.0
    )
    return context.wrap(pointer, (channels, rows // side, columns // side), x.type)
