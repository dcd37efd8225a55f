"""Maps: a convolution as a matrix product (patches, and the kernel as a matrix), and pooling."""

from __future__ import annotations

import math

from tampu.ml.checks import SINGLE, require
from tampu.ml.library import gg
from tampu.ml.tensor import Tensor
from tampu.ml.types import GGMLType

_LANES = 16
_FLAT_F32 = (True, gg.GGML_TYPE_F32)  # a map has two dimensions; the type of the result


def map_patches(x: Tensor, kernel: Tensor, stride: int, padding: int) -> Tensor:
    """Return what lies under a kernel at each of its places, with zeros around the map.

    Args:
        x: F32, (channels, rows, columns).
        kernel: (outputs, channels, height, width), of which only the shape is used.
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
    # A kernel may be in packed memory only, where ggml finds no data; it reads just the lengths.
    lengths = (*reversed(kernel.shape[1:]), 1)
    shaped = gg.ggml_new_tensor_4d(context.arena, gg.GGML_TYPE_F32, *lengths)
    pointer = gg.ggml_im2col(context.arena, shaped, x.pointer, *steps)
    features = kernel.shape[1] * kernel.shape[2] * kernel.shape[3]
    return context.wrap(pointer, (places[0], places[1], features), GGMLType.F32)


def project_patches(patches: Tensor, kernel: Tensor) -> Tensor:
    """Return (..., n, outputs) for patches (..., n, inputs) and a kernel (outputs, ...)."""
    outputs, inputs = kernel.shape[0], math.prod(kernel.shape[1:])
    context = patches._context()
    if kernel.packed is not None:
        matrix = Tensor(kernel.pointer, (outputs, inputs), kernel.type, kernel.context)
        matrix.packed = kernel.packed
        return patches.linear(matrix)
    row = kernel.type.size_of(inputs)
    matrix = kernel.strided((outputs, inputs), (row,), context=context)
    if inputs % _LANES == 0:
        return patches.linear(matrix)
    return _filled(patches.contiguous()).linear(_filled(matrix.cast(GGMLType.F32)))


def _filled(x: Tensor) -> Tensor:
    """Return F32 (..., n) with zeros after each row up to a multiple of `_LANES`.

    ggml multiplies shorter rows one pair at a time, which is several times slower.
    """
    missing = -x.shape[-1] % _LANES
    context = x._context()
    pointer = gg.ggml_pad(context.arena, x.pointer, missing, 0, 0, 0)
    return context.wrap(pointer, (*x.shape[:-1], x.shape[-1] + missing), GGMLType.F32)


def average_pool(x: Tensor, side: int) -> Tensor:
    """Return the means of squares of (channels, rows, columns), `side` on a side.

    The squares must fill the map exactly.
    """
    fits = len(x.shape) == 3 and side >= 1 and not any(n % side for n in x.shape[1:])
    is_known = x.type in SINGLE and x.is_contiguous
    require(fits and is_known, f"average_pool of {side}", x)
    (channels, rows, columns), context = x.shape, x._context()
    lengths = (side, side, side, side, 0.0, 0.0)
    pointer = gg.ggml_pool_2d(context.arena, x.pointer, gg.GGML_OP_POOL_AVG, *lengths)
    return context.wrap(pointer, (channels, rows // side, columns // side), x.type)
