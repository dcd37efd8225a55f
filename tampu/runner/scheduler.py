"""The scheduler: which tokens of which sequences are computed in the next batch.

There are no separate prefill and decode phases: each sequence has uncomputed tokens, one while it
decodes and many for a new prompt. All sequences that decode are in every batch, since their clients
are reading; the rest of the batch goes to prompts (chunked prefill), the most urgent first. While
live requests decode, offline ones (priority `batch`) take turns in what `OfflinePace` leaves them.

A prompt reuses all rows of its prefix that are in the cache or will be after the batch in flight,
including those of a prompt that is still being computed. So each token of a prefix shared by many
requests is computed once.
"""

from __future__ import annotations

import time
from collections.abc import Collection, Iterable

import numpy as np
import numpy.typing as npt

from tampu.kvcache import KVCacheManager
from tampu.runner.admission import Admission
from tampu.runner.batch import Plan, to_plan
from tampu.runner.context_shift import drop_tokens, shift_range
from tampu.runner.draft_planner import DraftPlanner
from tampu.runner.drafts import DraftSource
from tampu.runner.encoder_cache import EncoderCache
from tampu.runner.kv_connector import KVConnector
from tampu.runner.layout import PlacedMedia
from tampu.runner.offline_pace import OfflinePace
from tampu.runner.sequence import Sequence
from tampu.runner.steering import SteeringPlanner
from tampu.runner.step_builder import StepBudget, StepBuilder, reuse_prefix

_MAX_PREFILL_BESIDE_DECODE = 128
"""Tokens in a step with sequences that decode; it limits the time between their tokens."""

_NO_LIMIT = 2**31


class Scheduler:
    """Holds the running and waiting sequences, and plans batches.

    Attributes:
        running: sequences that have a slot, in the order of getting it.
        waiting: sequences that have none yet.
        kv_manager: allocates cells.
        encoder_cache: the embeddings of images and sounds.
        connector: stores what sequences leave in the cache.
        pace: limits the work of offline requests beside live ones.
        drafts: guesses of the next tokens of answers.
        candidates: how many of the best logits graphs can return.
        recent: the tokens of the last sequence of each slot, as the prefix tree has them.
    """

    def __init__(
        self,
        kv_manager: KVCacheManager,
        *,
        slots: int,
        kv_unified: bool = False,
        max_batch_tokens: int,
        max_outputs: int,
        positions_per_token: int = 1,
        encoder_cache: EncoderCache | None = None,
        connector: KVConnector | None = None,
        candidates: tuple[int, ...] = (),
        drafts: DraftSource | None = None,
        keeps_states: bool = False,
    ) -> None:
        """Start without sequences.

        Args:
            kv_manager: allocates cells.
            slots: the maximum number of running sequences.
            kv_unified: whether they share the cells of one context.
            max_batch_tokens: the maximum number of tokens in a step, if not more decode.
            max_outputs: the maximum number of outputs of a step, at least `slots`.
            positions_per_token: the number of coordinates of a position.
            encoder_cache: the embeddings of images and sounds.
            connector: stores what sequences leave in the cache; None: nothing does.
            candidates: how many of the best logits graphs can return where these are enough.
            drafts: guesses the next tokens of answers; None: each step has one token of each.
            keeps_states: whether the final hidden states of outputs are kept for an assistant.
        """
        self.kv_manager = kv_manager
        self.encoder_cache = encoder_cache or EncoderCache(0)
        self.connector = connector or KVConnector()
        self._slots = slots
        self._admission = Admission(kv_manager, max_batch_tokens, kv_unified)
        self._lacks_cells = False  # no sequence could continue: there were no free cells
        self._max_batch_tokens = max_batch_tokens
        self._max_outputs = max_outputs
        self._positions_per_token = positions_per_token
        self.candidates = candidates
        self._keeps_states = keeps_states
        self._postponed: Sequence | None = None  # the last step had no room for its image or sound
        self._gave_logits = False
        self._started = 0
        self._steering = SteeringPlanner()
        self.pace = OfflinePace()
        self.drafts = DraftPlanner(kv_manager, max_outputs, drafts)
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
        call. Its rows stay in the cache, from which it continues with its next slot. One whose
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
                self.running.remove(sequence)
                self.waiting.append(sequence)
                self.drafts.ended(sequence)
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
        live = sum(not (s.is_offline or s.is_prefilling) for s in ready)
        allowed = None
        if live and any(s.is_offline for s in ready):
            allowed = self.pace.allowance(live)
            ready = [s for s in ready if allowed or not s.is_offline]
        step = self._build(ready, allowed)
        self._lacks_cells = step.lacks_cells and not step.parts
        if not step.parts:
            return None
        if allowed is not None:
            self.pace.planned(step.parts)
        return to_plan(
            step.parts,
            step.outputs,
            self.encoder_cache,
            self._steering,
            wants_logits=step.wants_logits,
            positions_per_token=self._positions_per_token,
            candidates=self.candidates,
            keeps_states=self._keeps_states,
        )

    def needed_media(self) -> PlacedMedia | None:
        """Return an image or a sound that a sequence needs next and that is not encoded yet."""
        for sequence in self._by_urgency(self.running):
            if sequence.layout.media and sequence.is_ready:
                reuse_prefix(self.kv_manager, sequence)
                placed = self.encoder_cache.missing(sequence.layout, sequence.computed)
                needed_from = sequence.layout.needed_from(placed) if placed else sequence.length
                if needed_from <= sequence.computed:
                    return placed
        return None

    def is_needed(self, plan: Plan) -> bool:
        """Return whether any sequence still needs a batch; if none does, discard its cells.

        Those of one that has ended may be needed by others, which share them.
        """
        running = [part for part in plan.parts if part.sequence in self.running]
        tables = [(part.sequence.cell_table, part.start) for part in running]
        if any(part.sequence.finish is None for part in plan.parts) or any(
            self.kv_manager.is_shared(table, start) for table, start in tables
        ):
            return True
        for table, start in tables:
            self.kv_manager.rollback(table, start)
        return False

    def cancelled(self) -> list[Sequence]:
        """Return the sequences that their callers have cancelled."""
        return [s for s in [*self.running, *self.waiting] if s.is_cancelled]

    def release(self, sequence: Sequence) -> None:
        """Free a sequence's slot; its rows stay in the cache."""
        if sequence in self.waiting:
            self.waiting.remove(sequence)
            return
        self.running.remove(sequence)
        self.drafts.ended(sequence)
        self.kv_manager.free(sequence.cell_table, sequence.keys[: sequence.length])
        if sequence.slot is not None and not (sequence.collector or sequence.variant):
            self.recent[sequence.slot] = sequence.keys[: sequence.length].copy()
        self.connector.released(sequence)

    def discard(self, sequence: Sequence) -> bool:
        """Free a failed sequence's slot and discard its rows; return whether it had a slot."""
        if sequence not in self.running:
            return False
        self.running.remove(sequence)
        self.drafts.ended(sequence)
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

    def _by_urgency(self, sequences: Iterable[Sequence]) -> list[Sequence]:
        return sorted(sequences, key=lambda each: (each is not self._postponed, each.urgency))

    def _build(self, ready: list[Sequence], allowed: int | None) -> StepBuilder:
        """Choose the next tokens of some sequences.

        Decoding sequences come first, a token each; prompts get the rest. Example: 3 sequences
        decode, prompts of 300 and 40 tokens wait, a step has 512 tokens at most. So that streams do
        not wait long for their next token, a step beside them has 128:

            step 1    d d d  125 of the first prompt
            step 2    d d d  125 of the first prompt
            step 3    d d d  the last 50 of the first prompt, 40 of the second
            step 4    d d d d d

        Args:
            ready: the sequences.
            allowed: the maximum number of tokens of offline requests; None: as many as fit.
        """
        kinds = {sequence.wants_logits for sequence in ready}  # if both are wanted, they alternate
        self._gave_logits = not self._gave_logits if len(kinds) == 2 else kinds.pop()
        ready = [s for s in ready if s.wants_logits is self._gave_logits]
        decoding = [s for s in ready if not s.is_prefilling]
        prefilling = self._by_urgency(s for s in ready if s.is_prefilling)
        if prefilling:
            for sequence in self.running:  # what others may reuse
                self.kv_manager.insert(sequence.cell_table, sequence.keys[: sequence.length])
        beside = min(self._max_batch_tokens, _MAX_PREFILL_BESIDE_DECODE)
        if allowed is not None and not decoding:
            # Embeddings need a step of their own; make it large enough to be efficient.
            allowed = beside
        decoding = self.pace.take_turns(decoding, allowed)
        drafts = self.drafts.take(() if prefilling or allowed is not None else decoding)
        if allowed is None:  # no live stream is beside offline requests that are ready
            allowed = 0 if any(not s.is_offline for s in decoding) else _NO_LIMIT
        budget = StepBudget(
            beside if decoding else self._max_batch_tokens, allowed, self._max_outputs
        )
        step = StepBuilder(
            self.kv_manager, self.encoder_cache, budget, wants_logits=self._gave_logits
        )
        # Those with as many drafts beside each other: else almost each step needs a new graph.
        for sequence in sorted(decoding, key=lambda each: len(drafts.get(each, ()))):
            step.add_next(sequence, drafts.get(sequence, ()))
        for sequence in prefilling:
            if not sequence.is_offline or budget.for_prompt(is_offline=True) > 0:
                step.add_prompt(sequence)
        self._postponed = step.postponed
        self._add_without_slots(step)
        return step

    def _add_without_slots(self, step: StepBuilder) -> None:
        """Add waiting prompts after which nothing is generated, if they fit whole.

        The step ends them, so they need no slot. Questions about one input are such prompts: as
        many as fit are computed together, whatever the number of slots. Sequences that have slots
        keep a cell each for their next tokens.
        """
        if self.kv_manager.has_states:  # the memory of states is divided by slots
            return
        for sequence in sorted(self.waiting, key=lambda each: each.urgency):
            if sequence.options.max_tokens == 0 and not sequence.layout.media:
                if not step.fits(sequence, self._max_batch_tokens, self._slots):
                    break
                self._start(sequence, None)
                step.add_prompt(sequence)
