"""Cells without owners, in the order in which they are allocated; see `tampu.kvcache.cells`.

Each token needs a cell, and looking at all cells for each would take milliseconds. So a few of the
next ones are listed at a time. A listed cell may have got an owner since, or been used and freed
again: then its owners or its stamp differ, and it is skipped.

    scattered        empty cells, when no empty block is left     6
    order            the next to be evicted                       7   2   1   0   4   3
    order's stamps   when they were listed                       -1   1   2   3   4   5
"""

from __future__ import annotations

from typing import TypeAlias

import numpy as np
import numpy.typing as npt

CellArray: TypeAlias = npt.NDArray[np.int32]

EMPTY = 0
"""The stamp of an empty cell."""

_BLOCK = 32  # a sequence starts at an empty block of cells: others then mask whole blocks
_SORTED = 1024  # cells that are listed at a time, at most
_STALE = 32  # entries of the order that are skipped without looking at all of it


class FreeCells:
    """Finds cells to allocate."""

    def __init__(self, owners: CellArray, stamps: npt.NDArray[np.int64]) -> None:
        """Find cells by the number of their owners and their stamps, which others change."""
        self._owners = owners
        self._stamps = stamps
        self._may_have_empty = True
        self._scattered = np.empty(0, np.intp)
        self._order = np.empty(0, np.intp)
        self._order_stamps = np.empty(0, np.int64)

    def find(self, count: int, near: int, clock: int) -> npt.NDArray[np.intp]:
        """Return cells without owners, preferably empty ones after `near`.

        `clock` is the greatest stamp of a cell that was freed; popular cells have greater ones.

        Raises:
            IndexError: if there are too few.
        """
        if count == 1 and near >= 0 and self._is_empty(near + 1):
            return np.array([near + 1])
        if count == 1 and (found := self._first(self._scattered, EMPTY, 1)) is not None:
            cells = self._scattered[found]
            self._scattered = self._scattered[found[0] + 1 :]
            return cells
        return (
            self._empty(count, near, clock) if self._may_have_empty else self._evicted(count, clock)
        )

    def demoted(self, cells: CellArray) -> None:
        """Put these cells before all others."""
        others = ~np.isin(self._order, cells)
        self._order = np.concatenate([cells.astype(np.intp), self._order[others]])
        self._order_stamps = np.concatenate([self._stamps[cells], self._order_stamps[others]])

    def emptied(self) -> None:
        """Note that cells may have become empty."""
        self._may_have_empty = True
        self._scattered = self._scattered[:0]

    def _is_empty(self, cell: int) -> bool:
        is_there = cell < len(self._owners)
        return is_there and self._owners[cell] == 0 and bool(self._stamps[cell] == EMPTY)

    def _empty(self, count: int, near: int, clock: int) -> npt.NDArray[np.intp]:
        """Return empty cells, after `near` if there are enough; with too few, evict."""
        is_empty = (self._owners == 0) & (self._stamps == EMPTY)
        empty = np.flatnonzero(is_empty)
        self._may_have_empty = len(empty) > 0
        block = _first_block(is_empty)
        self._scattered = empty if block is None else empty[:0]
        after = near + 1
        is_beside = near >= 0 and after < len(self._owners) and is_empty[after]
        following = empty[np.searchsorted(empty, after if is_beside else block or 0) :]
        if len(following) >= count:
            return following[:count]
        if len(empty) >= count:
            return empty[:count]
        self._sort(count, clock)  # the order has no empty cells
        return self._evicted(count, clock)

    def _evicted(self, count: int, clock: int) -> npt.NDArray[np.intp]:
        """Return the cells that are evicted first."""
        found = self._first(self._order, self._order_stamps, count)
        if found is None:
            self._sort(count, clock)
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

    def _sort(self, count: int, clock: int) -> None:
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
        # What is freed from now on comes after these, but not after popular cells.
        order = order[: max(count, int(np.count_nonzero(stamps[order] <= clock)))]
        self._order, self._order_stamps = free[order], stamps[order]


def _first_block(is_empty: npt.NDArray[np.bool_]) -> int | None:
    """Return where the first empty block of cells begins; None: there is none."""
    whole = len(is_empty) // _BLOCK * _BLOCK
    blocks = is_empty[:whole].reshape(-1, _BLOCK).all(axis=1)
    return int(blocks.argmax()) * _BLOCK if blocks.any() else None
