"""Attention over a cached history as one operation of a graph."""

from __future__ import annotations

import struct
from typing import TYPE_CHECKING

from tampu.ml.kernels.library import OWN_PARAMS, Kernels
from tampu.ml.kernels.matmul import custom
from tampu.ml.library import TensorPointer, gg
from tampu.ml.types import GGMLType

if TYPE_CHECKING:
    from tampu.ml.context import Context
    from tampu.ml.tensor import Tensor

CACHE_TYPES = frozenset({GGMLType.F16, GGMLType.F32, GGMLType.Q8_0})
_MAX_FEATURES = 256
_TURNED = 4  # features that are turned at a time


def attends_to(kernels: Kernels | None, features: int) -> bool:
    """Whether the kernels know heads of this many features."""
    is_wanted = kernels is not None and kernels.choice.attention
    return is_wanted and features <= _MAX_FEATURES and features % _TURNED == 0


def can_attend(kernels: Kernels | None, keys: Tensor, values: Tensor) -> bool:
    """Whether the kernels read keys and values of these types and sizes."""
    return all(
        side.type in CACHE_TYPES and side.has_whole_rows and attends_to(kernels, side.shape[-1])
        for side in (keys, values)
    )


def attend(
    context: Context,
    kernels: Kernels,
    queries: Tensor,
    keys: Tensor,
    values: Tensor,
    mask: Tensor | None,
    scale: float,
    cap: float | None,
    sinks: Tensor | None,
) -> TensorPointer:
    """Add attention to a graph; the arguments are those of `ml.attention.flash_attention`."""
    heads, tokens, _ = queries.shape
    given = [queries, keys, values, *(side for side in (mask, sinks) if side is not None)]
    pointer = custom(
        context,
        gg.GGML_TYPE_F32,
        (values.shape[-1], heads, tokens, 1),
        [side.pointer for side in given],
        kernels.operation("attention"),
    )
    packed = struct.pack("=ffii", scale, cap or 0.0, mask is not None, sinks is not None)
    for index, word in enumerate(struct.unpack("=4i", packed)):
        pointer.contents.op_params[OWN_PARAMS + index] = word
    return pointer
