"""States in rows of a tensor, as arrays for graphs of one operation."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

from tampu.ml import Tensor
from tampu.ml.recurrence import StateRows

Array = npt.NDArray[Any]


def row_arrays(state: Array, steps: int = 1) -> list[Array]:
    """Return the rows for states (sequences, ...), then which are read and written in each step.

    The states before are the first rows, in reverse order; each step writes the rows after those
    that it reads.
    """
    count = len(state)
    stored = np.zeros(((steps + 1) * count, state[0].size), np.float32)
    stored[:count] = state[::-1].reshape(count, -1)
    arrays: list[Array] = [stored]
    for step in range(steps):
        order = np.arange(count)
        read = step * count + (order if step else order[::-1])
        arrays += [read.astype(np.int32), (step + 1) * count + order]
    return arrays


def state_rows(shape: tuple[int, ...], stored: Tensor, read: Tensor, written: Tensor) -> StateRows:
    """Return the states of one step, given the tensors of these arrays."""
    return StateRows(stored, shape, read, written)


def written_states(rows: StateRows, step: int = 1) -> Tensor:
    """Return what a step wrote, (sequences, *shape)."""
    count, width = rows.read.shape[0], rows.stored.shape[1]
    flat = rows.stored.strided((count, width), (4 * width,), step * count * width * 4)
    return flat.contiguous().reshape(count, *rows.shape)
