"""Learned positions of a square grid, for images of other sizes."""

from __future__ import annotations

import math
from collections.abc import Mapping

import numpy as np
import numpy.typing as npt

from tampu.errors import ModelFileError
from tampu.ml import Tensor
from tampu.nn.encoder import Numbers
from tampu.nn.linear import Embedding


def corner_arrays(places: Numbers, side: int) -> dict[str, npt.NDArray[np.generic]]:
    """Return the data for `interpolate`: the four rows of a table around each place, and weights.

    Args:
        places: row and column in the table's grid, (n, 2), 0 to side - 1.
        side: of the grid, whose rows follow one another in the table.
    """
    low = np.floor(places).astype(np.int32)
    share = places - low
    arrays: dict[str, npt.NDArray[np.generic]] = {}
    for corner in range(4):
        step = np.array([corner // 2, corner % 2], np.int32)
        row, column = np.minimum(low + step, side - 1).T
        weights = np.where(step, share, 1 - share).prod(axis=1, keepdims=True)
        arrays[f"corner{corner}"] = (row * side + column).astype(np.int32)
        arrays[f"weight{corner}"] = weights.astype(np.float32)
    return arrays


def grid_side(table: Tensor) -> int:
    """Return how many places a row of a square grid has, of which a table has a row for each.

    Raises:
        ModelFileError: if its rows are not those of a square.
    """
    side = math.isqrt(table.shape[0])
    if side**2 != table.shape[0]:
        reason = f"{table.shape[0]} positions are not a square"
        raise ModelFileError(f"tensor '{table.name}'", reason)
    return side


def interpolate(table: Embedding, inputs: Mapping[str, Tensor], x: Tensor) -> Tensor:
    """Return x (n, features) with embeddings between the rows of a table added.

    Args:
        table: of a square grid of positions.
        inputs: of the graph; their data is that of `corner_arrays`.
        x: F32, (n, features).
    """
    for corner in range(4):
        x = x + table(inputs[f"corner{corner}"]) * inputs[f"weight{corner}"]
    return x


def resampling(side: int, count: int, *, is_cubic: bool = False) -> Numbers:
    """Return the weights (count, side) that make `count` places of `side`: linear interpolation.

    Fewer places are weighted means of all that they cover, as in PyTorch's `interpolate` with
    `antialias`. Cubic weights are Keys's with a = -0.5, as they are there.
    """
    step = side / count
    reach = max(step, 1.0)
    centres = (np.arange(count)[:, None] + 0.5) * step
    away = np.abs(np.arange(side) + 0.5 - centres) / reach
    if is_cubic:
        near, far = (1.5 * away - 2.5) * away**2 + 1, ((2.5 - 0.5 * away) * away - 4) * away + 2
        weights = np.select([away < 1, away < 2], [near, far], 0.0)
    else:
        weights = np.maximum(0.0, 1 - away)
    found: Numbers = weights / weights.sum(axis=1, keepdims=True)
    return found


def resample_map(table: Tensor, weights: Tensor) -> Tensor:
    """Return a map (rows, columns, features) of another size, by weights of `resampling`.

    Args:
        table: F32, (side, side, features).
        weights: F32, (n, side), for rows as for columns.
    """
    y = table.transpose(0, 2, 1).contiguous().linear(weights)  # rows, features, columns
    y = y.transpose(2, 1, 0).contiguous().linear(weights)  # columns, features, rows
    return y.transpose(2, 0, 1).contiguous()
