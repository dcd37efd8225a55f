"""What each token of a batch sees: the masks of attention, made of positions and cells."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from tampu.kvcache.spec import Reach

Mask = npt.NDArray[np.float16]

_VISIBLE = np.float16(0.0)
_HIDDEN = np.float16(-np.inf)
_FOREIGN = np.iinfo(np.int32).max  # the position of a cell that is not the sequence's


@dataclass(frozen=True, slots=True)
class Span:
    """A range of cells that a batch reads.

    Attributes:
        start: its first cell.
        length: how many.
    """

    start: int
    length: int


@dataclass(frozen=True, slots=True)
class Segment:
    """The part of a batch that belongs to one sequence.

    Attributes:
        cells: I32, (spaces, end): of the sequence's tokens from its first to the last of this
            segment; those that no token of the segment sees are not looked at.
        start: position of the segment's first token.
        groups: (start, end) positions of tokens that see one another both ways.
    """

    cells: npt.NDArray[np.int32]
    start: int
    groups: tuple[tuple[int, int], ...] = ()

    @property
    def end(self) -> int:
        """The position after the segment's last token."""
        return int(self.cells.shape[1])

    def seen(self, space: int, reach: Reach) -> tuple[int, npt.NDArray[np.int32]]:
        """Return the first position that any of its tokens sees, and the cells from there on."""
        first = min(reach.first(self.start), self.start)
        return first, self.cells[space, first:]


def attention_mask(segments: Sequence[Segment], space: int, reach: Reach, span: Span) -> Mask:
    """Return the mask (tokens, span length): 0 where a token sees a cell, -inf elsewhere.

    A token sees its own sequence's cells as far back as its reach goes, up to itself, or to the end
    of the group that it belongs to.
    """
    masks = [_segment_mask(segment, space, reach, span) for segment in segments]
    return masks[0] if len(masks) == 1 else np.concatenate(masks)


def _segment_mask(segment: Segment, space: int, reach: Reach, span: Span) -> Mask:
    first, cells = segment.seen(space, reach)
    position_of_cell = np.full(span.length, _FOREIGN, np.int32)
    position_of_cell[cells - span.start] = np.arange(first, segment.end, dtype=np.int32)
    positions = np.arange(segment.start, segment.end, dtype=np.int32)
    last = positions.copy()
    for start, end in segment.groups:
        last[max(start - segment.start, 0) : max(end - segment.start, 0)] = end - 1
    is_visible = position_of_cell <= last[:, None]
    if reach.limit is not None and segment.end > reach.limit:
        is_visible &= position_of_cell >= reach.firsts(positions)[:, None]
    return np.where(is_visible, _VISIBLE, _HIDDEN)
