"""Which cells of the cache are taken, and by how many owners.

A cell holds the keys and values of one token in every layer. A sequence is an array of cells in the
order of its tokens; sequences with a common beginning name the same cells, and nothing is copied.
"""

from __future__ import annotations

from typing import TypeAlias

import numpy as np
import numpy.typing as npt

CellArray: TypeAlias = npt.NDArray[np.int32]


class Cells:
    """Counts the owners of each cell; a cell without owners is free."""

    def __init__(self, count: int) -> None:
        self._owners: CellArray = np.zeros(count, np.int32)
        self._free = count

    def __len__(self) -> int:
        return len(self._owners)

    @property
    def free(self) -> int:
        """How many cells nobody owns."""
        return self._free

    def take(self, count: int) -> CellArray:
        """Own and return the lowest free cells, in ascending order; the caller checked `free`."""
        cells = np.flatnonzero(self._owners == 0)[:count].astype(np.int32)
        if len(cells) < count:
            raise IndexError(f"{count} cells wanted, {len(cells)} are free")
        self._owners[cells] = 1
        self._free -= count
        return cells

    def share(self, cells: CellArray) -> None:
        """Add an owner to each cell; each must have one already."""
        self._owners[cells] += 1

    def release(self, cells: CellArray) -> None:
        """Take an owner from each cell; those without one are free again."""
        self._owners[cells] -= 1
        self._free += int(np.count_nonzero(self._owners[cells] == 0))

    def free_without(self, owned: list[CellArray]) -> int:
        """Return how many cells would be free if these owners let go of theirs."""
        left = self._owners.copy()
        for cells in owned:
            left[cells] -= 1
        return int(np.count_nonzero(left == 0))

    def check(self, owned: list[CellArray]) -> None:
        """Compare the counts with who owns what.

        Raises:
            AssertionError: if a cell's count is not the number of its owners.
        """
        expected = np.zeros_like(self._owners)
        for cells in owned:
            np.add.at(expected, cells, 1)
        if not np.array_equal(expected, self._owners):
            wrong = np.flatnonzero(expected != self._owners)
            raise AssertionError(f"cells {wrong[:8]} have the wrong number of owners")
