"""Context shift: dropping old tokens of a full context and moving what follows them forward.

Keys carry their positions by rotation, so those of the tokens that move are rotated back (K-shift).
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

from tampu.errors import ComputeError
from tampu.kvcache import Cache
from tampu.ml import Backend, GGMLType, Tensor
from tampu.nn import Model
from tampu.runner.sequence import Sequence as RunningSequence

_MAX_CELLS = 512  # moved at once


def shift_range(sequence: RunningSequence, keep: int) -> tuple[int, int]:
    """Return the tokens [start, end) to drop from a full context: half of those not kept.

    Images stay whole: one that begins among the kept tokens stays, one that would be cut goes.
    """
    start = sequence.layout.group_end(keep)
    count = shift_count(sequence.computed, start, sequence.capacity)
    return start, min(sequence.layout.group_end(start + count), sequence.computed)


def shift_count(length: int, keep: int, capacity: int) -> int:
    """Return how many tokens to drop so that half of the room after `keep` is free."""
    target = max((capacity - keep) // 2, 1)
    return max(target - (capacity - length), 0)


def drop_tokens(sequence: RunningSequence, start: int, end: int) -> None:
    """Remove tokens from a sequence; its cell table is left to the caller."""
    length, left = sequence.length, sequence.length - (end - start)
    for array in {id(each): each for each in (sequence.tokens, sequence.keys)}.values():
        array[start:left] = array[end:length].copy()
    sequence.layout = sequence.layout.without(start, end, length)
    sequence.length = left
    sequence.read = min(sequence.read, start)
    sequence.dropped += end - start


def shift_keys(
    backend: Backend,
    model: Model,
    cache: Cache,
    cells: Sequence[npt.NDArray[np.int32]],
    offset: int,
) -> None:
    """Add an offset to the positions of the keys in some cells, of each group, and wait.

    Raises:
        ComputeError: if the architecture cannot do it.
        OutOfMemoryError: if memory for it cannot be allocated.
    """
    for group, every in enumerate(cells):
        for start in range(0, len(every), _MAX_CELLS):
            _shift_keys(backend, model, cache, group, every[start : start + _MAX_CELLS], offset)


def _shift_keys(
    backend: Backend,
    model: Model,
    cache: Cache,
    group: int,
    cells: npt.NDArray[np.int32],
    offset: int,
) -> None:
    per_token = model.positions_per_token
    shape = (len(cells),) if per_token == 1 else (per_token, len(cells))
    offsets = np.full(shape, offset, np.int32)
    context = backend.context()
    try:
        read = context.input("cells", cells.shape, GGMLType.I32)
        written = context.input("rows", cells.shape, GGMLType.I64)
        moved = context.input("offsets", shape, GGMLType.I32)
        for index, layer in cache.stored_layers(group):
            flat = layer.keys.rows(read)
            heads = flat.reshape(len(cells), layer.shape.kv_heads, layer.shape.head_dim)
            rotated = model.shift(index, heads, moved)
            if rotated is None:
                raise ComputeError("the architecture cannot move keys to other positions")
            if rotated is not heads:
                stored = layer.keys.set_rows(rotated.reshape(*flat.shape), written)
                context.forward(stored)
        data: list[tuple[Tensor, npt.NDArray[np.generic]]] = [
            (read, cells),
            (written, cells.astype(np.int64)),
            (moved, offsets),
        ]
        backend.compute(context, data, [])
    finally:
        context.close()
