"""KV-cache management: allocates cells to sequences and reuses cached prefixes.

A running sequence has a `CellTable`. It starts with the longest cached prefix, from any request; it
gets cells for the tokens that it computes; when it ends, its rows stay cached until their cells are
needed (`Cells` evicts).

Each KV-cache spec of the layers has its own group of cells. In a group with a window a sequence
owns only the cells that its next token attends to, and frees the others as it advances; those from
which others are likely to go on are evicted last (`mark_resume_point`). In the
group of recurrent layers only some tokens have a cell: the last of each batch, and checkpoints,
from which a sequence may resume. When a sequence ends, those that `CheckpointGrid` would not keep
for a sequence of its length are evicted before others.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence

import numpy as np
import numpy.typing as npt

from tampu.kvcache.cells import NO_CELL, CellArray
from tampu.kvcache.checkpoints import KEPT_ENDS, CheckpointGrid
from tampu.kvcache.prefix_tree import CellRefs, Keys, PrefixTree
from tampu.kvcache.table import CellTable, KVCacheGroup, ResumePoint, shift_cells

_RESUME_POINTS = 4  # of a sequence, in each group with a window
_RESUME_MARGIN = 32  # tokens before such a point from which others may go on as well
_TOUCH_EVERY = 64  # tokens of an answer; a prompt's after each batch
_NO_LIMIT = 2**31


class KVCacheManager:
    """Allocates the cells of all groups.

    Attributes:
        groups: one for each spec of the model's layers.
        tree: finds cached prefixes.
    """

    def __init__(self, groups: Sequence[KVCacheGroup]) -> None:
        self.groups = list(groups)
        self.tree = PrefixTree(len(self.groups))
        self._adopted: list[CellTable] = []

    @property
    def grid(self) -> CheckpointGrid | None:
        """Where the states of recurrent layers are kept; None: there are none."""
        return next((group.grid for group in self.groups if group.grid), None)

    def allocate(self, capacity: int, *, is_private: bool = False) -> CellTable:
        """Return an empty table for a sequence of at most `capacity` tokens."""
        cells = np.full((len(self.groups), capacity), NO_CELL, np.int32)
        starts = [0] * len(self.groups)
        return CellTable(cells, starts, self.tree.root(), is_private=is_private)

    def match_prefix(self, table: CellTable, keys: Keys) -> int:
        """Append the cells of the longest cached continuation; return their number.

        Nothing is matched unless all tokens of the sequence are inserted.

        Args:
            table: of the sequence.
            keys: the tokens after its own, as far as their rows may be reused.
        """
        if table.is_private or table.inserted < table.length or not self.groups:
            return 0
        matched, refs = self.tree.match(table.cursor, keys)
        count = self._usable_length(table.length, refs) if matched else 0
        if count:
            if not table.length:  # make room for the checkpoints of the other tokens
                self.rank_checkpoints(keys[:count], len(keys))
            self._share(table, refs[0, :, :count])
            self.tree.advance(table.cursor, keys[:count])
            table.inserted = table.length
            self.mark_resume_point(table)
        return count

    def mark_resume_point(self, table: CellTable) -> None:
        """Expect others to go on from the end of a sequence's tokens, or shortly before it.

        So it is with the end of a prompt, where its answer is asked for again or continued without
        its reasoning, with the end of an answer, and where a sequence left what it shares with
        others. In groups with a window
        the rows that they need outlive those that the sequence passes afterwards.
        """
        if table.is_private:
            return
        for index, group in enumerate(self.groups):
            if group.spec.max_visible is not None:
                first = group.spec.first_visible(max(table.length - _RESUME_MARGIN, 0))
                cells = table.cells[index, first : table.length]
                cells = cells[cells != NO_CELL]
                point = ResumePoint(index, cells, group.cells.generations[cells])
                table.resume_points.append(point)
        del table.resume_points[: -_RESUME_POINTS * len(self.groups)]

    def cached(self, keys: Keys) -> CellRefs:
        """Return the cells of the longest cached beginning, (2, groups, n); NO_CELL: not cached.

        The second of each pair is the cell's generation. While it stays the same, the row does.
        """
        _, refs = self.tree.match(self.tree.root(), keys)
        refs = refs.copy()
        refs[0][~self._is_cached(refs)] = NO_CELL
        return refs

    def count_cached(self, keys: Keys) -> int:
        """Return how many of the first tokens a new sequence would take from the cache."""
        return self._usable_length(0, self.tree.match(self.tree.root(), keys)[1])

    def fits(
        self, table: CellTable, keys: Keys, length: int, batch: int, beside: int
    ) -> tuple[int, bool]:
        """Return how many tokens a new sequence takes from the cache, and if the rest has cells.

        States of recurrent layers are not counted: each slot has its own.

        Args:
            table: of the sequence, empty.
            keys: its first tokens, as far as their rows may be reused.
            length: how many tokens it will have in all.
            batch: how many of them are computed at once, at most.
            beside: how many cells must be left for others.
        """
        refs = self.tree.match(table.cursor, keys[:0] if table.is_private else keys)[1]
        count = self._usable_length(0, refs)
        has_cells = True
        for index, group in enumerate(self.groups):
            if group.spec.is_recurrent:
                continue
            shared = refs[0, index, group.spec.first_visible(count) : count]
            shared = shared[shared != NO_CELL]
            unowned = int((group.cells.owners(shared) == 0).sum())
            visible, wanted = group.spec.max_visible, length - count
            if visible is not None:
                wanted = min(wanted, visible + batch)
            has_cells &= group.cells.available - unowned >= wanted + beside
        return count, has_cells

    @property
    def available(self) -> int:
        """How many tokens of any sequences have cells; states of recurrent layers are not counted.

        Without layers that attend it is more than any batch has.
        """
        left = (group.cells.available for group in self.groups if not group.spec.is_recurrent)
        return min(left, default=_NO_LIMIT)

    @property
    def capacity(self) -> int:
        """How many tokens have cells at most; states of recurrent layers are not counted."""
        counts = (len(group.cells) for group in self.groups if not group.spec.is_recurrent)
        return max(counts, default=0)

    def is_unchanged(self, group: int, cells: CellArray, generations: CellArray) -> bool:
        """Return whether the rows of some cells are those of these generations; any thread may."""
        return bool(np.array_equal(self.groups[group].cells.generations[cells], generations))

    def adopt(
        self, keys: Keys, present: npt.NDArray[np.bool_], least: int
    ) -> tuple[CellTable, int] | None:
        """Allocate cells for rows that are known elsewhere, as for a sequence of these tokens.

        Args:
            keys: the tokens.
            present: (groups, n): which of their rows are known.
            least: how many tokens there must be to gain, beside those that are cached.

        Returns:
            A table, and how many of its tokens are cached; the others' rows are to be written,
            before the table is inserted and freed. None if too few are gained, or cells are few.
        """
        table = self.allocate(len(keys))
        start = self.match_prefix(table, keys)
        can_end = np.ones(len(keys) - start, np.bool_)
        for index, group in enumerate(self.groups):
            can_end &= group.spec.resumable(present[index, start:], start)
        lengths = np.flatnonzero(can_end)
        end = start + int(lengths[-1]) + 1 if len(lengths) else start
        firsts = [max(group.spec.first_visible(end), start) for group in self.groups]
        has_room = all(
            group.cells.available - group.reserved >= end - first
            for group, first in zip(self.groups, firsts, strict=True)
        )
        if end - start < least or not has_room:
            self.free(table, keys[:start])
            return None
        table.cells[:, start:end] = NO_CELL
        for index, group in enumerate(self.groups):
            near = int(table.cells[index, start - 1]) if start else NO_CELL
            first = firsts[index]
            table.cells[index, first:end] = group.cells.allocate(end - first, near)
            self._free_before(table, index, group.spec.first_visible(end))
            table.owned_from[index] = max(table.owned_from[index], group.spec.first_visible(end))
        table.length = end
        self._adopted.append(table)
        return table, start

    def finish_adopted(self, table: CellTable, keys: Keys) -> None:
        """Insert an adopted table into the tree and free it: its rows are cached now.

        Args:
            table: of `adopt`.
            keys: its tokens, as far as all of their rows have been written.
        """
        self._adopted.remove(table)
        if len(keys) < table.length:
            self.rollback(table, len(keys))
        self.free(table, keys)

    def forget(self, keys: Keys) -> int:
        """Drop the cached rows of some tokens that no running sequence has; return their number.

        They are not found any more, also not by other sequences that begin with these tokens.
        """
        cells = self.cached(keys)[0]
        gone = np.zeros(cells.shape[1], np.bool_)
        for index, group in enumerate(self.groups):
            at = np.flatnonzero(cells[index] != NO_CELL)
            at = at[group.cells.owners(cells[index, at]) == 0]
            group.cells.share(cells[index, at])
            group.cells.discard(cells[index, at])
            gone[at] = True
        return int(gone.sum())

    def next_cell(self, table: CellTable, keys: Keys) -> int:
        """Return the cached cell of the next token (`keys`), without using it, or NO_CELL."""
        if table.is_private or table.inserted < table.length or not self.groups:
            return NO_CELL
        matched, refs = self.tree.match(table.cursor, keys)
        is_cached = bool(matched) and bool(self._is_cached(refs).all())
        return int(refs[0, 0, 0]) if is_cached else NO_CELL

    def last_cell(self, table: CellTable) -> int:
        """Return the cell of a sequence's last token, or NO_CELL."""
        return int(table.cells[0, table.length - 1]) if self.groups else NO_CELL

    def append(self, table: CellTable, count: int, checkpoints: Collection[int] = ()) -> bool:
        """Allocate cells for a sequence's next tokens; return False if too few are available.

        Args:
            table: of the sequence.
            count: of tokens.
            checkpoints: positions after which states are kept (others are ignored), the last ones
                if there are few cells; the state after the last token is stored in any case.
        """
        start, end = table.length, table.length + count
        written = sorted({end - 1, *(each for each in checkpoints if each >= start)})
        for index, group in enumerate(self.groups):
            self._free_before(table, index, group.spec.first_visible(start))
        table.transient = {each for each in table.transient if each >= start - 1}
        written = written[-self._affordable(len(written)) :]
        wanted = [len(written) if group.spec.is_recurrent else count for group in self.groups]
        if any(s.cells.available < n for s, n in zip(self.groups, wanted, strict=True)):
            return False
        for index, group in enumerate(self.groups):
            near = int(table.cells[index, start - 1]) if start else NO_CELL
            table.cells[index, start:end] = NO_CELL
            at = written if group.spec.is_recurrent else slice(start, end)
            table.cells[index, at] = group.cells.allocate(wanted[index], near)
        table.length = end
        if end - 1 not in checkpoints:
            table.transient.add(end - 1)
        return True

    def insert(self, table: CellTable, keys: Keys) -> None:
        """Insert all known tokens of a sequence into the prefix tree, so that others find them."""
        end = min(len(keys), table.length)
        if table.is_private or end <= table.inserted:
            return
        if not self.tree.contains(table.cursor):
            table.cursor, table.inserted = self.tree.root(), 0
        start = table.inserted
        refs = self._refs(table, start, end)
        self.tree.evict([group.cells.generations for group in self.groups])
        _, known = self.tree.match(table.cursor, keys[start:end])
        self.tree.insert(table.cursor, keys[start:end], refs)
        is_outdated = ~self._is_cached(known)
        if is_outdated.any():
            padded = np.zeros(refs.shape[1:], np.bool_)
            padded[:, : known.shape[2]] = is_outdated
            self.tree.replace(table.cursor, end - start, padded, refs)
        table.inserted = end

    def rollback(self, table: CellTable, length: int) -> None:
        """Discard a sequence's cells after its first `length` tokens, before they are computed."""
        for index, group in enumerate(self.groups):
            group.cells.discard(table.owned(index, length))
            table.owned_from[index] = min(table.owned_from[index], length)
        table.transient = {each for each in table.transient if each < length}
        table.length = min(table.length, length)
        if table.inserted > table.length:  # the cells' generations show the tree that they are gone
            table.cursor, table.inserted = self.tree.root(), 0

    def shift(self, table: CellTable, start: int, end: int) -> list[CellArray] | None:
        """Remove the tokens in [start, end) from a sequence; see `shift_cells`."""
        return shift_cells(self.groups, table, start, end)

    def free(self, table: CellTable, keys: Keys, *, is_valid: bool = True) -> None:
        """Free a sequence's cells; its rows stay cached.

        Args:
            table: of the sequence.
            keys: its tokens, as far as their rows may be reused.
            is_valid: whether any row may be reused.
        """
        exact = table.exact if table.is_private else table.length
        kept = min(len(keys), exact) if is_valid else 0
        self.insert(table, keys[:kept])
        indexed = self._indexed(table, keys[:kept])
        self.mark_resume_point(table)
        for index, group in enumerate(self.groups):
            start = table.owned_from[index]
            own = table.cells[index, start : table.length]
            is_found = np.zeros(len(own), np.bool_)
            part = indexed[index, start:]
            is_found[: len(part)] = part
            if group.spec.is_recurrent:
                transient = [each - start for each in table.transient if start <= each < kept - 1]
                is_found[transient] = False
            group.cells.free(own[is_found])
            group.cells.discard(own[~is_found & (own != NO_CELL)])
            self._touch_resume_points(table, index)
        self.rank_checkpoints(keys[:kept], kept)
        table.inserted = 0

    def rank_checkpoints(self, keys: Keys, length: int) -> None:
        """Evict the checkpoints of a sequence that the grid does not keep before all others.

        Its last ones are kept in any case, the ends of the last answers and prompts, and so are
        those from which several sequences went on.

        Args:
            keys: its tokens, as far as they are in the prefix tree.
            length: of the sequence, as far as it is known.
        """
        if self.grid is None or not len(keys):
            return
        _, refs = self.tree.match(self.tree.root(), keys)
        is_cached = self._is_cached(refs)
        for index, group in enumerate(self.groups):
            if group.grid is None:
                continue
            after = np.flatnonzero(is_cached[index])
            cells = refs[0, index, after]
            is_on_grid = group.grid.has(after, length) | group.cells.is_popular(cells)
            others = cells[~is_on_grid]
            group.cells.demote(others[:-KEPT_ENDS])
            group.cells.touch(others[-KEPT_ENDS:])
            group.cells.touch(cells[is_on_grid])

    def is_shared(self, table: CellTable, start: int) -> bool:
        """Return whether others own cells of a sequence from a position on."""
        return any(
            bool(np.any(group.cells.owners(table.owned(index, start)) > 1))
            for index, group in enumerate(self.groups)
        )

    def reset(self) -> None:
        """Invalidate all cached rows, after a batch failed; owners keep their cells."""
        self.tree.clear()
        for group in self.groups:
            group.cells.reset()

    def check(self, tables: Sequence[CellTable]) -> None:
        """Verify the reference counts of all cells.

        Raises:
            AssertionError: if one is wrong.
        """
        for index, group in enumerate(self.groups):
            every = [*tables, *self._adopted]
            group.cells.check([table.owned(index) for table in every])

    # -- inside ----------------------------------------------------------------------------------

    def _affordable(self, states: int) -> int:
        """Return how many of the states after a batch's tokens can be stored, at least one."""
        for group in self.groups:
            if group.spec.is_recurrent:
                states = min(states, group.cells.available - group.reserved)
        return max(states, 1)

    def _usable_length(self, start: int, refs: CellRefs) -> int:
        """Return how many of the tokens after `start` a sequence can reuse."""
        is_cached = self._is_cached(refs)
        can_end = np.ones(refs.shape[2], np.bool_)
        for index, group in enumerate(self.groups):
            can_end &= group.spec.resumable(is_cached[index], start)
        lengths = np.flatnonzero(can_end)
        return int(lengths[-1]) + 1 if len(lengths) else 0

    def _is_cached(self, refs: CellRefs) -> npt.NDArray[np.bool_]:
        """Return whether each cell still holds its row, (groups, n)."""
        cells, generations = refs
        is_cached: npt.NDArray[np.bool_] = cells >= 0
        for index, group in enumerate(self.groups):
            is_cached[index] &= group.cells.generations[cells[index]] == generations[index]
        return is_cached

    def _share(self, table: CellTable, cells: npt.NDArray[np.int32]) -> None:
        """Append shared cells of the next tokens, as far as each group needs them."""
        start, end = table.length, table.length + cells.shape[1]
        table.cells[:, start:end] = NO_CELL
        for index, group in enumerate(self.groups):
            first = max(group.spec.first_visible(end), start)
            own = cells[index, first - start :]
            group.cells.share(own)
            table.cells[index, first:end] = own
            self._free_before(table, index, group.spec.first_visible(end))
            table.owned_from[index] = max(table.owned_from[index], group.spec.first_visible(end))
        table.length = end

    def _free_before(self, table: CellTable, index: int, first: int) -> None:
        """Free the cells that a sequence owns before a position."""
        old, group = table.owned_from[index], self.groups[index]
        end = min(first, table.length)
        if end <= old:
            return
        left = table.cells[index, old:end]
        if group.spec.is_recurrent:
            is_passing = np.isin(np.arange(old, end), list(table.transient))
            group.cells.discard(left[is_passing & (left != NO_CELL)])
            left = left[~is_passing & (left != NO_CELL)]
        group.cells.free(left)
        table.owned_from[index] = end
        if end - old > 1 or not end % _TOUCH_EVERY:
            self._touch_resume_points(table, index)

    def _touch_resume_points(self, table: CellTable, index: int) -> None:
        """Have the rows of a sequence's resume points evicted after all others."""
        cells = self.groups[index].cells
        for point in table.resume_points:
            if point.group == index:
                cells.touch(point.cells[cells.generations[point.cells] == point.generations])

    def _refs(self, table: CellTable, start: int, end: int) -> CellRefs:
        cells = table.cells[:, start:end].copy()
        generations = np.zeros_like(cells)
        for index, group in enumerate(self.groups):
            cells[index, : max(0, table.owned_from[index] - start)] = NO_CELL
            generations[index] = group.cells.generations[cells[index]]
        return np.stack([cells, generations])

    def _indexed(self, table: CellTable, keys: Keys) -> npt.NDArray[np.bool_]:
        """Return which of a sequence's rows can be found in the tree, (groups, n)."""
        matched, refs = self.tree.match(self.tree.root(), keys)
        is_own: npt.NDArray[np.bool_] = refs[0] == table.cells[:, :matched]
        return is_own & self._is_cached(refs)
