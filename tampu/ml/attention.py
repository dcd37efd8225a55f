"""Flash attention: by the package's kernels where they support it, otherwise by ggml."""

from __future__ import annotations

from typing import TYPE_CHECKING

from tampu.ml.checks import READABLE, SINGLE, require
from tampu.ml.kernels.attention import attend, can_attend
from tampu.ml.library import gg
from tampu.ml.types import GGMLType

if TYPE_CHECKING:
    from tampu.ml.tensor import Tensor


def flash_attention(
    queries: Tensor,
    keys: Tensor,
    values: Tensor,
    mask: Tensor | None,
    scale: float,
    *,
    cap: float | None = None,
    sinks: Tensor | None = None,
) -> Tensor:
    """Return softmax(scale · q kᵀ + mask) · v without storing the scores (arXiv:2205.14135).

    Args:
        queries: F32, (heads, tokens, features).
        keys: (kv_heads, history, features).
        values: (kv_heads, history, value_features).
        mask: F16, (tokens, history); None: nothing is hidden.
        scale: of the scores.
        cap: scores become cap · tanh(score / cap) before the mask.
        sinks: as for `Tensor.softmax`.

    Returns:
        F32, (tokens, heads, value_features), contiguous.

    Raises:
        ShapeError: for operands that do not fit.
    """
    operands = (queries, keys, values)
    ranks = [len(operand.shape) for operand in operands]
    fits = ranks == [3, 3, 3] and queries.shape[0] % keys.shape[0] == 0
    fits = fits and keys.shape[2] == queries.shape[2] and values.shape[:2] == keys.shape[:2]
    is_known = queries._is(SINGLE) and keys._is(READABLE) and values._is(READABLE)
    require(fits and is_known, "flash_attention", *operands)
    if mask is not None:
        fits = mask.shape == (queries.shape[1], keys.shape[1])
        is_known = mask.type is GGMLType.F16 and mask.is_contiguous
        require(fits and is_known, "flash_attention", *operands, mask)
    if sinks is not None:
        require(sinks.shape == queries.shape[:1] and sinks._is(SINGLE), "sinks", queries, sinks)
    context = queries._context()
    kernels = context.kernels_for(keys)
    if kernels is not None and can_attend(kernels, keys, values):
        pointer = attend(context, kernels, queries, keys, values, mask, scale, cap, sinks)
    else:
        hidden = mask.pointer if mask else None
        pointer = gg.ggml_flash_attn_ext(
            context.arena,
            queries.pointer,
            keys.pointer,
            values.pointer,
            hidden,
            scale,
            0.0,
            cap or 0.0,
        )
        gg.ggml_flash_attn_ext_set_prec(pointer, gg.GGML_PREC_F32)
        if sinks is not None:
            gg.ggml_flash_attn_ext_add_sinks(pointer, sinks.pointer)
    shape = (queries.shape[1], queries.shape[0], values.shape[2])
    return context.wrap(pointer, shape, GGMLType.F32)


def reads_in_place(queries: Tensor, keys: Tensor, values: Tensor) -> bool:
    """Whether attention with these queries reads a cache of this type without a conversion."""
    return can_attend(queries._context().kernels_for(keys), keys, values)
