"""The cache group of recurrent layers: which states, and which inputs, a sequence keeps."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from tampu.kvcache.cells import NO_CELL, Cells, inputs_or_cell
from tampu.kvcache.checkpoints import KEPT_ENDS, CheckpointGrid
from tampu.kvcache.free_cells import CellArray
from tampu.kvcache.groups import Flags, KVCacheGroup
from tampu.kvcache.table import SequenceCells

_NO_LIMIT = 2**31
_FEW = 4  # drafts of a step, if their states have cells


class RecurrentGroup(KVCacheGroup):
    """Recurrent layers: a cell holds the state after a token, and so all tokens before it.

    A sequence owns its last state and needs no earlier one; the states at checkpoints stay cached
    for others. A state that is neither is transient: once the sequence has advanced, its cell is
    empty. When a sequence ends, those checkpoints that `CheckpointGrid` would not have in a
    sequence of its length are evicted before all others.

    Of drafts there are the states after each of them, or what the layers were given for them. These
    inputs are the sequence's alone, and are replayed in its next batch, if the drafts were right:

        step 1    a d d d       the state after a, the inputs of three drafts
        step 2    d d | b d     two were right: from the state after a over both to that after b

    Attributes:
        grid: where the checkpoints of a sequence are.
    """

    kind = "states"

    def __init__(
        self, cells: Cells, grid: CheckpointGrid, reserved: int = 0, inputs: int = 0
    ) -> None:
        """Start with all cells empty.

        Args:
            cells: of the group.
            grid: where the checkpoints of a sequence are.
            reserved: cells that one sequence leaves to others.
            inputs: the number of tokens whose inputs can be kept; 0: drafts have states.
        """
        super().__init__(cells, reserved=reserved)
        self.grid = grid
        self._keeps_inputs = inputs > 0
        self._inputs = [*range(inputs)]  # those that are free
        self._max_inputs = inputs
        # Half of the inputs are of drafts before, which are replayed. States for drafts are few.
        self.max_drafts = inputs // 2 if inputs else max(reserved, _FEW)

    @property
    def available_tokens(self) -> int:
        """More than any batch has: a sequence of any length needs few states."""
        return _NO_LIMIT

    @property
    def max_tokens(self) -> int:
        """Return 0: states do not limit how many tokens are cached."""
        return 0

    def first_needed(self, length: int) -> int:
        """Return the position of the last state."""
        return max(length - 1, 0)

    def resumable(self, is_cached: Flags, start: int) -> Flags:  # noqa: ARG002
        """Return after which tokens there is a state."""
        return is_cached

    def has_room(self, count: int, drafts: int) -> bool:  # noqa: ARG002
        """Return whether the states that are needed have cells; checkpoints can do without."""
        if self._keeps_inputs:
            return self.cells.available >= 1 and len(self._inputs) >= drafts
        if drafts:
            return self.cells.available - self.reserved > drafts
        return self.cells.available >= 1

    def fits(self, cached: CellArray, length: int, batch: int, others: int) -> bool:  # noqa: ARG002
        """Return True: each slot has states of its own."""
        return True

    def advance(self, own: SequenceCells, length: int) -> None:
        """Free all states but the last."""
        last = _last_state(own, length)
        self._leave(own, last, length)
        own.transient = {each for each in own.transient if each >= last}

    def append(
        self, own: SequenceCells, start: int, end: int, prompt_end: int, drafts: int = 0
    ) -> None:
        """Allocate cells for the states after checkpoints, before and after each draft.

        If few cells are left, the first checkpoints get none. Where the inputs of drafts are kept,
        there are no states after these.
        """
        points = self.grid.checkpoints(start, end, prompt_end)
        known = end - drafts
        until = known if self._keeps_inputs else end
        needed = range(known - 1, until)
        written = sorted({*needed, *(each for each in points if start <= each < until)})
        written = written[-max(self.cells.available - self.reserved, 1) :]
        near = own.before(start)
        own.cells[start:end] = NO_CELL
        own.cells[written] = self.cells.allocate(len(written), near)
        own.transient.update(set(needed) - set(points))
        for place in range(until, end):
            own.cells[place] = inputs_or_cell(self._inputs.pop())

    def rollback(self, own: SequenceCells, length: int, new_length: int) -> None:
        """Discard the states after the first `new_length` tokens."""
        self._drop_inputs(own, max(new_length, own.owned_from), length)
        super().rollback(own, length, new_length)
        own.transient = {each for each in own.transient if each < new_length}

    def free(self, own: SequenceCells, length: int, is_found: Flags) -> None:
        """Free all states of a sequence; others may resume at checkpoints and at the last one."""
        last = min(_last_state(own, length), len(is_found) - 1)
        passed = [each for each in own.transient if each < last]
        is_found[passed] = False
        self._drop_inputs(own, own.owned_from, length)
        super().free(own, length, is_found)

    def can_shift(self, own: SequenceCells, length: int, start: int, end: int) -> bool:  # noqa: ARG002
        """Return False: states include the tokens that would be removed."""
        return False

    def check_inputs(self, tables: Sequence[tuple[SequenceCells, int]]) -> None:
        """Verify that all inputs are kept once or free.

        Args:
            tables: the cells of each sequence, and its length.

        Raises:
            AssertionError: if some are not.
        """
        kept = [own.cells[own.owned_from : length] for own, length in tables]
        numbers = [inputs_or_cell(int(each)) for cells in kept for each in cells[cells < NO_CELL]]
        if sorted([*numbers, *self._inputs]) != [*range(self._max_inputs)]:
            raise AssertionError(f"inputs {sorted(numbers)} are kept, {self._inputs} are free")

    def rank_checkpoints(self, cells: CellArray, length: int) -> None:
        """Evict the checkpoints that the grid of a sequence does not have before all others.

        Its last ones are kept in any case (the last prompts and answers end there), and so are
        those from which several sequences continued.
        """
        after = np.flatnonzero(cells != NO_CELL)
        states = cells[after]
        is_on_grid = self.grid.has(after, length) | self.cells.is_popular(states)
        others = states[~is_on_grid]
        self.cells.demote(others[:-KEPT_ENDS])
        self.cells.touch(others[-KEPT_ENDS:])
        self.cells.touch(states[is_on_grid])

    def _release(self, own: SequenceCells, start: int, end: int) -> None:
        states = own.cells[start:end]
        every = (each in own.transient for each in range(start, end))
        is_transient = np.fromiter(every, np.bool_, end - start)
        self.cells.discard(states[is_transient & (states > NO_CELL)])
        self.cells.free(states[~is_transient & (states > NO_CELL)])
        self._drop_inputs(own, start, end)

    def _drop_inputs(self, own: SequenceCells, start: int, end: int) -> None:
        """Keep the inputs of the tokens in [start, end) no longer."""
        cells = own.cells[start:end]
        self._inputs += [inputs_or_cell(int(each)) for each in cells[cells < NO_CELL]]
        cells[cells < NO_CELL] = NO_CELL


def _last_state(own: SequenceCells, length: int) -> int:
    """Return the position of the last state that a sequence of `length` tokens has."""
    last = length - 1
    while last >= own.owned_from and own.cells[last] < NO_CELL:
        last -= 1
    return max(last, 0)
