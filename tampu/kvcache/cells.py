"""Cells of one KV-cache group: reference counts, and which are evicted first.

A cell holds the keys and values of one token in all layers of its group. A sequence is an array of
cells in the order of its tokens; sequences with a common prefix share cells, and nothing is copied.
A cell without owners keeps its row until it is allocated again: empty cells are taken first, then
those whose rows are of little use, then the least recently freed.
"""

from __future__ import annotations

from typing import TypeAlias

import numpy as np
import numpy.typing as npt

CellArray: TypeAlias = npt.NDArray[np.int32]

NO_CELL = -1
"""The cell of a token whose row is not kept."""

_EMPTY = 0  # the stamp of a cell without a row
_DEMOTED = -1  # of one whose row is the first to be evicted
_OFTEN = 2  # a row shared so often is where sequences diverge
_TURNS = 16  # a popular row outlives so many turns of freeing all cells
_BLOCK = 32  # a sequence starts at an empty block of cells: others then mask whole blocks
_SORTED = 1024  # cells: looking at all of them for each token would take milliseconds
_STALE = 32  # entries of the order that are skipped without looking at all of it


class Cells:
    """Counts the owners of each cell and records when it lost the last one.

    Attributes:
        generations: I32, (cells,): how often the cell's row was invalidated. A cell stored together
            with its generation can be checked later: the row is the same if both are equal.
    """

    def __init__(self, count: int) -> None:
        self._owners: CellArray = np.zeros(count, np.int32)
        self._stamps = np.zeros(count, np.int64)
        self._shares: CellArray = np.zeros(count, np.int32)
        self._clock = _EMPTY
        self._owned = 0
        # Each token needs a cell, so one is found without looking at all of them: from these lists,
        # whose entries may be out of date and are checked against owners and stamps.
        self._may_have_empty = True
        self._scattered = np.empty(0, np.intp)  # the empty cells, when no block of them is left
        # The next cells to be evicted, and the stamps that they had when they were sorted.
        self._order = np.empty(0, np.intp)
        self._order_stamps = np.empty(0, np.int64)
        self.generations: CellArray = np.zeros(count, np.int32)

    def __len__(self) -> int:
        return len(self._owners)

    @property
    def available(self) -> int:
        """The number of cells without an owner."""
        return len(self._owners) - self._owned

    @property
    def cached(self) -> int:
        """The number of cells without an owner that keep a row."""
        return int(np.count_nonzero((self._owners == 0) & (self._stamps != _EMPTY)))

    def allocate(self, count: int, near: int = NO_CELL) -> CellArray:
        """Allocate cells, preferably after `near`; the caller has checked `available`."""
        if count == 1 and near >= 0 and self._is_empty(near + 1):
            cells = np.array([near + 1])
        elif count == 1 and (found := self._first(self._scattered, _EMPTY, 1)) is not None:
            cells = self._scattered[found]
            self._scattered = self._scattered[found[0] + 1 :]
        else:
            cells = self._empty(count, near) if self._may_have_empty else self._evicted(count)
        taken: CellArray = cells.astype(np.int32)
        self._owners[taken] = 1
        self._owned += count
        self.generations[taken] += 1
        self._shares[taken] = 0
        return taken

    def spare(self) -> int:
        """Return a cell without an owner, whose row may be overwritten now."""
        taken = self.allocate(1)
        self.discard(taken)
        return int(taken[0])

    def share(self, cells: CellArray) -> None:
        """Add an owner to each cell; their rows stay."""
        self._owned += int(np.count_nonzero(self._owners[cells] == 0))
        self._owners[cells] += 1
        self._shares[cells] += 1

    def free(self, cells: CellArray) -> None:
        """Remove an owner from cells in token order; rows stay until evicted, the last first."""
        freed = cells[self._disown(cells)]
        self._clock += len(freed)
        self._stamps[freed] = self._clock - np.arange(len(freed))

    def discard(self, cells: CellArray) -> None:
        """Remove an owner from each cell; a cell left without owners becomes empty."""
        freed = cells[self._disown(cells)]
        self._stamps[freed] = _EMPTY
        self._find_empty()
        self.generations[freed] += 1

    def demote(self, cells: CellArray) -> None:
        """Have the rows of these cells evicted first, unless they have owners."""
        first = cells[self._owners[cells] == 0]
        self._stamps[first] = _DEMOTED
        others = ~np.isin(self._order, first)
        self._order = np.concatenate([first.astype(np.intp), self._order[others]])
        self._order_stamps = np.concatenate([self._stamps[first], self._order_stamps[others]])

    def touch(self, cells: CellArray) -> None:
        """Count these cells as freed now, the last one last; their rows stay.

        Those of popular rows count as freed later: what others free a few times over goes first.
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
        """Mark the rows of owned cells as changed."""
        self.generations[cells] += 1

    def reset(self) -> None:
        """Mark all rows as changed; owners stay."""
        self._stamps[:] = _EMPTY
        self._find_empty()
        self.generations += 1

    def owners(self, cells: CellArray) -> CellArray:
        """Return the number of owners of each of these cells."""
        return self._owners[cells]

    def ages(self, each: int) -> npt.NDArray[np.int64]:
        """Return of each so many cells how many others were freed after the newest row of them.

        -1: they are empty.
        """
        newest = np.maximum.reduceat(self._stamps, np.arange(0, len(self), each))
        return np.where(newest != _EMPTY, np.maximum(self._clock - newest, 0), -1)

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

    def _is_empty(self, cell: int) -> bool:
        is_there = cell < len(self)
        return is_there and self._owners[cell] == 0 and bool(self._stamps[cell] == _EMPTY)

    def _find_empty(self) -> None:
        """Have the next allocation look for empty cells."""
        self._may_have_empty = True
        self._scattered = self._scattered[:0]

    def _empty(self, count: int, near: int) -> npt.NDArray[np.intp]:
        """Return empty cells, after `near` if there are enough; with too few, evict."""
        is_empty = (self._owners == 0) & (self._stamps == _EMPTY)
        empty = np.flatnonzero(is_empty)
        self._may_have_empty = len(empty) > 0
        block = _first_block(is_empty)
        self._scattered = empty if block is None else empty[:0]
        after = near + 1
        is_beside = near >= 0 and after < len(self) and is_empty[after]
        following = empty[np.searchsorted(empty, after if is_beside else block or 0) :]
        if len(following) >= count:
            return following[:count]
        if len(empty) >= count:
            return empty[:count]
        self._sort(count)  # the order has no empty cells
        return self._evicted(count)

    def _evicted(self, count: int) -> npt.NDArray[np.intp]:
        """Return the cells that are evicted first."""
        found = self._first(self._order, self._order_stamps, count)
        if found is None:
            self._sort(count)
            found = np.arange(count)
        cells = self._order[found]
        used = int(found[-1]) + 1 if count else 0
        self._order, self._order_stamps = self._order[used:], self._order_stamps[used:]
        return np.sort(cells)

    def _first(
        self, cells: npt.NDArray[np.intp], stamps: npt.NDArray[np.int64] | int, count: int
    ) -> npt.NDArray[np.intp] | None:
        """Return the places of the first cells that have no owner and these stamps, if enough."""
        for most in (count + _STALE, len(cells)):
            some = cells[:most]
            wanted = stamps if isinstance(stamps, int) else stamps[:most]
            found = np.flatnonzero((self._owners[some] == 0) & (self._stamps[some] == wanted))
            if len(found) >= count:
                return found[:count]
        return None

    def _sort(self, count: int) -> None:
        """Sort the cells that are evicted next, at least so many.

        Raises:
            IndexError: if fewer are free.
        """
        free = np.flatnonzero(self._owners == 0)
        if len(free) < count:
            raise IndexError(f"{count} cells wanted, {len(free)} are free")
        stamps = self._stamps[free]
        most = min(max(count, _SORTED), len(free))
        order = np.argpartition(stamps, most - 1)[:most] if most < len(free) else np.arange(most)
        order = order[np.argsort(stamps[order])]
        # What is freed from now on comes after these, but not after popular rows.
        order = order[: max(count, int(np.count_nonzero(stamps[order] <= self._clock)))]
        self._order, self._order_stamps = free[order], stamps[order]

    def _disown(self, cells: CellArray) -> npt.NDArray[np.bool_]:
        """Remove an owner from each cell and return which have none left."""
        self._owners[cells] -= 1
        is_freed: npt.NDArray[np.bool_] = self._owners[cells] == 0
        self._owned -= int(np.count_nonzero(is_freed))
        return is_freed


def _first_block(is_empty: npt.NDArray[np.bool_]) -> int | None:
    """Return where the first empty block of cells begins; None: there is none."""
    whole = len(is_empty) // _BLOCK * _BLOCK
    blocks = is_empty[:whole].reshape(-1, _BLOCK).all(axis=1)
    return int(blocks.argmax()) * _BLOCK if blocks.any() else None
