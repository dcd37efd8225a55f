"""Attention: the softmax of scores, and flash attention by the package's kernels or ggml's."""

from __future__ import annotations

import struct
from dataclasses import dataclass

from tampu.ml.checks import FLOATS, READABLE, SINGLE, divides, require
from tampu.ml.kernels.library import OWN_PARAMS, Kernels
from tampu.ml.kernels.matmul import custom
from tampu.ml.library import gg
from tampu.ml.tensor import Tensor
from tampu.ml.types import GGMLType

READ_TYPES = frozenset({GGMLType.F16, GGMLType.F32, GGMLType.Q8_0})
"""Types of caches that the package's kernels read."""

_MAX_FEATURES = 576
_TURNED = 4  # features that are transposed at a time


@dataclass(frozen=True, slots=True)
class CellTable:
    """The cells of each sequence in the order of its positions.

    Tiles of attention are then of positions, so that a token's result depends neither on where its
    cells are nor on other sequences. Positions count from a multiple of the tile's 64.

    Attributes:
        cells: I32, (sequences, history): the cell at each position; -1: none, which masks hide.
        sequences: I32, (tokens, 1): the sequence of each token, a row of `cells`.
    """

    cells: Tensor
    sequences: Tensor


def flash_attention(
    queries: Tensor,
    keys: Tensor,
    values: Tensor,
    mask: Tensor | None,
    scale: float,
    *,
    cap: float | None = None,
    sinks: Tensor | None = None,
    max_bias: float = 0.0,
    table: CellTable | None = None,
) -> Tensor:
    """Return softmax(scale · q kᵀ + mask) · v without storing the scores (arXiv:2205.14135).

    Args:
        queries: F32, (heads, tokens, features).
        keys: (kv_heads, history, features).
        values: (kv_heads, history, value_features).
        mask: F16, (tokens, history); None: no mask. With a table, its history is the table's.
        scale: of the scores.
        cap: scores become cap · tanh(score / cap) before the mask.
        sinks: as for `Tensor.softmax`.
        max_bias: as for `Tensor.softmax`.
        table: where the keys and values at each position are; only the package's kernels have it.
            None: the history is in the order of its cells.

    Returns:
        F32, (tokens, heads, value_features), contiguous.

    Raises:
        ShapeError: for operands that do not fit, or a table that cannot be used.
    """
    _check(queries, keys, values, mask, sinks, table)
    context = queries._context()
    kernels = context.kernels_for(keys)
    pointers = [operand.pointer for operand in (queries, keys, values)]
    if kernels is not None and _can_attend(kernels, keys, values):
        more = (mask, sinks, *((table.cells, table.sequences) if table else ()))
        pointers += [operand.pointer for operand in more if operand is not None]
        shape = (values.shape[-1], queries.shape[0], queries.shape[1], 1)
        operation = kernels.operation("attention")
        pointer = custom(context, gg.GGML_TYPE_F32, shape, pointers, operation)
        flags = mask is not None, sinks is not None, table is not None
        packed = struct.pack("=fffiii", scale, cap or 0.0, max_bias, *flags)
        for index, word in enumerate(struct.unpack("=6i", packed)):
            pointer.contents.op_params[OWN_PARAMS + index] = word
    else:
        require(table is None, "attention by a table", queries, keys, values)
        pointers.append(mask.pointer if mask else None)
        pointer = gg.ggml_flash_attn_ext(context.arena, *pointers, scale, max_bias, cap or 0.0)
        gg.ggml_flash_attn_ext_set_prec(pointer, gg.GGML_PREC_F32)
        if sinks is not None:
            gg.ggml_flash_attn_ext_add_sinks(pointer, sinks.pointer)
    return context.wrap(
        pointer, (queries.shape[1], queries.shape[0], values.shape[2]), GGMLType.F32
    )


def _check(
    queries: Tensor,
    keys: Tensor,
    values: Tensor,
    mask: Tensor | None,
    sinks: Tensor | None,
    table: CellTable | None,
) -> None:
    """Raise ShapeError unless the operands of `flash_attention` fit."""
    operands = (queries, keys, values)
    ranks = [len(operand.shape) for operand in operands]
    fits = ranks == [3, 3, 3] and queries.shape[0] % keys.shape[0] == 0
    fits = fits and keys.shape[2] == queries.shape[2] and values.shape[:2] == keys.shape[:2]
    is_known = queries._is(SINGLE) and keys._is(READABLE) and values._is(READABLE)
    require(fits and is_known, "flash_attention", *operands)
    history = keys.shape[1]
    if table is not None:
        history, kinds = table.cells.shape[-1], {table.cells.type, table.sequences.type}
        fits = table.sequences.shape == (queries.shape[1], 1) and mask is not None
        is_known = kinds == {GGMLType.I32} and table.cells.is_contiguous
        require(fits and is_known, "flash_attention", *operands, table.cells, table.sequences)
    if mask is not None:
        fits = mask.shape == (queries.shape[1], history)
        is_known = mask.type is GGMLType.F16 and mask.is_contiguous
        require(fits and is_known, "flash_attention", *operands, mask)
    if sinks is not None:
        require(sinks.shape == queries.shape[:1] and sinks._is(SINGLE), "sinks", queries, sinks)


def reads_in_place(queries: Tensor, keys: Tensor, values: Tensor) -> bool:
    """Whether attention with these queries reads a cache of this type without a conversion.

    GPUs do, and so do our kernels for the types that they know.
    """
    context = queries._context()
    return context.is_on_device(keys) or _can_attend(context.kernels_for(keys), keys, values)


def attends_to(kernels: Kernels | None, features: int) -> bool:
    """Return whether the kernels support heads of this many features."""
    is_wanted = kernels is not None and kernels.choice.attention
    return is_wanted and features <= _MAX_FEATURES and features % _TURNED == 0


def _can_attend(kernels: Kernels | None, keys: Tensor, values: Tensor) -> bool:
    """Return whether the kernels read keys and values of these types and sizes."""
    return all(
        side.type in READ_TYPES and side.has_whole_rows and attends_to(kernels, side.shape[-1])
        for side in (keys, values)
    )


def softmax(
    scores: Tensor,
    mask: Tensor | None = None,
    scale: float = 1.0,
    sinks: Tensor | None = None,
    *,
    max_bias: float = 0.0,
) -> Tensor:
    """Scale scores, add the mask and take the softmax over the last dimension.

    Args:
        scores: F32, (heads, tokens, history).
        mask: F32 or F16, of the last two dimensions; None: no mask.
        scale: of the scores.
        sinks: F32, (heads,): one more score of each head's rows, which is part of the sum and left
            out of the result.
        max_bias: if it is above 0, the mask is multiplied by a slope of each head
            (ALiBi, arXiv:2108.12409): of 2^n heads, head h has 2^(-max_bias · (h + 1) / 2^n).
    """
    require(scores.type is GGMLType.F32 and scores.is_contiguous, "softmax", scores)
    if mask is not None:
        fits = mask.shape[-2:] == scores.shape[-2:] and divides(mask.shape, scores.shape)
        require(fits and mask.type in FLOATS and mask.is_contiguous, "softmax", scores, mask)
    arena, added = scores._context().arena, mask.pointer if mask else None
    pointer = gg.ggml_soft_max_ext(arena, scores.pointer, added, scale, max_bias)
    if sinks is not None:
        is_known = sinks.shape == scores.shape[:-2] and sinks._is(SINGLE)
        require(is_known, "softmax", scores, sinks)
        gg.ggml_soft_max_add_sinks(pointer, sinks.pointer)
    return scores._like(pointer)
