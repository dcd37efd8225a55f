"""The cells of one kind of cache: who owns each, and what may be overwritten first.

A cell holds the keys and values of one token in the layers of its space. A sequence is an array of
cells in the order of its tokens; sequences with a common beginning name the same cells, and nothing
is copied. A cell without owners keeps what it holds until it is taken again: those that hold
nothing go first, then those least recently released.
"""

from __future__ import annotations

from typing import TypeAlias

import numpy as np
import numpy.typing as npt

CellArray: TypeAlias = npt.NDArray[np.int32]

NO_CELL = -1
"""Stands for the cell of a token whose row is not kept."""

_NOTHING = 0  # the stamp of a cell that holds nothing
_BLOCK = 32  # cells that a sequence would have for itself, so that what others see is masked whole


class Cells:
    """Counts the owners of each cell, and remembers when it lost the last one.

    Attributes:
        generations: I32, (cells,): how often a cell's content was given up. Whoever notes a cell
            together with its generation can tell later whether it still holds the same row.
    """

    def __init__(self, count: int) -> None:
        self._owners: CellArray = np.zeros(count, np.int32)
        self._stamps = np.zeros(count, np.int64)
        self._clock = _NOTHING
        self._owned = 0
        self.generations: CellArray = np.zeros(count, np.int32)

    def __len__(self) -> int:
        return len(self._owners)

    @property
    def available(self) -> int:
        """How many cells nobody owns."""
        return len(self._owners) - self._owned

    def take(self, count: int, near: int = NO_CELL) -> CellArray:
        """Own and return cells; the caller checked `available`.

        Args:
            count: of cells.
            near: cells that follow this one are preferred, so that a sequence lies together.
        """
        is_free = self._owners == 0
        is_empty = is_free & (self._stamps == _NOTHING)
        empty = np.flatnonzero(is_empty)
        following = empty[np.searchsorted(empty, _beginning(is_empty, near)) :]
        if len(following) >= count:
            cells = following[:count]
        elif len(empty) >= count:
            cells = empty[:count]
        else:
            cells = self._oldest(np.flatnonzero(is_free), count)
        taken: CellArray = cells.astype(np.int32)
        self._owners[taken] = 1
        self._owned += count
        self.generations[taken] += 1
        return taken

    def share(self, cells: CellArray) -> None:
        """Add an owner to each cell; those without one keep what they hold."""
        self._owned += int(np.count_nonzero(self._owners[cells] == 0))
        self._owners[cells] += 1

    def release(self, cells: CellArray) -> None:
        """Take an owner from each cell; the rows stay until the cells are needed, last ones first.

        Args:
            cells: of consecutive tokens, in their order.
        """
        freed = cells[self._disown(cells)]
        self._clock += len(freed)
        self._stamps[freed] = self._clock - np.arange(len(freed))

    def drop(self, cells: CellArray) -> None:
        """Take an owner from each cell; what then has none holds nothing."""
        freed = cells[self._disown(cells)]
        self._stamps[freed] = _NOTHING
        self.generations[freed] += 1

    def renew(self, cells: CellArray) -> None:
        """Declare that owned cells hold something else from now on."""
        self.generations[cells] += 1

    def forget(self) -> None:
        """Declare everything that is held worthless; owners stay."""
        self._stamps[:] = _NOTHING
        self.generations += 1

    def owners(self, cells: CellArray) -> CellArray:
        """Return how many own each of some cells."""
        return self._owners[cells]

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
        if self._owned != np.count_nonzero(expected):
            raise AssertionError(f"{np.count_nonzero(expected)} cells owned, {self._owned} counted")

    def _oldest(self, free: npt.NDArray[np.intp], count: int) -> npt.NDArray[np.intp]:
        if len(free) < count:
            raise IndexError(f"{count} cells wanted, {len(free)} are free")
        if len(free) == count:
            return free
        return np.sort(free[np.argpartition(self._stamps[free], count)[:count]])

    def _disown(self, cells: CellArray) -> npt.NDArray[np.bool_]:
        """Take an owner from each cell and say which have none left."""
        self._owners[cells] -= 1
        is_freed: npt.NDArray[np.bool_] = self._owners[cells] == 0
        self._owned -= int(np.count_nonzero(is_freed))
        return is_freed


def _beginning(is_empty: npt.NDArray[np.bool_], near: int) -> int:
    """Return where to look for cells: after `near`, or at a block that is empty as a whole."""
    after = near + 1
    if near >= 0 and after < len(is_empty) and is_empty[after]:
        return after
    whole = len(is_empty) // _BLOCK * _BLOCK
    blocks = is_empty[:whole].reshape(-1, _BLOCK).all(axis=1)
    return int(blocks.argmax()) * _BLOCK if blocks.any() else 0
