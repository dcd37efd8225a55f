"""Keys in the cache moved to other positions, when tokens before them are dropped."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

from tampu.errors import ComputeError
from tampu.kvcache import Cache
from tampu.ml import Backend, GGMLType, Tensor
from tampu.nn import Model

_AT_ONCE = 512  # cells


def rotate_keys(
    backend: Backend,
    model: Model,
    cache: Cache,
    cells: Sequence[npt.NDArray[np.int32]],
    offset: int,
) -> None:
    """Move the keys of some cells, and wait until that is done.

    Args:
        backend: computes it.
        model: whose keys they are.
        cache: where they are.
        cells: for each space.
        offset: is added to their positions.

    Raises:
        ComputeError: if the architecture cannot do it.
        OutOfMemoryError: if there is no memory for it.
    """
    for space, every in enumerate(cells):
        for start in range(0, len(every), _AT_ONCE):
            _rotate(backend, model, cache, space, every[start : start + _AT_ONCE], offset)


def _rotate(
    backend: Backend,
    model: Model,
    cache: Cache,
    space: int,
    cells: npt.NDArray[np.int32],
    offset: int,
) -> None:
    per_token = model.positions_per_token
    shape = (len(cells),) if per_token == 1 else (per_token, len(cells))
    moves = np.full(shape, offset, np.int32)
    if per_token > 1:
        moves[3:] = 0  # the fourth coordinate is no position
    context = backend.context()
    try:
        read = context.input("cells", cells.shape, GGMLType.I32)
        written = context.input("rows", cells.shape, GGMLType.I64)
        moved = context.input("offsets", shape, GGMLType.I32)
        for index, keys in cache.stored_keys(space):
            flat = keys.tensor.rows(read)
            heads = flat.reshape(len(cells), keys.heads, keys.features)
            rotated = model.shift(index, heads, moved)
            if rotated is None:
                raise ComputeError("the architecture cannot move keys to other positions")
            if rotated is not heads:
                stored = keys.tensor.set_rows(rotated.reshape(*flat.shape), written)
                context.forward(stored)
        data: list[tuple[Tensor, npt.NDArray[np.generic]]] = [
            (read, cells),
            (written, cells.astype(np.int64)),
            (moved, moves),
        ]
        backend.compute(context, data, [])
    finally:
        context.close()
