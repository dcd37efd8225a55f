"""Cache groups: which cells a sequence needs, one class for each kind of layers.

A sequence of 12 tokens whose next token is the one at position 12 (x: a cell that it owns):

    position        0         5         10
    attention     | x x x x x x x x x x x x |   all: the next token attends to each
    window 5      | . . . . . . . . x x x x |   those that the next token attends to
    recurrent     | . . . x . . . x . . x x |   the last state, and checkpoints

`KVCacheManager` treats all groups alike. A group changes the `SequenceCells` that it is given, and
counts the owners of its `Cells`. That of recurrent layers is in `recurrent_group`.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import ClassVar, Literal

import numpy as np
import numpy.typing as npt

from tampu.kvcache.cells import NO_CELL, Cells
from tampu.kvcache.free_cells import CellArray
from tampu.kvcache.spec import KVCacheSpec
from tampu.kvcache.table import ResumePoint, SequenceCells

_RESUME_POINTS = 8  # of a sequence
_RESUME_MARGIN = 32  # tokens before such a point from which others may continue as well
_TOUCH_EVERY = 64  # tokens of an answer; a prompt's after each batch
_NO_LIMIT = 2**31

Flags = npt.NDArray[np.bool_]


class KVCacheGroup(ABC):
    """The cells of all layers with one spec.

    Attributes:
        kind: what a cell holds.
        cells: their owners, and which of them are evicted first.
        window: how many tokens back the layers attend; None: all.
        reserved: cells that one sequence leaves to others.
        max_drafts: of a step, apart from the cells that are available.
    """

    kind: ClassVar[Literal["tokens", "states"]] = "tokens"

    def __init__(self, cells: Cells, *, window: int | None = None, reserved: int = 0) -> None:
        self.cells = cells
        self.window = window
        self.reserved = reserved
        self.max_drafts = _NO_LIMIT

    @abstractmethod
    def first_needed(self, length: int) -> int:
        """Return the first position whose cell a sequence of `length` tokens needs to continue."""

    @abstractmethod
    def resumable(self, is_cached: Flags, start: int) -> Flags:
        """Return whether a sequence could continue at the lengths `start` + 1 to `start` + n: (n,).

        Args:
            is_cached: (n,): whether the cell of each position from `start` on is cached.
            start: a length at which the sequence can continue.
        """

    # -- room ------------------------------------------------------------------------------------

    @property
    def available_tokens(self) -> int:
        """How many more tokens of any sequences have cells."""
        return self.cells.available

    @property
    def max_tokens(self) -> int:
        """How many tokens have cells at most."""
        return len(self.cells)

    def has_room(self, count: int, drafts: int) -> bool:  # noqa: ARG002
        """Return whether the next `count` tokens, of which the last are drafts, have cells."""
        return self.cells.available >= count

    def fits(self, cached: CellArray, length: int, batch: int, others: int) -> bool:
        """Return whether a new sequence has cells; see `KVCacheManager.fits`.

        Args:
            cached: (n,): the cells that it takes from the cache.
            length: how many tokens it will have in all.
            batch: how many of them are computed at once, at most.
            others: how many cells must be left for others.
        """
        shared = cached[self.first_needed(len(cached)) :]
        shared = shared[shared != NO_CELL]
        unowned = int((self.cells.owners(shared) == 0).sum())
        wanted = length - len(cached)
        if self.window is not None:
            wanted = min(wanted, self.window + batch)
        return self.cells.available - unowned >= wanted + others

    # -- the cells of a sequence -----------------------------------------------------------------

    def advance(self, own: SequenceCells, length: int) -> None:
        """Free the cells that a sequence of `length` tokens does not need to continue."""
        self._leave(own, self.first_needed(length), length)

    def append(
        self,
        own: SequenceCells,
        start: int,
        end: int,
        prompt_end: int,  # noqa: ARG002
        drafts: int = 0,  # noqa: ARG002
    ) -> None:
        """Allocate cells for the tokens in [start, end), after `advance` and `has_room`.

        Args:
            own: of the sequence.
            start: its length.
            end: its new length.
            prompt_end: where the prompt that has these tokens ends; 0: they are of an answer.
            drafts: how many of the last ones `rollback` may discard.
        """
        own.cells[start:end] = self.cells.allocate(end - start, own.before(start))

    def share(self, own: SequenceCells, start: int, cells: CellArray) -> None:
        """Append cached cells of a sequence's next tokens, as far as it needs them."""
        end = start + len(cells)
        first = max(self.first_needed(end), start)
        self.cells.share(cells[first - start :])
        own.cells[start:first] = NO_CELL
        own.cells[first:end] = cells[first - start :]
        self._leave(own, self.first_needed(end), start)

    def can_adopt(self, start: int, end: int) -> bool:
        """Return whether there are cells for `adopt`."""
        wanted = end - max(self.first_needed(end), start)
        return self.cells.available - self.reserved >= wanted

    def adopt(self, own: SequenceCells, start: int, end: int) -> None:
        """Allocate those cells of the tokens in [start, end) that a sequence needs to continue."""
        first = max(self.first_needed(end), start)
        own.cells[start:first] = NO_CELL
        own.cells[first:end] = self.cells.allocate(end - first, own.before(start))
        self._leave(own, self.first_needed(end), start)

    def rollback(self, own: SequenceCells, length: int, new_length: int) -> None:
        """Discard a sequence's cells after its first `new_length` tokens."""
        self.cells.discard(own.owned(new_length, length))
        own.owned_from = min(own.owned_from, new_length)

    def free(self, own: SequenceCells, length: int, is_found: Flags) -> None:
        """Free all cells of a sequence, which others may reuse.

        Args:
            own: of the sequence.
            length: its length.
            is_found: (n,): which of its first tokens are found in the prefix tree; the other cells
                become empty.
        """
        is_reusable = np.zeros(length, np.bool_)
        is_reusable[: len(is_found)] = is_found
        is_reusable = is_reusable[own.owned_from :]
        cells = own.cells[own.owned_from : length]
        self.cells.free(cells[is_reusable])
        self.cells.discard(cells[~is_reusable & (cells > NO_CELL)])

    def can_shift(self, own: SequenceCells, length: int, start: int, end: int) -> bool:
        """Return whether `shift` is possible: nothing that moves is shared or missing."""
        first = self.first_needed(length - (end - start))
        is_complete = own.owned_from <= (first + end - start if first >= start else first)
        return is_complete and not bool(np.any(self.cells.owners(own.owned(end, length)) > 1))

    def shift(self, own: SequenceCells, length: int, start: int, end: int) -> CellArray:
        """Remove the tokens in [start, end); return the cells of those that move forward."""
        owned = own.owned_from
        self.cells.free(own.cells[max(start, owned) : max(end, owned)])
        moved = own.cells[max(end, owned) : length].copy()
        self.cells.invalidate(moved)
        tail = own.cells[end:length].copy()
        own.cells[start : start + len(tail)] = tail
        own.owned_from = owned - (end - start) if owned >= end else min(owned, start)
        return moved

    # -- which cells are evicted first -----------------------------------------------------------

    def mark_resume_point(self, own: SequenceCells, length: int) -> None:  # noqa: B027
        """Keep what others need to continue here, or shortly before, after the sequence left it."""

    def rank_checkpoints(self, cells: CellArray, length: int) -> None:  # noqa: B027
        """Have the checkpoints of a sequence evicted in the order of their use to others.

        Args:
            cells: (n,): of its first tokens; NO_CELL: not cached.
            length: how many tokens the sequence has, as far as that is known.
        """

    # -- inside ----------------------------------------------------------------------------------

    def _leave(self, own: SequenceCells, first: int, length: int) -> None:
        """Free the cells before `first` of a sequence that had `length` tokens until now."""
        end = min(first, length)
        if end > own.owned_from:
            self._release(own, own.owned_from, end)
        own.owned_from = max(own.owned_from, first)

    def _release(self, own: SequenceCells, start: int, end: int) -> None:
        self.cells.free(own.cells[start:end])


class AttentionGroup(KVCacheGroup):
    """Layers that attend to all earlier tokens: a sequence owns the cells of all its tokens."""

    def first_needed(self, length: int) -> int:  # noqa: ARG002
        """Return 0."""
        return 0

    def resumable(self, is_cached: Flags, start: int) -> Flags:  # noqa: ARG002
        """Return which lengths have no gap before them."""
        return np.logical_and.accumulate(is_cached)

    def advance(self, own: SequenceCells, length: int) -> None:
        """Do nothing: all cells are needed."""


class WindowGroup(KVCacheGroup):
    """Layers with a sliding window, or with chunks: a sequence owns what its next token attends to.

    It frees the others as it advances, and then they would be evicted before those of its last
    tokens. But others rarely continue there: they do at the end of a prompt (its answer is asked
    for again, or continued without its reasoning), at the end of an answer, and where a sequence
    left what it shares with others. What is needed there outlives what is passed afterwards:

        prompt            answer
        |--------[=======]|------------------[=====]|
                  freed, but evicted last     owned
    """

    def __init__(self, spec: KVCacheSpec, cells: Cells) -> None:
        super().__init__(cells, window=spec.max_visible)
        self._spec = spec

    def first_needed(self, length: int) -> int:
        """Return the first position that the next token attends to."""
        return self._spec.first_visible(length)

    def resumable(self, is_cached: Flags, start: int) -> Flags:
        """Return at which lengths all cells that the next token attends to are cached."""
        return self._spec.resumable(is_cached, start)

    def free(self, own: SequenceCells, length: int, is_found: Flags) -> None:
        """Free all cells of a sequence; those of its resume points are evicted last."""
        super().free(own, length, is_found)
        self._touch_resume_points(own)

    def mark_resume_point(self, own: SequenceCells, length: int) -> None:
        """Add a resume point at the end of a sequence of `length` tokens."""
        cells = own.cells[self.first_needed(max(length - _RESUME_MARGIN, 0)) : length]
        cells = cells[cells != NO_CELL]
        own.resume_points.append(ResumePoint(cells, self.cells.generations[cells]))
        del own.resume_points[:-_RESUME_POINTS]

    def _release(self, own: SequenceCells, start: int, end: int) -> None:
        super()._release(own, start, end)
        if end - start > 1 or not end % _TOUCH_EVERY:
            self._touch_resume_points(own)

    def _touch_resume_points(self, own: SequenceCells) -> None:
        for point in own.resume_points:
            is_same = self.cells.generations[point.cells] == point.generations
            self.cells.touch(point.cells[is_same])


def attention_group(spec: KVCacheSpec, cells: Cells) -> KVCacheGroup:
    """Return the group of layers with attention."""
    return AttentionGroup(cells) if spec.max_visible is None else WindowGroup(spec, cells)
