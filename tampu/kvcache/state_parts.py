"""How recurrent layers compute a batch: micro-batches, and ragged batches.

A part of a sequence is cut after each token whose state is written. Pieces of equal length, such as
the next tokens of sequences that decode, are a micro-batch. Those that have tokens to replay or
drafts are a ragged batch, and the single tokens beside them too, so that few graphs are needed:

    segments                     pieces              batches
    a                            a                   ragged: three sequences, 7 tokens of which
    d d | b d d                  d d | b d d             two are replayed, and three are drafts
    d d | c d                    c d
    p p p x p p (x: checkpoint)  p p p x, then p p   two micro-batches of one sequence
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

import numpy as np
import numpy.typing as npt

from tampu.kvcache.cells import NO_CELL, inputs_or_cell
from tampu.kvcache.masks import Segment
from tampu.kvcache.storage import Arrays, MicroBatch, RaggedBatch
from tampu.ml.recurrence import PART_NUMBERS


@dataclass(frozen=True, slots=True)
class _Piece:
    """Tokens of one sequence, up to one whose state is written, and drafts after them.

    Attributes:
        known: how many tokens are before the drafts.
        read: the cell of the state before.
        written: the cell of the state after the last known one; NO_CELL: there is none.
        replayed: inputs of the tokens between that state and the first of these.
        drafts: where the inputs of the drafts are kept.
        is_cut: whether it is one of several of its segment.
        continues: whether it reads what the one before writes.
    """

    known: int
    read: int
    written: int
    replayed: Sequence[int] = ()
    drafts: Sequence[int] = ()
    is_cut: bool = False
    continues: bool = False

    @property
    def tokens(self) -> int:
        return self.known + len(self.drafts)

    @property
    def is_ragged(self) -> bool:
        return bool(self.replayed or self.drafts)


@dataclass(slots=True)
class PlannedBatch:
    """Pieces of some sequences that are computed together.

    Attributes:
        pieces: of different sequences.
        is_ragged: whether they may have different lengths, drafts, and tokens to replay.
        unused: the number of the inputs that stand for none.
    """

    is_ragged: bool
    unused: int
    pieces: list[_Piece] = field(default_factory=list)

    def takes(self, piece: _Piece, *, is_ragged: bool) -> bool:
        """Return whether a piece of another sequence can join."""
        if is_ragged != self.is_ragged or any(piece.read == each.written for each in self.pieces):
            return False
        is_alone = piece.is_cut or self.pieces[0].is_cut
        return is_ragged or (piece.tokens == self.pieces[0].tokens and not is_alone)

    @property
    def view(self) -> MicroBatch | RaggedBatch:
        """What graphs are built for."""
        first, count = self.pieces[0], len(self.pieces)
        if not self.is_ragged:
            return MicroBatch(count, first.tokens, first.continues)
        tokens = sum(each.tokens for each in self.pieces)
        return RaggedBatch(count, tokens, self._replayed, len(self._drafts))

    @property
    def arrays(self) -> Arrays:
        """The cells that are read and written; of a ragged batch the parts and kept inputs too."""
        found: Arrays = [np.array([each.read for each in self.pieces], np.int32)]
        if not self.is_ragged:
            return [*found, np.array([each.written for each in self.pieces], np.int64)]
        found.append(self._parts())
        if self._replayed:
            replayed = np.full(self._replayed, self.unused, np.int32)
            every = [row for each in self.pieces for row in each.replayed]
            replayed[: len(every)] = every
            found.append(replayed)
        if self._drafts:
            rows = [[False] * each.known + [True] * len(each.drafts) for each in self.pieces]
            found.append(np.flatnonzero(np.concatenate(rows)).astype(np.int32))
            found.append(np.array(self._drafts, np.int64))
        return found

    @property
    def _drafts(self) -> list[int]:
        """Where the inputs of all drafts are kept."""
        return [row for each in self.pieces for row in each.drafts]

    @property
    def _replayed(self) -> int:
        """How many tokens are replayed, as a power of two, so that few graphs differ by it."""
        count = sum(len(each.replayed) for each in self.pieces)
        return 1 << (count - 1).bit_length() if count else 0

    def _parts(self) -> npt.NDArray[np.int32]:
        parts = np.zeros((len(self.pieces), PART_NUMBERS), np.int32)
        replayed, first = 0, self._replayed
        for part, each in zip(parts, self.pieces, strict=True):
            written = max(each.written, 0)  # it is not written if no token is known
            part[:] = replayed, len(each.replayed), first, each.known, each.tokens, written
            replayed += len(each.replayed)
            first += each.tokens
        return parts


def plan_parts(
    segments: Sequence[Segment], group: int, cells: int, inputs: int
) -> list[PlannedBatch]:
    """Return the batches of the tokens of some segments, in their order.

    Args:
        segments: of a step.
        group: the row in their cells.
        cells: the number of cells; the one after them is the state before any token.
        inputs: the number of inputs that can be kept; those after them are not used.
    """
    planned: list[PlannedBatch] = []
    pieces = [each for segment in segments for each in _pieces(segment, group, cells)]
    has_ragged = any(each.is_ragged for each in pieces)
    for piece in pieces:
        is_single = piece.tokens == 1 and not piece.continues
        is_ragged = piece.is_ragged or (has_ragged and is_single)
        if not (planned and planned[-1].takes(piece, is_ragged=is_ragged)):
            planned.append(PlannedBatch(is_ragged, inputs))
        planned[-1].pieces.append(piece)
    return planned


def _pieces(segment: Segment, group: int, none: int) -> Iterator[_Piece]:
    """Yield the pieces of a segment; `none` is the cell of the state before any token."""
    cells, start = segment.cells[group], segment.start
    last = start - 1
    while last >= 0 and cells[last] < NO_CELL:
        last -= 1
    read = int(cells[last]) if last >= 0 else none
    replayed = [inputs_or_cell(int(each)) for each in cells[last + 1 : start]]
    drafts = [inputs_or_cell(int(each)) for each in cells[start:] if each < NO_CELL]
    after = np.flatnonzero(cells[start:] > NO_CELL)
    lengths = np.diff(after, prepend=-1).tolist()
    written = cells[start:][after].tolist()
    if not written:
        yield _Piece(0, read, NO_CELL, replayed, drafts)
    for number, (length, cell) in enumerate(zip(lengths, written, strict=True)):
        is_last = number == len(written) - 1
        yield _Piece(
            length,
            read,
            cell,
            () if number else replayed,
            drafts if is_last else (),
            is_cut=len(written) > 1,
            continues=number > 0,
        )
        read = cell
