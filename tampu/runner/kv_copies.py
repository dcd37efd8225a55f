"""Copies what the cells of sequences hold, out of the cache and into it, while it is in use.

Only the loop's thread uses the manager of the cells, but any thread may read generations and copy
cells: those that it owns, or others, if their generations are the same after the copy.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from tampu.kvcache import NO_CELL, AttentionGroup, CellTable, KVCacheManager, RecurrentGroup
from tampu.kvcache.block_file import PrefixTokens, Present, without_offset
from tampu.kvcache.block_index import rows_by_group
from tampu.kvcache.checkpoints import KEPT_ENDS
from tampu.kvcache.rows import CacheRows
from tampu.ml.rows import Bytes
from tampu.runner.encoder_cache import EncoderCache
from tampu.runner.variants import PLAIN, Variant

_STATES_EVERY = 2048  # tokens between the states that are kept, besides those at the end

Cells = npt.NDArray[np.int32]


@dataclass(frozen=True, slots=True)
class KVCopies:
    """Copies cells of one cache.

    Attributes:
        manager: of its cells.
        rows: of its layers.
        encoder_cache: knows the digests of images and sounds.
    """

    manager: KVCacheManager
    rows: CacheRows
    encoder_cache: EncoderCache

    def tokens(self, keys: npt.NDArray[np.int32], variant: Variant = PLAIN) -> PrefixTokens | None:
        """Return tokens as other processes know them; None if an image or a sound was forgotten.

        `variant` is how their sequence changes the model.
        """
        media = {}
        plain = without_offset(keys, variant.key_offset)
        for key in np.unique(plain[plain < 0]).tolist():
            digest = self.encoder_cache.digest(-1 - key)
            if digest is None:
                return None
            media[-1 - key] = digest
        return PrefixTokens(keys, media, variant.key_offset, variant.identity)

    def chosen(self, cells: npt.NDArray[np.int32]) -> tuple[Present, list[int]]:
        """Return which cells to store, (groups, n), and where blocks end because of a state.

        Tokens after the first one that lacks a cell that all later ones need are left out.
        """
        present = cells != NO_CELL
        cuts: list[int] = []
        end = present.shape[1]
        for index, group in enumerate(self.manager.groups):
            if isinstance(group, AttentionGroup):
                gaps = np.flatnonzero(~present[index])
                end = min(end, int(gaps[0])) if len(gaps) else end
        for index, group in enumerate(self.manager.groups):
            if isinstance(group, RecurrentGroup):
                kept = _kept_states(np.flatnonzero(present[index, :end]).tolist())
                present[index] = False
                present[index, kept] = True
                cuts += [each + 1 for each in kept]
        return present[:, :end], cuts

    def copy(
        self, cells: Cells, generations: Cells, present: Present, span: tuple[int, int]
    ) -> list[Bytes] | None:
        """Return what the cells of some tokens hold, by group; None if one of them has changed.

        Args:
            cells: (groups, n): of the sequence, by `PrefixCache.cached`.
            generations: (groups, n): of these cells.
            present: (groups, n): which rows to copy.
            span: the first position, and the position after the last.
        """
        here = slice(*span)
        chosen = [
            (cells[group, here][own], generations[group, here][own])
            for group, own in enumerate(present[:, here])
        ]
        copies = [self.rows.read(group, own) for group, (own, _) in enumerate(chosen)]
        prefixes = self.manager.prefixes
        is_same = (prefixes.is_unchanged(group, *of) for group, of in enumerate(chosen))
        return copies if all(is_same) else None

    def fill(
        self, table: CellTable, at: int, span: tuple[int, int], present: Present, data: Bytes
    ) -> bool:
        """Fill the cells that a table has for some tokens; return whether all were there.

        Args:
            table: the cells; nothing reads or writes them yet.
            at: position of the first token in `present`.
            span: the first position to write, and the position after the last.
            present: (groups, n): which rows `data` has.
            data: the rows.
        """
        sizes = [self.rows.bytes_per_cell(group) for group in range(len(self.manager.groups))]
        parts = rows_by_group(data, present, sizes)
        places = self._places(table, at, span, present)
        if parts is None or places is None:
            return False
        for group, (cells, start, count) in enumerate(places):
            self.rows.write(group, cells, parts[group], start, count)
        return True

    def memory(
        self, table: CellTable, at: int, span: tuple[int, int], present: Present
    ) -> list[memoryview] | None:
        """Return where to read the rows that `fill` would write; None if only `fill` can."""
        places = self._places(table, at, span, present)
        found: list[memoryview] = []
        for group, place in enumerate(places or ()):
            own = self.rows.memory(group, *place)
            if own is None:
                return None
            found += own
        return found or None

    def _places(
        self, table: CellTable, at: int, span: tuple[int, int], present: Present
    ) -> list[tuple[Cells, int, int]] | None:
        """Return each group's cells to write, the first of the block's rows there, and their count.

        None if some rows are not there.
        """
        found = []
        if len(present) != len(self.manager.groups):
            return None
        for group, own in enumerate(present):
            first, end = max(span[0], table.by_group[group].owned_from), span[1]
            first = min(first, end)
            if not own[first - at : end - at].all():
                return None
            before = int(own[: first - at].sum())
            found.append((table.cells[group, first:end], before, int(own.sum())))
        return found


def _kept_states(positions: list[int]) -> list[int]:
    """Return after which of these positions states are kept: the last ones, and some earlier.

    Of the states at the end of a prompt the one before its last token is kept, where the same
    prompt can resume.
    """
    kept: list[int] = []
    known = set(positions)
    for position in reversed(positions):
        is_end = len(kept) < KEPT_ENDS and not (kept and position - 1 in known)
        if is_end or not (position + 1) % _STATES_EVERY:
            kept.append(position)
    return kept
