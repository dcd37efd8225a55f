"""The cells of one sequence in all groups; see `tampu.kvcache.manager`."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from tampu.kvcache.cells import NO_CELL
from tampu.kvcache.free_cells import CellArray
from tampu.kvcache.prefix_tree import Cursor


class ResumePoint(NamedTuple):
    """Cells from which others can continue a sequence, in a group with a window.

    Attributes:
        cells: I32, (n,).
        generations: I32, (n,): of the cells, when the point was marked.
    """

    cells: CellArray
    generations: CellArray


@dataclass(slots=True, eq=False)
class SequenceCells:
    """The cells of one sequence in one group, which alone changes it.

    Attributes:
        cells: I32, (capacity,): each token's cell; NO_CELL where nothing is stored for it; less
            where its inputs are kept (`inputs_or_cell`).
        owned_from: the first position whose cell the sequence owns.
        resume_points: where others are likely to continue, the newest last (`WindowGroup`).
        transient: positions whose states are dropped once the sequence has advanced
            (`RecurrentGroup`).
    """

    cells: CellArray
    owned_from: int = 0
    resume_points: list[ResumePoint] = field(default_factory=list)
    transient: set[int] = field(default_factory=set)

    def before(self, position: int) -> int:
        """Return the cell of the token before a position, or NO_CELL."""
        return max(int(self.cells[position - 1]), NO_CELL) if position else NO_CELL

    def owned(self, start: int, end: int) -> CellArray:
        """Return the cells that the sequence owns in [start, end)."""
        cells = self.cells[max(start, self.owned_from) : end]
        found: CellArray = cells[cells > NO_CELL]
        return found


@dataclass(slots=True, eq=False)
class CellTable:
    """The cells of one sequence.

    Attributes:
        cells: I32, (groups, capacity): those of all groups.
        by_group: the same, one object for each group.
        cursor: in the prefix tree, after its last inserted token.
        length: number of tokens with cells.
        inserted: how many of them are in the prefix tree.
        is_private: whether others cannot reuse its cells, nor it theirs.
        exact: length of its prefix that others may reuse nevertheless.
    """

    cells: npt.NDArray[np.int32]
    by_group: list[SequenceCells]
    cursor: Cursor
    length: int = 0
    inserted: int = 0
    is_private: bool = False
    exact: int = 0

    def owned(self, group: int, start: int = 0) -> CellArray:
        """Return the cells that it owns in a group, from a position on."""
        return self.by_group[group].owned(start, self.length)

    def last_cell(self) -> int:
        """Return the cell of its last token in the first group, or NO_CELL."""
        return self.by_group[0].before(self.length) if self.by_group else NO_CELL
