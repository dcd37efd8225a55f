"""Who goes into the next batch.

There is no prefill phase and no decode phase: each sequence has tokens that are not computed yet,
one for a sequence that generates, many for a new prompt, and `computed` catches up. Sequences with
one token come first, because somebody reads their answers; what is left of the batch goes to the
prompts, the most urgent first.

A prompt takes over whatever rows are in the cache already, or will be by the batch before it: also
those of a prompt that is being read right now. So of a beginning that many requests share each
token is computed once, by whoever comes to it first.
"""

from __future__ import annotations

from collections.abc import Collection

import numpy as np
import numpy.typing as npt

from tampu.kvcache import KVCacheManager
from tampu.runner.batch import Draft, Part, Plan, finished
from tampu.runner.context_shift import cut, shift_range
from tampu.runner.images import ImageStore
from tampu.runner.layout import PlacedImage
from tampu.runner.sequence import Sequence

_BESIDE = 128
"""Tokens of prompts in a batch with sequences that generate: how long those wait at most."""


class Scheduler:
    """Keeps the sequences that run and those that wait, and plans batches.

    Attributes:
        running: sequences that hold a slot, in the order of their arrival.
        waiting: sequences that do not yet.
        kv_manager: who holds which cells.
        images: the pictures that have been embedded.
    """

    def __init__(
        self,
        kv_manager: KVCacheManager,
        *,
        slots: int,
        batch: int,
        outputs: int,
        positions_per_token: int = 1,
        images: ImageStore | None = None,
    ) -> None:
        """Begin with nothing.

        Args:
            kv_manager: gives out the cells.
            slots: the most sequences that run at once.
            batch: the most tokens of prompts in a batch.
            outputs: the most results of a batch, at least `slots`.
            positions_per_token: how many numbers a position is made of.
            images: where embeddings are kept.
        """
        self.kv_manager = kv_manager
        self.images = images or ImageStore(0)
        self._slots = slots
        self._batch = batch
        self._outputs = outputs
        self._positions_per_token = positions_per_token
        self._first: Sequence | None = None  # whose group did not fit into the last batch
        self._gave_logits = False
        self._started = 0
        self.running: list[Sequence] = []
        self.waiting: list[Sequence] = []

    @property
    def is_idle(self) -> bool:
        """Whether there is nothing to do."""
        return not (self.running or self.waiting)

    def start_waiting(self) -> list[Sequence]:
        """Give free slots to the most urgent sequences; return those that got one."""
        started = []
        while self.waiting and len(self.running) < self._slots:
            sequence = min(self.waiting, key=lambda each: each.deadline)
            self.waiting.remove(sequence)
            self.running.append(sequence)
            self._started += 1
            sequence.number = self._started
            started.append(sequence)
        return started

    def plan(self) -> Plan | None:
        """Decide the next batch; None if no sequence has a token to compute.

        Each token planned gets its cell; `computed` counts it from here on.
        """
        ready = [s for s in self.running if _is_ready(s)]
        if not ready:
            return None
        wants_logits = self._kind(ready)
        ready = [s for s in ready if s.wants_logits is wants_logits]
        answering = [s for s in ready if not s.is_reading]
        reading = sorted((s for s in ready if s.is_reading), key=self._urgency)
        if reading:
            for sequence in self.running:  # what others may take over
                self.kv_manager.insert(sequence.cell_table, sequence.keys[: sequence.length])
        beside = min(self._batch, _BESIDE) if answering else self._batch
        draft = Draft(wants_logits, max(beside - len(answering), 1))
        for sequence in answering:
            self._add(draft, sequence, 1)
        self._first = None
        for sequence in reading:
            self._read(draft, sequence)
        if not draft.parts:
            return None
        return finished(draft, self.images, self._positions_per_token)

    def needed_image(self) -> PlacedImage | None:
        """Return an image that a sequence cannot go on without, as it is not embedded yet."""
        for sequence in sorted(self.running, key=self._urgency):
            if sequence.layout.images and _is_ready(sequence):
                self._take_over(sequence)
                image = self._missing(sequence)
                if image is not None and _needed_from(sequence, image) <= sequence.computed:
                    return image
        return None

    def is_needed(self, plan: Plan) -> bool:
        """Whether anybody still waits for a batch, or counts on the rows that it computes."""
        return any(part.sequence.finish is None or self._is_shared(part) for part in plan.parts)

    def undo(self, plan: Plan) -> None:
        """Take back a plan that is not computed."""
        for part in plan.parts:
            if self.runs(part.sequence):
                self.kv_manager.rollback(part.sequence.cell_table, part.start)

    def cancelled(self) -> list[Sequence]:
        """Return the sequences that their callers have given up."""
        return [s for s in [*self.running, *self.waiting] if s.is_cancelled]

    def release(self, sequence: Sequence) -> None:
        """Take a sequence's slot; what it computed stays in the cache to be used again."""
        if sequence in self.waiting:
            self.waiting.remove(sequence)
            return
        self.running.remove(sequence)
        self.kv_manager.free(sequence.cell_table, sequence.keys[: sequence.length])

    def runs(self, sequence: Sequence) -> bool:
        """Whether a sequence has a slot."""
        return sequence in self.running

    def discard(self, sequence: Sequence) -> bool:
        """Take a failed sequence's slot, if it has one; what it computed is not used again."""
        if sequence not in self.running:
            return False
        self.running.remove(sequence)
        self.kv_manager.free(sequence.cell_table, sequence.keys[:0], is_valid=False)
        return True

    def restart(self, sequence: Sequence, keep: int) -> int:
        """Drop tokens after the first `keep` from a full context, about half of the rest.

        What follows them is computed again at its new positions, as far as it is not in the cache.
        No batch may compute the sequence.

        Returns:
            How many tokens were dropped.
        """
        start, end = shift_range(sequence, keep)
        self.kv_manager.free(sequence.cell_table, sequence.keys[: sequence.length])
        is_private = sequence.cell_table.is_private
        sequence.cell_table = self.kv_manager.allocate(sequence.capacity, is_private=is_private)
        cut(sequence, start, end)
        return end - start

    def shift(
        self, sequence: Sequence, keep: int
    ) -> tuple[int, list[npt.NDArray[np.int32]]] | None:
        """As `restart`, but keep what follows: its keys are then to be moved to their new places.

        Returns:
            How many tokens were dropped, and the cells whose keys must be moved back by as many
            positions, for each space; None if others use them or some are missing.
        """
        start, end = shift_range(sequence, keep)
        cells = self.kv_manager.shift(sequence.cell_table, start, end)
        if cells is None:
            return None
        cut(sequence, start, end)
        return end - start, cells

    def check(self) -> None:
        """Verify that each cell has the owners it should; for times when nothing runs.

        Raises:
            AssertionError: if not.
        """
        self.kv_manager.check([sequence.cell_table for sequence in self.running])

    # -- inside ----------------------------------------------------------------------------------

    def _urgency(self, sequence: Sequence) -> tuple[bool, int]:
        return sequence is not self._first, sequence.deadline

    def _kind(self, ready: list[Sequence]) -> bool:
        """Say what results the next batch gives; if both are wanted, they take turns."""
        kinds = {sequence.wants_logits for sequence in ready}
        self._gave_logits = not self._gave_logits if len(kinds) == 2 else kinds.pop()
        return self._gave_logits

    def _read(self, draft: Draft, sequence: Sequence) -> None:
        """Put as much of a prompt into a batch as fits, after what is in the cache already."""
        self._take_over(sequence)
        if not self._share_result(draft, sequence):
            self._add(draft, sequence, self._readable(draft, sequence))

    def _take_over(self, sequence: Sequence) -> None:
        """Let a sequence go on with rows of others; its last token must be computed."""
        start = sequence.computed
        count = self.kv_manager.match_prefix(
            sequence.cell_table, sequence.keys[start : sequence.length - 1]
        )
        if sequence.generated == 0:
            sequence.cached += count

    def _share_result(self, draft: Draft, sequence: Sequence) -> bool:
        """Let a sequence use the result of another that has the same tokens up to here."""
        if sequence.available != 1 or sequence.generated or sequence.wants_every_row:
            return False
        start = sequence.computed
        cell = self.kv_manager.next_cell(sequence.cell_table, sequence.keys[start : start + 1])
        if cell not in draft.results:
            return False
        self.kv_manager.match_prefix(sequence.cell_table, sequence.keys[start : start + 1])
        sequence.cached += 1
        output = draft.results[cell]
        draft.parts.append(Part(sequence, draft.rows, start + 1, 0, output, 1, is_last=True))
        return True

    def _readable(self, draft: Draft, sequence: Sequence) -> int:
        """Return how many tokens of a prompt can go into a batch."""
        start, limit, room = sequence.computed, sequence.available, draft.room
        if (image := self._missing(sequence)) is not None:
            limit = min(limit, _needed_from(sequence, image) - start)
        left = self._outputs - len(draft.outputs)
        if left <= 0:
            room = 0
        elif sequence.wants_every_row:
            chunk = sequence.collector.chunk if sequence.collector else None
            room = min(room, left, chunk or left)
        count = sequence.layout.fitting(start, min(room, limit))
        whole = sequence.layout.whole(start)
        if count > 0 or whole == 1 or whole > limit:
            return max(count, 0)
        if draft.prompt_rows == 0:
            return whole  # it may be larger than a batch, but not for ever wait for an empty one
        self._first = self._first or sequence
        return 0

    def _missing(self, sequence: Sequence) -> PlacedImage | None:
        """Return the first image that a sequence has yet to read and that is not embedded."""
        for image in sequence.layout.images:
            is_ahead = image.end > sequence.computed or image.image.placeholders.is_cross
            if is_ahead and image.number not in self.images:
                return image
        return None

    def _add(self, draft: Draft, sequence: Sequence, count: int) -> None:
        """Put a sequence's next tokens into a batch, if there are any and cells for them."""
        start, is_last = sequence.computed, sequence.available == count
        is_reading = sequence.is_reading
        points = self._checkpoints(start, start + count, is_last=is_last) if is_reading else ()
        if count == 0 or not self.kv_manager.append(sequence.cell_table, count, points):
            return
        first = len(draft.outputs)
        if sequence.wants_every_row and start < sequence.prompt_length:
            draft.outputs.extend(range(draft.rows, draft.rows + count))
        elif is_last:
            draft.outputs.append(draft.rows + count - 1)
        outputs = len(draft.outputs) - first
        draft.parts.append(
            Part(sequence, draft.rows, start, count, first, outputs, is_last, is_reading)
        )
        draft.rows += count
        if is_reading:
            draft.room -= count
            draft.prompt_rows += count
            self.kv_manager.insert(sequence.cell_table, sequence.keys[: sequence.length])
            if is_last and not sequence.cell_table.is_private:
                draft.results[self.kv_manager.last_cell(sequence.cell_table)] = (
                    len(draft.outputs) - 1
                )

    def _checkpoints(self, start: int, end: int, *, is_last: bool) -> Collection[int]:
        """Return behind which tokens of a part of a prompt states are kept, if a model has any.

        That is here and there, where the part ends, and before the prompt's last token: there the
        same prompt can go on when it comes again, as its last token is always computed.
        """
        apart = self.kv_manager.checkpoint_interval
        if apart == 1:
            return ()
        return {*range(start + -(start + 1) % apart, end, apart), end - 1, end - 1 - is_last}

    def _is_shared(self, part: Part) -> bool:
        sequence = part.sequence
        return self.runs(sequence) and self.kv_manager.is_shared(sequence.cell_table, part.start)


def _needed_from(sequence: Sequence, image: PlacedImage) -> int:
    """Return the first position that cannot be computed without an image."""
    takes = image.embedded(image.start, image.end)
    first = int(takes[0]) if len(takes) else image.start
    return image.start + sequence.layout.fitting(image.start, first - image.start)


def _is_ready(sequence: Sequence) -> bool:
    """Whether a sequence has tokens to compute, and room for them in its context."""
    if sequence.finish is not None or sequence.available == 0:
        return False
    if sequence.awaits and _is_at_limit(sequence):
        return False  # the token that is being sampled is its last
    return sequence.computed < sequence.capacity


def _is_at_limit(sequence: Sequence) -> bool:
    """Whether the token that is being sampled is the last that the caller wants."""
    limit = sequence.options.max_tokens
    return limit is not None and sequence.generated + 1 >= limit
