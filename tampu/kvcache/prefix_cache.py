"""The prefix cache: which cells still hold what was computed for the tokens of a prefix.

`PrefixTree` has the cells of all tokens that were inserted. A cell that was given to another token
since has another generation, so it does not count. What is left may have gaps: a sequence continues
at the greatest length at which each group has what the next token needs.

    tokens                   a b c d e f
    attention                x x x x x .    lengths 1 to 5
    window 2                 . . . x x x    5 and 6
    recurrent                . . x . x .    3 and 5
    a sequence continues after e: length 5
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

from tampu.kvcache.cells import NO_CELL
from tampu.kvcache.free_cells import CellArray
from tampu.kvcache.groups import KVCacheGroup
from tampu.kvcache.prefix_tree import CellRefs, Cursor, Keys, PrefixTree
from tampu.kvcache.table import CellTable


class PrefixCache:
    """Finds the cells of prefixes.

    Attributes:
        tree: all sequences whose cells may be cached.
    """

    def __init__(self, groups: Sequence[KVCacheGroup]) -> None:
        self.tree = PrefixTree(len(groups))
        self._groups = groups

    def match(self, cursor: Cursor, keys: Keys) -> CellRefs:
        """Return the cells with which a sequence can continue at most, (2, groups, n).

        Args:
            cursor: after the sequence's tokens.
            keys: the next ones.
        """
        matched, refs = self.tree.match(cursor, keys)
        if not matched:
            return refs
        return refs[:, :, : self.continuable(cursor.depth, self.is_cached(refs))]

    def continuable(self, start: int, is_cached: npt.NDArray[np.bool_]) -> int:
        """Return how many tokens a sequence of `start` tokens gains at most.

        Args:
            start: its length.
            is_cached: (groups, n): whether the cells of the next tokens are cached.
        """
        can_end = np.ones(is_cached.shape[1], np.bool_)
        for group, own in zip(self._groups, is_cached, strict=True):
            can_end &= group.resumable(own, start)
        lengths = np.flatnonzero(can_end)
        return int(lengths[-1]) + 1 if len(lengths) else 0

    def count_cached(self, keys: Keys) -> int:
        """Return how many of the first tokens a new sequence would take from the cache."""
        return int(self.match(self.tree.root(), keys).shape[2])

    def cached(self, keys: Keys) -> CellRefs:
        """Return the cells of the longest known prefix, (2, groups, n); NO_CELL: not cached.

        The second of each pair is the cell's generation. While it stays the same, the cell does.
        """
        _, refs = self.tree.match(self.tree.root(), keys)
        refs = refs.copy()
        refs[0][~self.is_cached(refs)] = NO_CELL
        return refs

    def next_cell(self, table: CellTable, keys: Keys) -> int:
        """Return the cached cell of a sequence's next token (`keys`) in the first group."""
        if table.is_private or table.inserted < table.length or not self._groups:
            return NO_CELL
        matched, refs = self.tree.match(table.cursor, keys)
        return int(refs[0, 0, 0]) if matched and self.is_cached(refs).all() else NO_CELL

    def insert(self, table: CellTable, keys: Keys) -> None:
        """Insert all known tokens of a sequence into the tree, so that others find them."""
        end = min(len(keys), table.length)
        if table.is_private or end <= table.inserted:
            return
        if not self.tree.contains(table.cursor):
            table.cursor, table.inserted = self.tree.root(), 0
        start = table.inserted
        refs = self._refs(table, start, end)
        self.tree.evict([group.cells.generations for group in self._groups])
        _, known = self.tree.match(table.cursor, keys[start:end])
        self.tree.insert(table.cursor, keys[start:end], refs)
        is_outdated = ~self.is_cached(known)
        if is_outdated.any():
            padded = np.zeros(refs.shape[1:], np.bool_)
            padded[:, : known.shape[2]] = is_outdated
            self.tree.replace(table.cursor, end - start, padded, refs)
        table.inserted = end

    def has_own(self, table: CellTable, keys: Keys) -> npt.NDArray[np.bool_]:
        """Return for which tokens the tree has a sequence's own cells, (groups, n)."""
        matched, refs = self.tree.match(self.tree.root(), keys)
        is_own: npt.NDArray[np.bool_] = refs[0] == table.cells[:, :matched]
        return is_own & self.is_cached(refs)

    def forget(self, keys: Keys) -> int:
        """Empty the cells of some tokens that no running sequence has; return their number.

        They are not found any more, also not by other sequences that begin with these tokens.
        """
        is_gone = np.zeros(len(keys), np.bool_)
        for group, cells in zip(self._groups, self.cached(keys)[0], strict=True):
            at = np.flatnonzero(cells != NO_CELL)
            at = at[group.cells.owners(cells[at]) == 0]
            group.cells.share(cells[at])
            group.cells.discard(cells[at])
            is_gone[at] = True
        return int(is_gone.sum())

    def is_unchanged(self, group: int, cells: CellArray, generations: CellArray) -> bool:
        """Return whether some cells have these generations still; any thread may."""
        return bool(np.array_equal(self._groups[group].cells.generations[cells], generations))

    def is_cached(self, refs: CellRefs) -> npt.NDArray[np.bool_]:
        """Return whether each cell still has its generation, (groups, n)."""
        cells, generations = refs
        is_cached: npt.NDArray[np.bool_] = cells >= 0
        for index, group in enumerate(self._groups):
            is_cached[index] &= group.cells.generations[cells[index]] == generations[index]
        return is_cached

    def _refs(self, table: CellTable, start: int, end: int) -> CellRefs:
        """Return a sequence's own cells in [start, end), with their generations."""
        cells = table.cells[:, start:end].copy()
        generations = np.zeros_like(cells)
        for index, (group, own) in enumerate(zip(self._groups, table.by_group, strict=True)):
            cells[index, : max(0, own.owned_from - start)] = NO_CELL
            cells[index, cells[index] < NO_CELL] = NO_CELL  # kept inputs are the sequence's alone
            generations[index] = group.cells.generations[cells[index]]
        return np.stack([cells, generations])
