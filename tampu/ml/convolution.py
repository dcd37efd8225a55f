"""The patches that a convolution over a map multiplies by its kernel."""

from __future__ import annotations

from tampu.ml.checks import require
from tampu.ml.library import gg
from tampu.ml.tensor import Tensor
from tampu.ml.types import GGMLType

_FLAT_F32 = (True, gg.GGML_TYPE_F32)  # a map has two dimensions; the type of the result


def map_patches(x: Tensor, kernel: Tensor, stride: int, padding: int) -> Tensor:
    """Return what lies under a kernel at each of its places, with zeros around the map.

    Args:
        x: F32, (channels, rows, columns).
        kernel: (outputs, channels, height, width), of which only the shape matters.
        stride: from one place to the next, along rows and columns.
        padding: zeros on each side.

    Returns:
        F32, (rows', columns', channels * height * width): (rows + 2 * padding - height) // stride
        + 1 rows, and as many columns.

    Raises:
        ShapeError: for operands that do not fit.
    """
    fits = len(x.shape) == 3 and len(kernel.shape) == 4 and kernel.shape[1] == x.shape[0]
    fits = fits and stride >= 1 and padding >= 0
    places = [
        (have + 2 * padding - want) // max(1, stride) + 1
        for have, want in zip(x.shape[1:], kernel.shape[2:], strict=False)
    ]
    is_known = x.type is GGMLType.F32 and x.is_contiguous
    require(fits and is_known and min(places) >= 1, "map_patches", x, kernel)
    context = x._context()
    steps = (stride, stride, padding, padding, 1, 1, *_FLAT_F32)
    pointer = gg.ggml_im2col(context.arena, kernel.pointer, x.pointer, *steps)
    features = kernel.shape[1] * kernel.shape[2] * kernel.shape[3]
    return context.wrap(pointer, (places[0], places[1], features), GGMLType.F32)
