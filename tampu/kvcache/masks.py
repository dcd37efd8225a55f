"""Attention masks over cells, from the positions of tokens."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from tampu.kvcache.cells import NO_CELL
from tampu.kvcache.spec import KVCacheSpec

Mask = npt.NDArray[np.float16]

ALIGNMENT = 64
"""Positions of a tile of attention, as the package's kernels divide a history."""

_VISIBLE = np.float16(0.0)
_HIDDEN = np.float16(-np.inf)
_FARTHEST = int(np.finfo(np.float16).max)
_OTHER = np.iinfo(np.int32).max  # the position of cells of other sequences


@dataclass(frozen=True, slots=True)
class CellRange:
    """A range of cells that a batch reads."""

    start: int
    length: int


@dataclass(frozen=True, slots=True)
class PositionRange:
    """What a batch reads by position.

    Attributes:
        sequences: how many, at least those of the batch.
        length: positions of each, from its first multiple of `ALIGNMENT` that is needed on.
    """

    sequences: int
    length: int


@dataclass(frozen=True, slots=True)
class Segment:
    """The part of a batch that belongs to one sequence.

    Attributes:
        cells: I32, (groups, end): the sequence's cells up to the last token of this segment; cells
            that no token attends to are not read.
        start: position of the segment's first token.
        bidirectional: (start, end) positions of tokens that attend to one another both ways.
        unstored: how many of its last tokens have no cells: they attend to those before, and no
            layer stores keys and values of them.
    """

    cells: npt.NDArray[np.int32]
    start: int
    bidirectional: tuple[tuple[int, int], ...] = ()
    unstored: int = 0

    @property
    def end(self) -> int:
        """The position after the segment's last token."""
        return int(self.cells.shape[1]) + self.unstored

    def written(self, group: int) -> npt.NDArray[np.int64]:
        """Return the cell of each token; of one without, the last one, which is not written."""
        cells = self.cells[group]
        own = np.concatenate([cells[self.start :], np.repeat(cells[-1:], self.unstored)])
        return own.astype(np.int64)

    def visible(self, group: int, spec: KVCacheSpec) -> tuple[int, npt.NDArray[np.int32]]:
        """Return the first position that any token attends to, and the cells from there on."""
        first = min(spec.first_visible(self.start), self.start)
        return first, self.cells[group, first:]


def attention_mask(
    segments: Sequence[Segment], group: int, spec: KVCacheSpec, cell_range: CellRange
) -> Mask:
    """Return the mask (tokens, range length): 0 where a token attends to a cell, -inf elsewhere.

    With ALiBi it is minus the distance of the two positions where a token attends (beyond 2048
    rounded to half precision, as in llama.cpp).

    A token attends to its own sequence as far back as the spec allows, up to itself or, in a
    bidirectional span, as far on as the spec allows.
    """
    masks = [_segment_mask(segment, group, spec, cell_range) for segment in segments]
    return masks[0] if len(masks) == 1 else np.concatenate(masks)


def cells_by_position(
    segments: Sequence[Segment], group: int, spec: KVCacheSpec, read: PositionRange
) -> tuple[npt.NDArray[np.int32], npt.NDArray[np.int32], Mask]:
    """Return where the history of each token of a batch is, in the order of positions.

    Returns:
        The cells (sequences, length) at the positions of each sequence, -1 where none is read; the
        sequence (tokens, 1) of each token; and the mask (tokens, length), as `attention_mask`.
    """
    table = np.full((read.sequences, read.length), NO_CELL, np.int32)
    masks = []
    for own, segment in zip(table, segments, strict=False):
        first, cells = segment.visible(group, spec)
        begin = first_read(segment, group, spec)
        own[first - begin : first - begin + len(cells)] = cells
        position_of_cell = np.where(own == NO_CELL, _OTHER, np.arange(begin, begin + read.length))
        masks.append(visible_mask(segment, spec, position_of_cell.astype(np.int32)))
    lengths = [segment.end - segment.start for segment in segments]
    sequences = np.repeat(np.arange(len(segments), dtype=np.int32), lengths)
    return table, sequences[:, None], masks[0] if len(masks) == 1 else np.concatenate(masks)


def first_read(segment: Segment, group: int, spec: KVCacheSpec) -> int:
    """Return the position from which on a segment is read by position: where a tile begins."""
    return segment.visible(group, spec)[0] // ALIGNMENT * ALIGNMENT


def _segment_mask(segment: Segment, group: int, spec: KVCacheSpec, cell_range: CellRange) -> Mask:
    first, cells = segment.visible(group, spec)
    position_of_cell = np.full(cell_range.length, _OTHER, np.int32)
    position_of_cell[cells - cell_range.start] = np.arange(
        first, first + len(cells), dtype=np.int32
    )
    return visible_mask(segment, spec, position_of_cell)


def visible_mask(
    segment: Segment, spec: KVCacheSpec, position_of_cell: npt.NDArray[np.int32]
) -> Mask:
    """Return the mask (tokens, cells) of a segment, over cells that have these positions."""
    positions = np.arange(segment.start, segment.end, dtype=np.int32)
    last = positions.copy()
    for start, end in () if spec.is_causal else segment.bidirectional:
        span = slice(max(start - segment.start, 0), max(end - segment.start, 0))
        last[span] = spec.last_visible_each(positions[span], end)
    is_visible = position_of_cell <= last[:, None]
    if spec.max_visible is not None and segment.end > spec.max_visible:
        is_visible &= position_of_cell >= spec.first_visible_each(positions)[:, None]
    if not spec.has_alibi:
        return np.where(is_visible, _VISIBLE, _HIDDEN)
    distance = np.where(is_visible, np.abs(positions[:, None] - position_of_cell), 0)
    return np.where(is_visible, -np.minimum(distance, _FARTHEST).astype(np.float16), _HIDDEN)
