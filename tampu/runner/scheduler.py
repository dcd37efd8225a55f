"""Who goes into the next batch.

There is no prefill phase and no decode phase: each sequence has tokens that are not computed yet,
one for a sequence that generates, many for a new prompt, and `computed` catches up. Sequences with
one token come first, because somebody reads their answers; what is left of the batch goes to the
prompts, in the order of their arrival.
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass

import numpy as np

from tampu.kvcache import Cells, Prefixes, Segment
from tampu.kvcache.cells import CellArray
from tampu.kvcache.prefixes import common_length
from tampu.runner.graphs import StepInputs
from tampu.runner.sequence import Probe, Sequence


@dataclass(frozen=True, slots=True)
class Part:
    """What one sequence has in a batch.

    Attributes:
        sequence: whose tokens they are.
        row: of its first token in the batch.
        start: position of that token.
        count: tokens.
        output: index of its logits among the batch's outputs; None while its prompt goes on.
    """

    sequence: Sequence
    row: int
    start: int
    count: int
    output: int | None


@dataclass(frozen=True, slots=True)
class Plan:
    """A batch that is decided, with placeholders for tokens that are being sampled."""

    parts: list[Part]
    inputs: StepInputs

    @property
    def is_needed(self) -> bool:
        """Whether anybody still waits for it."""
        return any(part.sequence.finish is None for part in self.parts)

    def fill(self) -> None:
        """Put in the tokens that were not known when it was planned."""
        for part in self.parts:
            sequence, end = part.sequence, part.start + part.count
            known = sequence.tokens[part.start : min(end, sequence.length)]
            self.inputs.tokens[part.row : part.row + len(known)] = known


class Scheduler:
    """Keeps the sequences that run and those that wait, and plans batches.

    Attributes:
        running: sequences that hold a slot, in the order of their arrival.
        waiting: sequences that do not yet.
        probes: texts whose logits are wanted; each runs alone.
    """

    def __init__(self, cells: Cells, prefixes: Prefixes, *, slots: int, batch: int) -> None:
        self._cells = cells
        self._prefixes = prefixes
        self._slots = slots
        self._batch = batch
        self.running: list[Sequence] = []
        self.waiting: deque[Sequence] = deque()
        self.probes: deque[Probe] = deque()

    @property
    def is_idle(self) -> bool:
        """Whether there is nothing to do."""
        return not (self.running or self.waiting or self.probes)

    def start_waiting(self) -> list[Sequence]:
        """Give free slots to the sequences that wait longest; return those that got one."""
        started = []
        while self.waiting and len(self.running) < self._slots:
            sequence = self.waiting.popleft()
            self._reuse_prefix(sequence)
            self.running.append(sequence)
            started.append(sequence)
        return started

    def plan(self) -> Plan | None:
        """Decide the next batch; None if no sequence has a token to compute.

        Each token planned gets its cell; `computed` counts it from here on.
        """
        if self.probes and self._prefixes.make_room(len(self.probes[0].tokens)):
            return None  # let the device run dry: a probe computes alone
        ready = [s for s in self.running if self._is_ready(s)]
        ready.sort(key=lambda sequence: sequence.available > 1)  # stable: arrival decides
        parts: list[Part] = []
        row = outputs = 0
        for sequence in ready:
            count = min(sequence.available, self._batch - row)
            if count == 0 or not self._take_cells(sequence, count):
                continue
            is_last = sequence.available == count
            start = sequence.computed
            parts.append(Part(sequence, row, start, count, outputs if is_last else None))
            sequence.computed += count
            row += count
            outputs += is_last
        return self._finished_plan(parts, row) if parts else None

    def undo(self, plan: Plan) -> None:
        """Take back a plan that is not computed."""
        for part in plan.parts:
            if part.sequence in self.running:
                self._cells.release(part.sequence.cells[part.start : part.start + part.count])
                part.sequence.computed = part.start

    def cancelled(self) -> list[Sequence]:
        """Return the sequences that their callers have given up."""
        return [s for s in [*self.running, *self.waiting] if s.is_cancelled]

    def release(self, sequence: Sequence) -> None:
        """Take a sequence's slot; what it computed stays in the cache to be used again."""
        if sequence in self.waiting:
            self.waiting.remove(sequence)
            return
        self.running.remove(sequence)
        valid = min(sequence.computed, sequence.length)
        self._cells.release(sequence.cells[valid : sequence.computed])
        self._prefixes.remember(sequence.tokens[:valid], sequence.cells[:valid])
        sequence.computed = valid

    def runs(self, sequence: Sequence) -> bool:
        """Whether a sequence has a slot."""
        return sequence in self.running

    def discard(self, sequence: Sequence) -> bool:
        """Take a failed sequence's slot, if it has one; what it computed is not used again."""
        if sequence not in self.running:
            return False
        self.running.remove(sequence)
        self._cells.release(sequence.cells[: sequence.computed])
        return True

    def forget(self) -> None:
        """Forget all beginnings: what is in the cache is not what was to be computed."""
        self._prefixes.clear()

    def shift(self, sequence: Sequence, keep: int) -> int:
        """Drop tokens after the first `keep` from a full context, about half of the rest.

        What follows them is computed again at its new positions. No batch may compute the sequence.

        Returns:
            How many tokens were dropped.
        """
        dropped = shift_count(sequence.computed, keep, sequence.capacity)
        tail = sequence.tokens[keep + dropped : sequence.length].copy()
        sequence.tokens[keep : keep + len(tail)] = tail
        self._cells.release(sequence.cells[keep : sequence.computed])
        sequence.length -= dropped
        sequence.computed = keep
        sequence.dropped += dropped
        return dropped

    def next_probe(self) -> Probe | None:
        """Return the probe that waits longest, once the cache has room for it."""
        if self.probes and self._prefixes.make_room(len(self.probes[0].tokens)):
            return self.probes[0]
        return None

    def borrow(self, count: int) -> CellArray:
        """Return cells for a probe."""
        return self._cells.take(count)

    def give_back(self, cells: CellArray) -> None:
        """Free the cells of a probe."""
        self._cells.release(cells)

    def check(self) -> None:
        """Verify that each cell has the owners it should; for times when nothing runs.

        Raises:
            AssertionError: if not.
        """
        held = [sequence.cells[: sequence.computed] for sequence in self.running]
        self._cells.check([*self._prefixes.owned(), *held])

    # -- inside ----------------------------------------------------------------------------------

    def _is_ready(self, sequence: Sequence) -> bool:
        """Whether a sequence has tokens to compute, and room for them in its context."""
        if sequence.finish is not None or sequence.available == 0:
            return False
        if sequence.awaits and _is_at_limit(sequence):
            return False  # the token that is being sampled is its last
        return sequence.computed < sequence.capacity

    def _take_cells(self, sequence: Sequence, count: int) -> bool:
        if not self._prefixes.make_room(count):
            return False
        end = sequence.computed + count
        sequence.cells[sequence.computed : end] = self._cells.take(count)
        return True

    def _reuse_prefix(self, sequence: Sequence) -> None:
        """Let a new sequence begin with the longest beginning that the cache still has."""
        wanted = sequence.tokens[: sequence.length - 1]  # one token must be computed
        found = self._prefixes.longest(wanted)
        for other in self.running:
            shared = common_length(other.tokens[: min(other.computed, other.length)], wanted)
            if shared > len(found):
                self._cells.release(found)
                found = other.cells[:shared].copy()
                self._cells.share(found)
        sequence.cells[: len(found)] = found
        sequence.computed = sequence.cached = len(found)

    def _finished_plan(self, parts: list[Part], rows: int) -> Plan:
        tokens = np.zeros(rows, np.int32)
        positions = np.concatenate(
            [np.arange(part.start, part.start + part.count, dtype=np.int32) for part in parts]
        )
        wanted = [part.row + part.count - 1 for part in parts if part.output is not None]
        segments = [
            Segment(part.sequence.cells[: part.start + part.count].copy(), part.start)
            for part in parts
        ]
        outputs = np.asarray(wanted or [rows - 1], np.int32)
        return Plan(parts, StepInputs(tokens, positions, outputs, segments))


def _is_at_limit(sequence: Sequence) -> bool:
    """Whether the token that is being sampled is the last that the caller wants."""
    limit = sequence.options.max_tokens
    return limit is not None and sequence.generated + 1 >= limit


def shift_count(length: int, keep: int, capacity: int) -> int:
    """Return how many tokens to drop so that half of what is not kept is free again."""
    target = max((capacity - keep) // 2, 1)
    return max(target - (capacity - length), 0)
