"""The largest of a row of logits, found where the logits are, so that not all have to be copied.

A result is one F32 matrix, since each tensor that is read costs a wait for the device.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from tampu.ml.checks import SINGLE, require
from tampu.ml.library import gg
from tampu.ml.moe import gather
from tampu.ml.tensor import Tensor
from tampu.ml.types import GGMLType

_EXACT = 2**24  # integers up to this are exact in F32


class TopK(NamedTuple):
    """The best tokens of one row.

    Attributes:
        tokens: in no order.
        logits: of these, F32.
        total: the sum of all logits of the row: NaN if one is, or +inf.
    """

    tokens: npt.NDArray[np.intp]
    logits: npt.NDArray[np.float32]
    total: float


def find_top_k(logits: Tensor, count: int) -> Tensor:
    """Return the places of the `count` largest of each row, or of all if there are fewer.

    Returns:
        I32, (rows, count), for (rows, columns). Of equal values any may be chosen.
    """
    fits = len(logits.shape) == 2 and count >= 1 and logits.shape[1] <= _EXACT
    require(fits and logits.type in SINGLE, f"the {count} largest", logits)
    (rows, columns), context = logits.shape, logits._context()
    count = min(count, columns)
    if count == 1:
        pointer = gg.ggml_argmax(context.arena, logits.pointer)
        return context.wrap(pointer, (rows,), GGMLType.I32).reshape(rows, 1)
    pointer = gg.ggml_top_k(context.arena, logits.pointer, count)
    return context.wrap(pointer, (rows, count), GGMLType.I32)


def find_best(logits: Tensor) -> tuple[Tensor, Tensor]:
    """Return the place of the largest of each row, for the same graph to look up.

    Returns:
        I32, (rows,), for (rows, columns): a place even if logits are NaN, of which GPUs return any
        number; and what `with_logits` returns.
    """
    rows, columns = logits.shape
    best = find_top_k(logits, 1)
    places = best.cast(GGMLType.F32).clamp(0, columns - 1).cast(GGMLType.I32)
    return places.reshape(rows), with_logits(best, logits)


def with_logits(best: Tensor, logits: Tensor) -> Tensor:
    """Return the places that `find_top_k` returned with their logits, and the sum of all.

    Returns:
        F32, (rows, 2 * count + 1), which `unpack` reads.
    """
    rows, context = logits.shape[0], logits._context()
    sums = gg.ggml_sum_rows(context.arena, logits.pointer)
    total = context.wrap(sums, (rows, 1), GGMLType.F32)
    return best.cast(GGMLType.F32).concat(gather(logits, best), 1).concat(total, 1)


def with_rows(best: Tensor, logits: Tensor, outputs: Tensor) -> Tensor:
    """Return the best of all rows, as `with_logits` returned them, and some rows in full.

    Args:
        best: F32, (rows, width).
        logits: F32, (rows, columns).
        outputs: I32, (n,): the rows that are needed in full.

    Returns:
        F32, one dimension: all of the best, then the rows; `divide` reads it.
    """
    return best.reshape(-1).concat(logits.rows(outputs).reshape(-1), 0)


def divide(
    joined: npt.NDArray[np.float32], rows: int, count: int, outputs: int
) -> tuple[npt.NDArray[np.float32], npt.NDArray[np.float32]]:
    """Return the `count` best of each of so many rows, and the `outputs` rows after them."""
    end = rows * (2 * count + 1)
    return joined[:end].reshape(rows, -1), joined[end:].reshape(outputs, -1)


def unpack(row: npt.NDArray[np.float32]) -> TopK:
    """Return what one row of `with_logits` says."""
    count = len(row) // 2
    return TopK(row[:count].astype(np.intp), row[count:-1], float(row[-1]))
