"""Cells of one KV-cache group: reference counts, and which are evicted first.

A cell holds what all layers of its group store for one token: keys and values, or a state. A
sequence is an array of cells in the order of its tokens; sequences with a common prefix share
cells, and nothing is copied. A cell without owners keeps its contents until it is allocated again:
empty cells are taken first, then those of little use, then the least recently freed.

Each cell has a stamp: the clock, which counts freed cells, when it lost its last owner. A sequence
frees its last tokens first, so its beginning, which others may share, is evicted last. Example:
sequence A of 3 tokens was freed, then B of 2; C is running, and one checkpoint was demoted:

    cell       0   1   2     3   4     5    6    7
    contents   A0  A1  A2    B0  B1    C0   -    state
    owners     0   0   0     0   0     1    0    0
    stamp      3   2   1     5   4     .    0    -1

    allocated next: 6 (empty), 7 (demoted), 2, 1, 0, 4, 3
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from tampu.kvcache.free_cells import EMPTY, CellArray, FreeCells

NO_CELL = -1
"""The cell of a token for which nothing is stored."""


def inputs_or_cell(number: int) -> int:
    """Return what stands for kept inputs where cells are listed; of that, which inputs they are.

    Of drafts, recurrent layers may keep the inputs instead of the state after them. The n-th of
    these is listed as a number below `NO_CELL`.
    """
    return NO_CELL - 1 - number


_DEMOTED = -1  # the stamp of a cell that is the first to be evicted
_OFTEN = 2  # a cell shared so often is where sequences diverge
_TURNS = 16  # a popular cell outlives so many turns of freeing all cells


class Cells:
    """Counts the owners of each cell and records when it lost the last one.

    Attributes:
        generations: I32, (cells,): how often the cell's contents became invalid. A cell noted
            with its generation can be checked later: its contents are the same if both are equal.
    """

    def __init__(self, count: int) -> None:
        self._owners: CellArray = np.zeros(count, np.int32)
        self._stamps = np.zeros(count, np.int64)
        self._shares: CellArray = np.zeros(count, np.int32)
        self._clock = EMPTY
        self._owned = 0
        self._unowned = FreeCells(self._owners, self._stamps)
        self.generations: CellArray = np.zeros(count, np.int32)

    def __len__(self) -> int:
        return len(self._owners)

    @property
    def available(self) -> int:
        """The number of cells without an owner."""
        return len(self._owners) - self._owned

    @property
    def cached(self) -> int:
        """The number of cells without an owner that keep their contents."""
        return int(np.count_nonzero((self._owners == 0) & (self._stamps != EMPTY)))

    def allocate(self, count: int, near: int = NO_CELL) -> CellArray:
        """Allocate cells, preferably after `near`; the caller has checked `available`."""
        taken: CellArray = self._unowned.find(count, near, self._clock).astype(np.int32)
        self._owners[taken] = 1
        self._owned += count
        self.generations[taken] += 1
        self._shares[taken] = 0
        return taken

    def spare(self) -> int:
        """Return a cell without an owner, that may be overwritten now."""
        taken = self.allocate(1)
        self.discard(taken)
        return int(taken[0])

    def share(self, cells: CellArray) -> None:
        """Add an owner to each cell; their contents stay."""
        self._owned += int(np.count_nonzero(self._owners[cells] == 0))
        self._owners[cells] += 1
        self._shares[cells] += 1

    def free(self, cells: CellArray) -> None:
        """Remove an owner from cells in token order; the last is evicted first."""
        freed = cells[self._disown(cells)]
        self._clock += len(freed)
        self._stamps[freed] = self._clock - np.arange(len(freed))

    def discard(self, cells: CellArray) -> None:
        """Remove an owner from each cell; a cell left without owners becomes empty."""
        freed = cells[self._disown(cells)]
        self._stamps[freed] = EMPTY
        self._unowned.emptied()
        self.generations[freed] += 1

    def demote(self, cells: CellArray) -> None:
        """Have these cells evicted first, unless they have owners."""
        first = cells[self._owners[cells] == 0]
        self._stamps[first] = _DEMOTED
        self._unowned.demoted(first)

    def touch(self, cells: CellArray) -> None:
        """Count these cells as freed now, the last one last; their contents stay.

        Popular ones count as freed later: what others free a few times over goes first.
        """
        unowned = cells[self._owners[cells] == 0]
        later = np.where(self.is_popular(unowned), _TURNS * len(self), 0)
        self._stamps[unowned] = self._clock + 1 + np.arange(len(unowned)) + later
        self._clock += len(unowned)

    def is_popular(self, cells: CellArray) -> npt.NDArray[np.bool_]:
        """Return which of these cells were shared repeatedly."""
        popular: npt.NDArray[np.bool_] = self._shares[cells] >= _OFTEN
        return popular

    def invalidate(self, cells: CellArray) -> None:
        """Mark the contents of owned cells as changed."""
        self.generations[cells] += 1

    def reset(self) -> None:
        """Mark all contents as changed; owners stay."""
        self._stamps[:] = EMPTY
        self._unowned.emptied()
        self.generations += 1

    def owners(self, cells: CellArray) -> CellArray:
        """Return the number of owners of each of these cells."""
        return self._owners[cells]

    def ages(self, each: int) -> npt.NDArray[np.int64]:
        """Return of each so many cells how many others were freed after the newest of them.

        -1: they are empty.
        """
        newest = np.maximum.reduceat(self._stamps, np.arange(0, len(self), each))
        return np.where(newest != EMPTY, np.maximum(self._clock - newest, 0), -1)

    def check(self, owned: list[CellArray]) -> None:
        """Verify the counts, given the cells of each owner.

        Raises:
            AssertionError: if a count differs from the number of owners.
        """
        every = np.concatenate([self._owners[:0], *owned])
        expected = np.bincount(every, minlength=len(self))
        wrong = np.flatnonzero(expected != self._owners)
        if len(wrong):
            raise AssertionError(f"cells {wrong[:8]} have the wrong number of owners")
        if self._owned != np.count_nonzero(expected):
            raise AssertionError(f"{np.count_nonzero(expected)} cells owned, {self._owned} counted")

    def _disown(self, cells: CellArray) -> npt.NDArray[np.bool_]:
        """Remove an owner from each cell and return which have none left."""
        self._owners[cells] -= 1
        is_freed: npt.NDArray[np.bool_] = self._owners[cells] == 0
        self._owned -= int(np.count_nonzero(is_freed))
        return is_freed
