"""The scheduler: which tokens of which sequences are computed in the next batch.

There are no separate prefill and decode phases: each sequence has uncomputed tokens, one while it
decodes and many for a new prompt. All sequences that decode are in every batch, since their clients
are reading; the rest of the batch goes to prompts (chunked prefill), the most urgent first. While
live requests decode, those of priority `batch` take turns in what `BatchPace` leaves them.

A prompt reuses all rows of its prefix that are in the cache or will be after the batch in flight,
including those of a prompt that is still being computed. So each token of a prefix shared by many
requests is computed once.
"""

from __future__ import annotations

import time
from collections.abc import Collection

import numpy as np
import numpy.typing as npt

from tampu.kvcache import KVCacheManager
from tampu.runner.admission import Admission
from tampu.runner.batch import BatchPart, Draft, Plan, to_plan
from tampu.runner.batch_pace import BatchPace
from tampu.runner.context_shift import drop_tokens, shift_range
from tampu.runner.images import ImageStore
from tampu.runner.layout import PlacedImage
from tampu.runner.prefix_keeper import PrefixKeeper
from tampu.runner.sequence import Sequence

_MAX_PREFILL_BESIDE_DECODE = 128
"""Prompt tokens in a batch with sequences that decode; it limits the time between their tokens."""


class Scheduler:
    """Holds the running and waiting sequences, and plans batches.

    Attributes:
        running: sequences that have a slot, in the order of getting it.
        waiting: sequences that have none yet.
        kv_manager: allocates cells.
        images: the embeddings of images.
        keeper: keeps the rows of sequences that end, beyond the cache; None: nothing does.
        pace: limits the work of batch requests beside live ones.
        recent: the tokens of the last sequence of each slot, as the prefix tree has them.
    """

    def __init__(
        self,
        kv_manager: KVCacheManager,
        *,
        slots: int,
        kv_unified: bool = False,
        batch: int,
        outputs: int,
        positions_per_token: int = 1,
        images: ImageStore | None = None,
        keeper: PrefixKeeper | None = None,
        candidates: tuple[int, ...] = (),
    ) -> None:
        """Start without sequences.

        Args:
            kv_manager: allocates cells.
            slots: the maximum number of running sequences.
            kv_unified: whether they share the cells of one context.
            batch: the maximum number of prompt tokens in a batch.
            outputs: the maximum number of outputs of a batch, at least `slots`.
            positions_per_token: the number of coordinates of a position.
            images: the embeddings of images.
            keeper: keeps the rows of sequences that end.
            candidates: how many of the best logits graphs can return where these are enough.
        """
        self.kv_manager = kv_manager
        self.images = images or ImageStore(0)
        self.keeper = keeper
        self._slots = slots
        self._admission = Admission(kv_manager, batch, kv_unified)
        self._lacks_cells = False  # no sequence could go on for want of cells
        self._batch = batch
        self._outputs = outputs
        self._positions_per_token = positions_per_token
        self._candidates = candidates
        self._first: Sequence | None = None  # its group did not fit into the last batch
        self._gave_logits = False
        self._started = 0
        self.pace = BatchPace()
        self.recent: dict[int, npt.NDArray[np.int32]] = {}
        self.running: list[Sequence] = []
        self.waiting: list[Sequence] = []

    @property
    def is_idle(self) -> bool:
        """Whether no sequence is running or waiting."""
        return not (self.running or self.waiting)

    def start_waiting(self) -> list[Sequence]:
        """Give free slots to the most urgent waiting sequences, and return these."""
        started: list[Sequence] = []
        for slot in self._free_slots():
            sequence = min(self.waiting, key=lambda each: each.urgency, default=None)
            if sequence is None or not self._admission.may_start(sequence, self.running):
                break
            self._start(sequence, slot)
            started.append(sequence)
        return started

    def _free_slots(self) -> list[int]:
        taken = {each.slot for each in self.running}
        return [slot for slot in range(self._slots) if slot not in taken]

    def _start(self, sequence: Sequence, slot: int | None) -> None:
        self.waiting.remove(sequence)
        self.running.append(sequence)
        sequence.slot = slot
        sequence.times.started = sequence.times.started or time.monotonic_ns()
        if not sequence.was_preempted:
            self._started += 1
            sequence.number = self._started

    def preempt(self, in_flight: Collection[Sequence]) -> None:
        """Take slots from sequences that give way to more urgent ones (`Admission`).

        One that is in the batch in flight is planned no more, and gives up its slot at the next
        call. Its rows stay in the cache, from which it goes on when a slot is free again. One whose
        prompt has outputs of its own keeps its slot: they are not computed twice.
        """
        paused = self._admission.to_preempt(
            self.running,
            self.waiting,
            len(self._free_slots()),
            are_stuck=self._lacks_cells and not in_flight,
        )
        for sequence in self.running[:]:
            sequence.is_paused = sequence in paused
            if sequence.is_paused and sequence not in in_flight:
                self._requeue(sequence)

    def _requeue(self, sequence: Sequence) -> None:
        self.running.remove(sequence)
        self.waiting.append(sequence)
        self._restart(sequence)
        sequence.is_paused = False
        sequence.times.preempted = time.monotonic_ns()

    def _restart(self, sequence: Sequence) -> None:
        """Free a sequence's cells and give it an empty table; its rows stay in the cache."""
        table = sequence.cell_table
        self.kv_manager.free(table, sequence.keys[: sequence.length])
        sequence.cell_table = self.kv_manager.allocate(
            sequence.capacity, is_private=table.is_private
        )

    def plan(self) -> Plan | None:
        """Return the next batch; None if no sequence has a token to compute.

        Planned tokens get their cells, and count as computed from here on.
        """
        self._lacks_cells = False
        ready = [s for s in self.running if s.is_ready]
        if not ready:
            return None
        live = sum(not (s.is_batch or s.is_prefilling) for s in ready)
        allowed = None
        if live and any(s.is_batch for s in ready):
            allowed = self.pace.allowance(live)
            ready = [s for s in ready if allowed or not s.is_batch]
        draft = self._draft(ready, allowed)
        self._lacks_cells = draft.lacks_cells and not draft.parts
        if not draft.parts:
            return None
        if allowed is not None:
            self.pace.planned(draft.parts)
        return to_plan(draft, self.images, self._positions_per_token, self._candidates)

    def needed_image(self) -> PlacedImage | None:
        """Return an image that a sequence needs next and that is not encoded yet."""
        for sequence in sorted(self.running, key=self._urgency):
            if sequence.layout.images and sequence.is_ready:
                self._reuse_prefix(sequence)
                image = self.images.missing(sequence.layout, sequence.computed)
                needed_from = sequence.layout.needed_from(image) if image else sequence.length
                if needed_from <= sequence.computed:
                    return image
        return None

    def is_needed(self, plan: Plan) -> bool:
        """Return whether any sequence still needs the batch, or the rows that it computes."""
        return any(part.sequence.finish is None or self._is_shared(part) for part in plan.parts)

    def rollback(self, plan: Plan) -> None:
        """Discard the cells of a plan that will not be computed."""
        for part in plan.parts:
            if self.is_running(part.sequence):
                self.kv_manager.rollback(part.sequence.cell_table, part.start)

    def cancelled(self) -> list[Sequence]:
        """Return the sequences that their callers have cancelled."""
        return [s for s in [*self.running, *self.waiting] if s.is_cancelled]

    def release(self, sequence: Sequence) -> None:
        """Free a sequence's slot; its rows stay in the cache."""
        if sequence in self.waiting:
            self.waiting.remove(sequence)
            return
        self.running.remove(sequence)
        self.kv_manager.free(sequence.cell_table, sequence.keys[: sequence.length])
        if sequence.slot is not None and not (sequence.collector or sequence.lora.adapters):
            self.recent[sequence.slot] = sequence.keys[: sequence.length].copy()
        if self.keeper:
            self.keeper.released(sequence)

    def is_running(self, sequence: Sequence) -> bool:
        """Return whether a sequence has a slot."""
        return sequence in self.running

    def discard(self, sequence: Sequence) -> bool:
        """Free a failed sequence's slot and discard its rows; return whether it had a slot."""
        if sequence not in self.running:
            return False
        self.running.remove(sequence)
        self.kv_manager.free(sequence.cell_table, sequence.keys[:0])
        return True

    def recompute(self, sequence: Sequence, keep: int) -> int:
        """Drop about half of the tokens after the first `keep` from a full context.

        The tokens after them are computed again at their new positions, unless they are cached.
        The sequence must not be in a batch in flight.

        Returns:
            The number of dropped tokens.
        """
        start, end = shift_range(sequence, keep)
        self._restart(sequence)
        drop_tokens(sequence, start, end)
        return end - start

    def shift(
        self, sequence: Sequence, keep: int
    ) -> tuple[int, list[npt.NDArray[np.int32]]] | None:
        """Like `recompute`, but keep the rows of the tokens that move forward.

        Returns:
            The number of dropped tokens, and the cells whose keys must be moved back by as many
            positions, for each group; None if some of them are shared or missing.
        """
        start, end = shift_range(sequence, keep)
        cells = self.kv_manager.shift(sequence.cell_table, start, end)
        if cells is None:
            return None
        drop_tokens(sequence, start, end)
        return end - start, cells

    def check(self) -> None:
        """Verify the reference counts of all cells, while nothing runs.

        Raises:
            AssertionError: if one is wrong.
        """
        self.kv_manager.check([sequence.cell_table for sequence in self.running])

    # -- inside ----------------------------------------------------------------------------------

    def _urgency(self, sequence: Sequence) -> tuple[bool, tuple[bool, int]]:
        return sequence is not self._first, sequence.urgency

    def _kind(self, ready: list[Sequence]) -> bool:
        """Return whether the next batch outputs logits; both kinds alternate if both are wanted."""
        kinds = {sequence.wants_logits for sequence in ready}
        self._gave_logits = not self._gave_logits if len(kinds) == 2 else kinds.pop()
        return self._gave_logits

    def _draft(self, ready: list[Sequence], allowed: int | None) -> Draft:
        """Choose the next tokens of some sequences.

        Args:
            ready: the sequences.
            allowed: the maximum number of tokens of batch requests; None: as many as fit.
        """
        wants_logits = self._kind(ready)
        ready = [s for s in ready if s.wants_logits is wants_logits]
        decoding = [s for s in ready if not s.is_prefilling]
        prefilling = sorted((s for s in ready if s.is_prefilling), key=self._urgency)
        if prefilling:
            for sequence in self.running:  # what others may reuse
                self.kv_manager.insert(sequence.cell_table, sequence.keys[: sequence.length])
        beside = min(self._batch, _MAX_PREFILL_BESIDE_DECODE)
        if allowed is not None and not decoding:
            allowed = beside  # hidden states: a batch of their own, which should be worth it
        decoding = self.pace.take_turns(decoding, allowed)
        draft = Draft(wants_logits, max((beside if decoding else self._batch) - len(decoding), 1))
        draft.batch_room = draft.room
        if allowed is not None:
            draft.batch_room = min(draft.room, allowed - sum(s.is_batch for s in decoding))
        elif any(not s.is_batch for s in decoding):
            draft.batch_room = 0
        for sequence in decoding:
            self._add(draft, sequence, 1)
        self._first = None
        for sequence in prefilling:
            if draft.batch_room > 0 or not sequence.is_batch:
                self._prefill(draft, sequence)
        self._add_without_slots(draft)
        return draft

    def _add_without_slots(self, draft: Draft) -> None:
        """Add waiting prompts after which nothing is generated, if they fit whole.

        The batch ends them, so they need no slot. Questions about one input are such prompts:
        as many as fit are computed together, whatever the number of slots.
        """
        if self.kv_manager.has_states:  # the memory of states is divided by slots
            return
        for sequence in sorted(self.waiting, key=lambda each: each.urgency):
            if sequence.options.max_tokens == 0 and not sequence.layout.images:
                if not self._fits(draft, sequence):
                    break
                self._start(sequence, None)
                self._prefill(draft, sequence)

    def _fits(self, draft: Draft, sequence: Sequence) -> bool:
        """Return whether a batch has room for all tokens of a waiting prompt that are not cached.

        The sequences that have slots keep a cell each, for their next tokens.
        """
        table, reusable = sequence.cell_table, sequence.keys[: sequence.reusable_end]
        outputs = sequence.output_end - sequence.first_output if sequence.wants_rows else 1
        if sequence.wants_logits is not draft.wants_logits:
            return False
        cached, has_cells = self.kv_manager.fits(
            table, reusable, sequence.length, self._batch, self._slots
        )
        return (
            has_cells
            and sequence.length - cached <= (draft.batch_room if sequence.is_batch else draft.room)
            and len(draft.outputs) + outputs <= self._outputs
        )

    def _prefill(self, draft: Draft, sequence: Sequence) -> None:
        """Add as many tokens of a prompt as fit to a batch, after reusing its cached prefix."""
        self._reuse_prefix(sequence)
        if self._share_result(draft, sequence):
            return
        count = self._prefill_count(draft, sequence)
        if not self._add(draft, sequence, count):
            left = min(self.kv_manager.available, count)
            self._add(draft, sequence, sequence.layout.fitting(sequence.computed, left))

    def _reuse_prefix(self, sequence: Sequence) -> None:
        """Reuse cached rows of a sequence's next tokens, except those that have an output."""
        start, end = sequence.computed, sequence.reusable_end
        count = self.kv_manager.match_prefix(sequence.cell_table, sequence.keys[start:end])
        if sequence.generated == 0 and not sequence.was_preempted:
            sequence.cached += count

    def _share_result(self, draft: Draft, sequence: Sequence) -> bool:
        """Let a sequence use the output of another one in the batch that has the same tokens."""
        if sequence.uncomputed != 1 or sequence.generated or sequence.wants_rows:
            return False
        start, table = sequence.computed, sequence.cell_table
        cell = self.kv_manager.prefixes.next_cell(table, sequence.keys[start : start + 1])
        if cell not in draft.results:
            return False
        self.kv_manager.match_prefix(table, sequence.keys[start : start + 1])
        sequence.cached += 1
        output = draft.results[cell]
        draft.parts.append(BatchPart(sequence, draft.rows, start + 1, 0, output, 1, is_last=True))
        return True

    def _prefill_count(self, draft: Draft, sequence: Sequence) -> int:
        """Return how many tokens of a prompt fit into a batch."""
        start, limit, room = sequence.computed, sequence.uncomputed, draft.room
        if sequence.is_batch:
            room = min(room, draft.batch_room)
        if (image := self.images.missing(sequence.layout, sequence.computed)) is not None:
            limit = min(limit, sequence.layout.needed_from(image) - start)
        left = self._outputs - len(draft.outputs)
        if left <= 0:
            room = 0
        elif sequence.wants_rows:
            chunk = sequence.collector.chunk if sequence.collector else None
            without = max(sequence.first_output - start, 0)
            with_output = left if sequence.output_end == sequence.prompt_length else room
            room = min(room, without + with_output, chunk or room)
        count = sequence.layout.fitting(start, min(room, limit))
        whole = sequence.layout.whole(start)
        if count > 0 or whole == 1 or whole > limit:
            return max(count, 0)
        if draft.prompt_rows == 0:
            return whole  # it may be larger than a batch, but must not starve
        self._first = self._first or sequence
        return 0

    def _add(self, draft: Draft, sequence: Sequence, count: int) -> bool:
        """Add a sequence's next tokens to a batch; return False if there are too few cells."""
        start, is_last = sequence.computed, sequence.uncomputed == count
        is_prefilling = sequence.is_prefilling
        if count == 0:
            return True
        known = sequence.keys[: sequence.length]
        if not self.kv_manager.append(sequence.cell_table, count, known, is_prompt=is_prefilling):
            draft.lacks_cells = True
            return False
        first = len(draft.outputs)
        if sequence.wants_rows and start < sequence.prompt_length:
            without = min(max(sequence.first_output - start, 0), count)
            until = min(sequence.output_end - start, count)
            draft.outputs.extend(range(draft.rows + without, draft.rows + until))
        elif is_last:
            draft.outputs.append(draft.rows + count - 1)
        outputs = len(draft.outputs) - first
        draft.parts.append(
            BatchPart(sequence, draft.rows, start, count, first, outputs, is_last, is_prefilling)
        )
        draft.rows += count
        if is_prefilling:
            draft.room -= count
            draft.batch_room -= count if sequence.is_batch else 0
            draft.prompt_rows += count
            self.kv_manager.insert(sequence.cell_table, known)
            if is_last and not sequence.cell_table.is_private:
                draft.results[sequence.cell_table.last_cell()] = len(draft.outputs) - 1
        return True

    def _is_shared(self, part: BatchPart) -> bool:
        sequence = part.sequence
        return self.is_running(sequence) and self.kv_manager.is_shared(
            sequence.cell_table, part.start
        )
