"""KV-cache management: gives cells to sequences, and takes them back.

A running sequence has a `CellTable`. It starts with the longest cached prefix, from any request; it
gets cells for the tokens that it computes; when it ends, its cells stay cached until others need
them (`Cells` evicts).

Layers with the same spec have a group of cells. The groups (`tampu.kvcache.groups`) decide which
cells a sequence needs and which are evicted late; `PrefixCache` finds those that are cached.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import numpy as np

from tampu.kvcache.cells import NO_CELL
from tampu.kvcache.checkpoints import ANSWER_UNIT
from tampu.kvcache.free_cells import CellArray
from tampu.kvcache.groups import KVCacheGroup
from tampu.kvcache.prefix_cache import PrefixCache
from tampu.kvcache.prefix_tree import Keys
from tampu.kvcache.recurrent_group import RecurrentGroup
from tampu.kvcache.table import CellTable, SequenceCells

_NO_LIMIT = 2**31
_NO_KEYS: Keys = np.empty(0, np.int32)


class KVCacheManager:
    """Gives the cells of all groups to sequences.

    Attributes:
        groups: one for each spec of the model's layers.
        prefixes: finds cached prefixes.
        has_states: whether some layers are recurrent, so that sequences continue at checkpoints.
        adopted: the tables of cells that are being filled (`tampu.kvcache.adoption`).
    """

    def __init__(self, groups: Sequence[KVCacheGroup]) -> None:
        self.groups = list(groups)
        self.prefixes = PrefixCache(self.groups)
        self.has_states = any(group.kind == "states" for group in self.groups)
        self.adopted: list[CellTable] = []

    # -- room ------------------------------------------------------------------------------------

    @property
    def available(self) -> int:
        """How many more tokens of any sequences have cells."""
        return min((group.available_tokens for group in self.groups), default=_NO_LIMIT)

    @property
    def capacity(self) -> int:
        """How many tokens have cells at most."""
        return max((group.max_tokens for group in self.groups), default=0)

    @property
    def max_drafts(self) -> int:
        """How many drafts a step may have, apart from the cells that are available."""
        return min((group.max_drafts for group in self.groups), default=_NO_LIMIT)

    def fits(
        self, table: CellTable, keys: Keys, length: int, batch: int, others: int
    ) -> tuple[int, bool]:
        """Return how many tokens a new sequence takes from the cache, and if the rest has cells.

        Args:
            table: of the sequence, empty.
            keys: its first tokens, as far as their cells may be reused.
            length: how many tokens it will have in all.
            batch: how many of them are computed at once, at most.
            others: how many cells must be left for others.
        """
        cells = self.prefixes.match(table.cursor, keys[:0] if table.is_private else keys)[0]
        pairs = zip(self.groups, cells, strict=True)
        has_cells = all(group.fits(cached, length, batch, others) for group, cached in pairs)
        return int(cells.shape[1]), has_cells

    # -- a sequence ------------------------------------------------------------------------------

    def allocate(self, capacity: int, *, is_private: bool = False) -> CellTable:
        """Return an empty table for a sequence of at most `capacity` tokens."""
        cells = np.full((len(self.groups), capacity), NO_CELL, np.int32)
        by_group = [SequenceCells(own) for own in cells]
        return CellTable(cells, by_group, self.prefixes.tree.root(), is_private=is_private)

    def match_prefix(self, table: CellTable, keys: Keys) -> int:
        """Append the cells of the longest cached continuation; return their number.

        Nothing is matched unless all tokens of the sequence are inserted.

        Args:
            table: of the sequence.
            keys: the tokens after its own, as far as their cells may be reused.
        """
        if table.is_private or table.inserted < table.length or not self.groups:
            return 0
        start, cells = table.length, self.prefixes.match(table.cursor, keys)[0]
        count = int(cells.shape[1])
        if not count:
            return 0
        if not start:  # make room for the checkpoints of the other tokens
            self._rank_checkpoints(keys[:count], len(keys))
        for (group, own), cached in zip(self._pairs(table), cells, strict=True):
            group.share(own, start, cached)
        self.prefixes.tree.advance(table.cursor, keys[:count])
        table.length = table.inserted = start + count
        self._mark_resume_point(table)  # the sequence may leave here what it shares with others
        return count

    def append(
        self,
        table: CellTable,
        count: int,
        keys: Keys = _NO_KEYS,
        *,
        is_prompt: bool = False,
        drafts: int = 0,
    ) -> bool:
        """Allocate cells for a sequence's next tokens; return False if too few are available.

        Args:
            table: of the sequence.
            count: how many tokens.
            keys: its tokens, as far as they are known.
            is_prompt: whether `keys` is a prompt that has these tokens; else they are an answer's.
            drafts: how many of the last ones are guesses, which `rollback` may discard.
        """
        start, end = table.length, table.length + count
        if self.has_states and not is_prompt and not start % ANSWER_UNIT:
            # The token of the checkpoint is known since the step that stored its state.
            self.prefixes.insert(table, keys[:start])
            self._rank_checkpoints(keys[:start], start)
        for group, own in self._pairs(table):
            group.advance(own, start)
        if not all(group.has_room(count, drafts) for group in self.groups):
            return False
        prompt_end = len(keys) if is_prompt else 0
        for group, own in self._pairs(table):
            group.append(own, start, end, prompt_end, drafts)
        table.length = end
        if end == prompt_end:
            self._mark_resume_point(table)
        return True

    def insert(self, table: CellTable, keys: Keys) -> None:
        """Insert all known tokens of a sequence into the prefix tree, so that others find them."""
        self.prefixes.insert(table, keys)

    def rollback(self, table: CellTable, length: int) -> None:
        """Discard a sequence's cells after its first `length` tokens.

        They are not computed yet, or no other sequence has read them.
        """
        for group, own in self._pairs(table):
            group.rollback(own, table.length, length)
        table.length = min(table.length, length)
        if table.inserted > table.length:  # the cells' generations show the tree that they are gone
            table.cursor, table.inserted = self.prefixes.tree.root(), 0

    def shift(self, table: CellTable, start: int, end: int) -> list[CellArray] | None:
        """Remove the tokens in [start, end) from a sequence; those after them move forward.

        The sequence is private from then on: what moved differs from the same tokens of a prompt.

        Returns:
            The cells of the tokens that moved, for each group. None, and nothing changes, if some
            of them are shared, if some are missing that would become visible, or if there are
            recurrent layers.
        """
        length = table.length
        if not all(group.can_shift(own, length, start, end) for group, own in self._pairs(table)):
            return None
        moved = [group.shift(own, length, start, end) for group, own in self._pairs(table)]
        table.length -= end - start
        table.exact = min(start, table.exact) if table.is_private else start
        table.is_private = True
        return moved

    def free(self, table: CellTable, keys: Keys) -> None:
        """Free a sequence's cells; what they hold stays cached.

        Args:
            table: of the sequence.
            keys: its tokens, as far as their cells may be reused.
        """
        keys = keys[: table.exact if table.is_private else table.length]
        self.insert(table, keys)
        is_found = self.prefixes.has_own(table, keys)
        self._mark_resume_point(table)
        for (group, own), found in zip(self._pairs(table), is_found, strict=True):
            group.free(own, table.length, found)
        self._rank_checkpoints(keys, len(keys))
        table.inserted = 0

    def is_shared(self, table: CellTable, start: int) -> bool:
        """Return whether others own cells of a sequence from a position on."""
        return any(
            bool(np.any(group.cells.owners(own.owned(start, table.length)) > 1))
            for group, own in self._pairs(table)
        )

    # -- all of them -----------------------------------------------------------------------------

    def reset(self) -> None:
        """Invalidate all that is cached, after a batch failed; owners keep their cells."""
        self.prefixes.tree.clear()
        for group in self.groups:
            group.cells.reset()

    def check(self, tables: Sequence[CellTable]) -> None:
        """Verify the reference counts of all cells, and which inputs of drafts are kept.

        Raises:
            AssertionError: if one is wrong.
        """
        for index, group in enumerate(self.groups):
            every = [*tables, *self.adopted]
            group.cells.check([table.owned(index) for table in every])
            if isinstance(group, RecurrentGroup):
                group.check_inputs([(table.by_group[index], table.length) for table in every])

    # -- inside ----------------------------------------------------------------------------------

    def _pairs(self, table: CellTable) -> Iterator[tuple[KVCacheGroup, SequenceCells]]:
        return zip(self.groups, table.by_group, strict=True)

    def _mark_resume_point(self, table: CellTable) -> None:
        """Expect others to continue at the end of a sequence's tokens, or shortly before it."""
        if not table.is_private:
            for group, own in self._pairs(table):
                group.mark_resume_point(own, table.length)

    def _rank_checkpoints(self, keys: Keys, length: int) -> None:
        """Have the checkpoints of a sequence evicted in the order of their use to others.

        Args:
            keys: its tokens, as far as they are in the prefix tree.
            length: how many it has, as far as that is known.
        """
        if self.has_states and len(keys):
            cells = self.prefixes.cached(keys)[0]
            for group, own in zip(self.groups, cells, strict=True):
                group.rank_checkpoints(own, length)
