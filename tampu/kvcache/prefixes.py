"""Beginnings of prompts that are still in the cache, to be used again.

A finished sequence leaves its tokens and cells here; they stay until the cells are needed, the
least recently used going first. A new sequence takes the longest common beginning of any of them,
compared token by token.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from tampu.kvcache.cells import CellArray, Cells

_NOTHING: CellArray = np.empty(0, np.int32)


@dataclass(slots=True, eq=False)
class _Entry:
    """One remembered beginning: its tokens, and the cell of each."""

    tokens: npt.NDArray[np.int32]
    cells: CellArray


class Prefixes:
    """Remembers token sequences whose keys and values are in the cache."""

    def __init__(self, cells: Cells) -> None:
        self._cells = cells
        self._entries: list[_Entry] = []  # the most recently used is last

    def __len__(self) -> int:
        return len(self._entries)

    def remember(self, tokens: npt.NDArray[np.int32], cells: CellArray) -> None:
        """Take over the ownership of a sequence's cells, one for each token."""
        if len(tokens) == 0:
            return
        for entry in [e for e in self._entries if common_length(e.tokens, tokens) == len(e.tokens)]:
            self._forget(entry)
        self._entries.append(_Entry(tokens.copy(), cells.copy()))

    def longest(self, tokens: npt.NDArray[np.int32]) -> CellArray:
        """Return the cells of the longest remembered beginning of `tokens`; they gain an owner."""
        best, best_length = None, 0
        for entry in self._entries:
            length = common_length(entry.tokens, tokens)
            if length > best_length:
                best, best_length = entry, length
        if best is None:
            return _NOTHING
        self._entries.remove(best)
        self._entries.append(best)
        cells = best.cells[:best_length]
        self._cells.share(cells)
        return cells

    def make_room(self, count: int) -> bool:
        """Forget entries until `count` cells are free; return False if that cannot be."""
        if self._cells.free >= count:
            return True
        if self._cells.free_without(self.owned()) < count:
            return False
        while self._cells.free < count:
            self._forget(self._entries[0])
        return True

    def clear(self) -> None:
        """Forget everything."""
        while self._entries:
            self._forget(self._entries[-1])

    def owned(self) -> list[CellArray]:
        """Return what it owns, for `Cells.check`."""
        return [entry.cells for entry in self._entries]

    def _forget(self, entry: _Entry) -> None:
        self._entries.remove(entry)
        self._cells.release(entry.cells)


def common_length(first: npt.NDArray[np.int32], second: npt.NDArray[np.int32]) -> int:
    """Return how many tokens two sequences have in common at their beginning."""
    length = min(len(first), len(second))
    unlike = np.flatnonzero(first[:length] != second[:length])
    return int(unlike[0]) if len(unlike) else length
