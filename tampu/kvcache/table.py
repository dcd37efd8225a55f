"""The cells of a sequence, and the groups that they belong to; see `tampu.kvcache.manager`."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np
import numpy.typing as npt

from tampu.kvcache.cells import NO_CELL, CellArray, Cells
from tampu.kvcache.checkpoints import CheckpointGrid
from tampu.kvcache.prefix_tree import Cursor
from tampu.kvcache.spec import KVCacheSpec


@dataclass(frozen=True, slots=True)
class KVCacheGroup:
    """The cells of all layers with one spec.

    Attributes:
        spec: of the layers.
        cells: of tokens, or of states after some tokens.
        grid: where states are kept; None: each token has a cell.
        reserved: cells that checkpoints leave to other sequences.
    """

    spec: KVCacheSpec
    cells: Cells
    grid: CheckpointGrid | None = None
    reserved: int = 0


@dataclass(frozen=True, slots=True)
class ResumePoint:
    """Rows from which others can continue a sequence, in a group with a window.

    Attributes:
        group: the index of the group.
        cells: I32, (n,): of the rows.
        generations: I32, (n,): of the cells.
    """

    group: int
    cells: CellArray
    generations: CellArray


@dataclass(slots=True, eq=False)
class CellTable:
    """The cells of one sequence.

    Attributes:
        cells: I32, (groups, capacity): each token's cell; NO_CELL where its row is not kept.
        owned_from: for each group, the first position whose cell the sequence owns.
        length: number of tokens with cells.
        inserted: how many of them are in the prefix tree.
        cursor: after the last of those.
        is_private: whether its rows are hidden from others, and theirs from it.
        exact: length of its prefix whose rows others may find nevertheless.
        transient: positions whose states are dropped once the sequence has advanced.
        resume_points: where others are likely to go on, the newest last.
    """

    cells: npt.NDArray[np.int32]
    owned_from: list[int]
    cursor: Cursor
    length: int = 0
    inserted: int = 0
    is_private: bool = False
    exact: int = 0
    transient: set[int] = field(default_factory=set)
    resume_points: list[ResumePoint] = field(default_factory=list)

    def owned(self, group: int, start: int = 0) -> CellArray:
        """Return the cells that it owns in a group, from a position on."""
        cells = self.cells[group, max(start, self.owned_from[group]) : self.length]
        kept: CellArray = cells[cells != NO_CELL]
        return kept


def shift_cells(
    groups: Sequence[KVCacheGroup], table: CellTable, start: int, end: int
) -> list[CellArray] | None:
    """Remove the tokens in [start, end) from a sequence; those after them move forward.

    The sequence is private from then on: the rows that moved differ from those of a new prompt.

    Returns:
        The cells of the tokens that moved, for each group. None, and nothing changes, if some
        of them are shared, if rows are missing that would become visible, or if there are
        recurrent layers, whose states include the removed tokens.
    """
    if not all(_can_shift(group, table, index, start, end) for index, group in enumerate(groups)):
        return None
    moved = []
    for index, group in enumerate(groups):
        owned = table.owned_from[index]
        group.cells.free(table.cells[index, max(start, owned) : max(end, owned)])
        cells = table.cells[index, max(end, owned) : table.length].copy()
        group.cells.invalidate(cells)
        tail = table.cells[index, end : table.length].copy()
        table.cells[index, start : start + len(tail)] = tail
        table.owned_from[index] = owned - (end - start) if owned >= end else min(owned, start)
        moved.append(cells)
    table.length -= end - start
    table.exact = min(start, table.exact) if table.is_private else start
    table.is_private = True
    return moved


def _can_shift(group: KVCacheGroup, table: CellTable, index: int, start: int, end: int) -> bool:
    owned = table.owned_from[index]
    if group.spec.is_recurrent:
        return False
    first = group.spec.first_visible(table.length - (end - start))
    is_complete = owned <= (first + end - start if first >= start else first)
    moved = table.cells[index, max(end, owned) : table.length]
    return is_complete and not bool(np.any(group.cells.owners(moved) > 1))
