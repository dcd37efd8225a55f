"""The rows of a cache as bytes: keys and values of tokens, and states, of all layers of a group."""

from __future__ import annotations

import numpy as np

from tampu.kvcache.cache import Cache
from tampu.kvcache.free_cells import CellArray
from tampu.ml.rows import Bytes, host_memory, read_rows, row_bytes, row_runs, write_rows

_MAX_RUNS = 16  # more are copied sooner than they are read one by one


class CacheRows:
    """Copies rows of a cache; any thread may, if nothing writes them meanwhile."""

    def __init__(self, cache: Cache) -> None:
        self._groups = [storage.row_tensors() for storage in cache.storages]
        self._memory = [
            [None if is_transposed else host_memory(each) for each, is_transposed in group]
            for group in self._groups
        ]
        self._sizes = [
            [row_bytes(each, transposed=is_transposed) for each, is_transposed in group]
            for group in self._groups
        ]

    @property
    def layout(self) -> list[list[list[int | str]]]:
        """What the bytes mean: the type and the bytes of a row of each tensor, by group."""
        return [
            [
                [each.type.name, size, int(is_transposed)]
                for (each, is_transposed), size in zip(group, sizes, strict=True)
            ]
            for group, sizes in zip(self._groups, self._sizes, strict=True)
        ]

    def bytes_per_cell(self, group: int) -> int:
        """Return the bytes of one cell's rows in all layers of a group."""
        return sum(self._sizes[group])

    def read(self, group: int, cells: CellArray) -> Bytes:
        """Return the rows of some cells: those of each tensor one after the other."""
        parts = [read_rows(each, cells, transposed=flag) for each, flag in self._groups[group]]
        return np.concatenate(parts) if parts else np.empty(0, np.uint8)

    def write(self, group: int, cells: CellArray, data: Bytes, start: int, count: int) -> None:
        """Write rows that `read` returned.

        Args:
            group: of the cells.
            cells: I32, (n,): where to.
            data: the rows of `count` cells.
            start: the first of these rows to write; the others are left out.
            count: how many cells were read.
        """
        at, end = 0, start + len(cells)
        for (tensor, is_transposed), size in zip(
            self._groups[group], self._sizes[group], strict=True
        ):
            part = data[at : at + count * size]
            at += count * size
            if is_transposed:
                own = part.reshape(tensor.shape[0], count, -1)[:, start:end]
                write_rows(tensor, cells, own.reshape(-1), transposed=True)
            else:
                write_rows(tensor, cells, part[start * size : end * size])

    def memory(
        self, group: int, cells: CellArray, start: int, count: int
    ) -> list[memoryview] | None:
        """Return the memory of rows, to read a file into it; None if only `write` can fill it.

        The arguments are those of `write`. The memory of rows that are left out is not used.
        """
        runs = [*row_runs(cells)]
        if len(runs) > _MAX_RUNS:
            return None
        found = []
        for memory, size in zip(self._memory[group], self._sizes[group], strict=True):
            if memory is None:
                return None
            before, after = start * size, (count - start - len(cells)) * size
            own = [memory[first * size : (first + run) * size] for _, first, run in runs]
            found += [memoryview(bytearray(before)), *own, memoryview(bytearray(after))]
        return [each for each in found if len(each)]
