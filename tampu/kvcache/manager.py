"""Who holds which cells: the books of all caches of a model.

A running sequence has a `Holding`. It begins with the longest beginning that the cache still has,
of whatever request; it takes cells for the tokens that it computes; and when it ends, its rows stay
to be found by others until their cells are needed.

Layers of different reach have spaces of their own. In a space with a window a sequence owns only
the cells that its next token sees; those behind are released as it moves on. In the space of layers
that keep states (recurrent ones) only some tokens have a cell: the last of each batch, and those to
which a sequence may want to go back, its checkpoints.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass, field

import numpy as np
import numpy.typing as npt

from tampu.kvcache.cells import NO_CELL, CellArray, Cells
from tampu.kvcache.prefix_tree import Cursor, Keys, Places, PrefixTree
from tampu.kvcache.spec import Reach


@dataclass(frozen=True, slots=True)
class Space:
    """The cells of all layers of one reach.

    Attributes:
        reach: of the layers.
        cells: of tokens, or of states behind some.
        apart: how many tokens of a prompt lie between those that should have a cell.
    """

    reach: Reach
    cells: Cells
    apart: int = 1


@dataclass(slots=True, eq=False)
class Holding:
    """The cells of one sequence.

    Attributes:
        cells: I32, (spaces, capacity): of each token; NO_CELL where its row is not kept.
        owned_from: for each space, the first position whose cell the sequence owns.
        length: tokens that have cells.
        noted: of which the tree knows.
        cursor: behind the last of those.
        is_private: whether others must not find its rows; it does not look for theirs either.
        exact: how many of its first tokens have rows that others may find nevertheless.
        passing: positions whose states are not worth keeping once the sequence has moved on.
    """

    cells: npt.NDArray[np.int32]
    owned_from: list[int]
    cursor: Cursor
    length: int = 0
    noted: int = 0
    is_private: bool = False
    exact: int = 0
    passing: set[int] = field(default_factory=set)

    def owned(self, space: int, start: int = 0) -> CellArray:
        """Return the cells that it owns in a space, from a position on."""
        cells = self.cells[space, max(start, self.owned_from[space]) : self.length]
        kept: CellArray = cells[cells != NO_CELL]
        return kept


class Ledger:
    """Gives out the cells of all spaces.

    Attributes:
        spaces: one for each reach of the model's layers.
    """

    def __init__(self, spaces: Sequence[Space]) -> None:
        self.spaces = list(spaces)
        self._tree = PrefixTree(len(self.spaces))

    @property
    def apart(self) -> int:
        """How many tokens of a prompt lie between its checkpoints; 1: there need not be any."""
        return max((space.apart for space in self.spaces), default=1)

    def open(self, capacity: int, *, is_private: bool = False) -> Holding:
        """Return an empty holding for a sequence of at most `capacity` tokens."""
        cells = np.full((len(self.spaces), capacity), NO_CELL, np.int32)
        starts = [0] * len(self.spaces)
        return Holding(cells, starts, self._tree.root(), is_private=is_private)

    def reuse(self, holding: Holding, keys: Keys) -> int:
        """Let a sequence go on with rows that others have computed.

        Args:
            holding: of the sequence; all its tokens are noted.
            keys: the tokens that follow those that it holds, as far as it may use their rows.

        Returns:
            How many of them it holds now.
        """
        if holding.is_private or holding.noted < holding.length or not self.spaces:
            return 0
        found, places = self._tree.follow(holding.cursor, keys)
        count = self._usable(holding.length, places) if found else 0
        if count:
            self._share(holding, places[0, :, :count])
            self._tree.move(holding.cursor, keys[:count])
            holding.noted = holding.length
        return count

    def next_cell(self, holding: Holding, keys: Keys) -> int:
        """Return the cell of a token that another has with the same tokens before it, or NO_CELL.

        Args:
            holding: of the sequence; all its tokens are noted.
            keys: the token that follows.
        """
        if holding.is_private or holding.noted < holding.length or not self.spaces:
            return NO_CELL
        found, places = self._tree.follow(holding.cursor, keys)
        is_there = bool(found) and bool(self._is_there(places).all())
        return int(places[0, 0, 0]) if is_there else NO_CELL

    def last_cell(self, holding: Holding) -> int:
        """Return the cell of a sequence's last token."""
        return int(holding.cells[0, holding.length - 1]) if self.spaces else NO_CELL

    def extend(self, holding: Holding, count: int, checkpoints: Collection[int] = ()) -> bool:
        """Give a sequence cells for its next tokens; return False if there are not enough.

        Args:
            holding: of the sequence.
            count: of tokens.
            checkpoints: positions among theirs whose states are to be kept (others are ignored);
                that of the last is computed in any case.
        """
        start, end = holding.length, holding.length + count
        behind = sorted({end - 1, *(each for each in checkpoints if each >= start)})
        for index, space in enumerate(self.spaces):
            self._let_go(holding, index, space.reach.first(start))
        holding.passing = {each for each in holding.passing if each >= start - 1}
        wanted = [len(behind) if space.reach.is_state else count for space in self.spaces]
        if any(s.cells.available < n for s, n in zip(self.spaces, wanted, strict=True)):
            return False
        for index, space in enumerate(self.spaces):
            near = int(holding.cells[index, start - 1]) if start else NO_CELL
            holding.cells[index, start:end] = NO_CELL
            at = behind if space.reach.is_state else slice(start, end)
            holding.cells[index, at] = space.cells.take(wanted[index], near)
        holding.length = end
        if end - 1 not in checkpoints:
            holding.passing.add(end - 1)
        return True

    def note(self, holding: Holding, keys: Keys) -> None:
        """Let others find a sequence's rows.

        Args:
            holding: of the sequence.
            keys: all its tokens that are known, from the first.
        """
        end = min(len(keys), holding.length)
        if holding.is_private or end <= holding.noted:
            return
        if not self._tree.knows(holding.cursor):
            holding.cursor, holding.noted = self._tree.root(), 0
        start = holding.noted
        places = self._places(holding, start, end)
        self._tree.sweep([space.cells.generations for space in self.spaces])
        _, known = self._tree.follow(holding.cursor, keys[start:end])
        self._tree.note(holding.cursor, keys[start:end], places)
        is_gone = ~self._is_there(known)
        if is_gone.any():
            padded = np.zeros(places.shape[1:], np.bool_)
            padded[:, : known.shape[2]] = is_gone
            self._tree.replace(holding.cursor, end - start, padded, places)
        holding.noted = end

    def retract(self, holding: Holding, length: int) -> None:
        """Take back the last cells of a sequence, whose rows nobody has computed."""
        for index, space in enumerate(self.spaces):
            space.cells.drop(holding.owned(index, length))
            holding.owned_from[index] = min(holding.owned_from[index], length)
        holding.passing = {each for each in holding.passing if each < length}
        holding.length = min(holding.length, length)
        if holding.noted > holding.length:  # the tree finds out by itself that they are gone
            holding.cursor, holding.noted = self._tree.root(), 0

    def shift(self, holding: Holding, start: int, end: int) -> list[CellArray] | None:
        """Take tokens out of a sequence, so that those after them move forward.

        The sequence is private from then on: its rows from there on are not what a new reading
        would give.

        Returns:
            The cells of the tokens that moved, for each space; None, and nothing is changed, if
            others own some of them, rows are missing that the sequence would see then, or there
            are states, which cannot be made of fewer tokens.
        """
        if not all(
            self._can_shift(holding, index, start, end) for index in range(len(self.spaces))
        ):
            return None
        moved = []
        for index, space in enumerate(self.spaces):
            owned = holding.owned_from[index]
            space.cells.release(holding.cells[index, max(start, owned) : max(end, owned)])
            cells = holding.cells[index, max(end, owned) : holding.length].copy()
            space.cells.renew(cells)
            tail = holding.cells[index, end : holding.length].copy()
            holding.cells[index, start : start + len(tail)] = tail
            holding.owned_from[index] = owned - (end - start) if owned >= end else min(owned, start)
            moved.append(cells)
        holding.length -= end - start
        holding.exact = min(start, holding.exact) if holding.is_private else start
        holding.is_private = True
        return moved

    def _can_shift(self, holding: Holding, index: int, start: int, end: int) -> bool:
        space, owned = self.spaces[index], holding.owned_from[index]
        if space.reach.is_state:
            return False
        first = space.reach.first(holding.length - (end - start))
        is_complete = owned <= (first + end - start if first >= start else first)
        moved = holding.cells[index, max(end, owned) : holding.length]
        return is_complete and not bool(np.any(space.cells.owners(moved) > 1))

    def close(self, holding: Holding, keys: Keys, *, is_valid: bool = True) -> None:
        """End a sequence.

        Args:
            holding: of the sequence.
            keys: its tokens, as far as their rows may be used again.
            is_valid: False if none of its rows may be used by others from now on.
        """
        exact = holding.exact if holding.is_private else holding.length
        kept = min(len(keys), exact) if is_valid else 0
        self.note(holding, keys[:kept])
        indexed = self._indexed(holding, keys[:kept])
        for index, space in enumerate(self.spaces):
            start = holding.owned_from[index]
            own = holding.cells[index, start : holding.length]
            is_found = np.zeros(len(own), np.bool_)
            part = indexed[index, start:]
            is_found[: len(part)] = part
            if space.reach.is_state:
                passing = [each - start for each in holding.passing if start <= each < kept - 1]
                is_found[passing] = False
            space.cells.release(own[is_found])
            space.cells.drop(own[~is_found & (own != NO_CELL)])
        holding.noted = 0

    def is_shared(self, holding: Holding, start: int) -> bool:
        """Whether others own cells of a sequence from a position on."""
        return any(
            bool(np.any(space.cells.owners(holding.owned(index, start)) > 1))
            for index, space in enumerate(self.spaces)
        )

    def forget(self) -> None:
        """Forget all rows: what is in the cache is not what was to be computed."""
        self._tree.clear()
        for space in self.spaces:
            space.cells.forget()

    def check(self, holdings: Sequence[Holding]) -> None:
        """Verify that each cell has the owners it should.

        Raises:
            AssertionError: if not.
        """
        for index, space in enumerate(self.spaces):
            space.cells.check([holding.owned(index) for holding in holdings])

    # -- inside ----------------------------------------------------------------------------------

    def _usable(self, start: int, places: Places) -> int:
        """Return how many of the tokens after `start` a sequence can take over."""
        is_there = self._is_there(places)
        can_end = np.ones(places.shape[2], np.bool_)
        for index, space in enumerate(self.spaces):
            can_end &= space.reach.resumable(is_there[index], start)
        lengths = np.flatnonzero(can_end)
        return int(lengths[-1]) + 1 if len(lengths) else 0

    def _is_there(self, places: Places) -> npt.NDArray[np.bool_]:
        """Say of each noted place whether it still holds the row, (spaces, n)."""
        cells, noted = places
        is_there: npt.NDArray[np.bool_] = cells >= 0
        for index, space in enumerate(self.spaces):
            is_there[index] &= space.cells.generations[cells[index]] == noted[index]
        return is_there

    def _share(self, holding: Holding, cells: npt.NDArray[np.int32]) -> None:
        """Take over the cells of the next tokens, as far as each space needs them."""
        start, end = holding.length, holding.length + cells.shape[1]
        holding.cells[:, start:end] = NO_CELL
        for index, space in enumerate(self.spaces):
            first = max(space.reach.first(end), start)
            own = cells[index, first - start :]
            space.cells.share(own)
            holding.cells[index, first:end] = own
            self._let_go(holding, index, space.reach.first(end))
            holding.owned_from[index] = max(holding.owned_from[index], space.reach.first(end))
        holding.length = end

    def _let_go(self, holding: Holding, index: int, first: int) -> None:
        """Release what a sequence owns before a position."""
        old, space = holding.owned_from[index], self.spaces[index]
        end = min(first, holding.length)
        if end <= old:
            return
        left = holding.cells[index, old:end]
        if space.reach.is_state:
            is_passing = np.isin(np.arange(old, end), list(holding.passing))
            space.cells.drop(left[is_passing & (left != NO_CELL)])
            left = left[~is_passing & (left != NO_CELL)]
        space.cells.release(left)
        holding.owned_from[index] = end

    def _places(self, holding: Holding, start: int, end: int) -> Places:
        cells = holding.cells[:, start:end].copy()
        generations = np.zeros_like(cells)
        for index, space in enumerate(self.spaces):
            cells[index, : max(0, holding.owned_from[index] - start)] = NO_CELL
            generations[index] = space.cells.generations[cells[index]]
        return np.stack([cells, generations])

    def _indexed(self, holding: Holding, keys: Keys) -> npt.NDArray[np.bool_]:
        """Say which of a sequence's rows can be found through the tree, (spaces, n)."""
        found, places = self._tree.follow(self._tree.root(), keys)
        is_own: npt.NDArray[np.bool_] = places[0] == holding.cells[:, :found]
        return is_own & self._is_there(places)
