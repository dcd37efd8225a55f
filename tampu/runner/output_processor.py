"""From results to answers: samples tokens, sends their text to the callers, ends sequences."""

from __future__ import annotations

import logging
import time
from collections.abc import Mapping
from contextlib import suppress
from itertools import zip_longest
from typing import TypeAlias

import numpy as np
import numpy.typing as npt
from msgspec.structs import replace

from tampu.errors import ComputeError, TampuError
from tampu.ml.backend import Computed
from tampu.ml.top_k import unpack
from tampu.nn.points import Point
from tampu.runner.batch import BatchPart, Plan
from tampu.runner.capture import Positions, SequenceCapture, Values
from tampu.runner.events import (
    Done,
    Event,
    Failed,
    FinishReason,
    PromptProgress,
    TextDelta,
)
from tampu.runner.generate_options import GenerateOptions
from tampu.runner.graph_cache import GraphCache
from tampu.runner.layout import PlacedMedia
from tampu.runner.reasoning_budget import ReasoningBudget
from tampu.runner.scheduler import Scheduler
from tampu.runner.sequence import (
    Constraint,
    Rows,
    SampledToken,
    Sequence,
    post_sampling_logprob,
    token_logprob,
)
from tampu.runner.step_outputs import StepOutputs
from tampu.sampling.logprobs import entropy
from tampu.tokenizer import Tokenizer

log = logging.getLogger("tampu.runner")

StepTokens: TypeAlias = dict[Sequence, list[SampledToken]]
"""The tokens that a step gave to each sequence: one after each draft that was right, and one more;
none if `max_tokens` is 0."""


class OutputProcessor:
    """Turns the results of steps into tokens and events for each sequence.

    An error that concerns one sequence ends that one; the others' tokens are not affected.
    """

    def __init__(self, scheduler: Scheduler, graphs: GraphCache, tokenizer: Tokenizer) -> None:
        self._scheduler = scheduler
        self._graphs = graphs
        self._tokenizer = tokenizer
        self._ends = tokenizer.eos
        self._batch = 0  # the number of the last one

    def await_tokens(self, plan: Plan) -> None:
        """Mark the sequences that will get a token from a launched batch."""
        for part in plan.parts:
            part.sequence.awaited += part.is_last
            if part.sequence.read == 0:
                self._report_progress(part.sequence)
            if part.is_last and part.sequence.constraint and part.sequence.finish is None:
                part.sequence.constraint.begin()

    def sample(self, plan: Plan, computed: Computed) -> StepTokens:
        """Sample the next token of each sequence that gets one from a batch."""
        sampled: StepTokens = {}
        outputs = StepOutputs.of(plan.inputs, computed.outputs[0])
        self._batch += 1
        self._hand_over(plan, computed)
        for part in plan.parts:
            sequence = part.sequence
            sequence.first_batch = sequence.first_batch or self._batch
            sequence.last_batch = self._batch
            sequence.awaited -= part.is_last
            sequence.read = part.end
            self._report_progress(sequence)
            if part.outputs == 0 or sequence.finish is not None:
                continue
            rows, is_best = outputs.rows(part.output, part.outputs)
            try:
                if sequence.collector:
                    sequence.collector.rows(rows)
                elif sequence.prompt_logprobs:
                    sequence.prompt_logprobs.add(rows)
                if part.is_last:
                    last = rows[-1 - len(part.drafts) :]
                    sampled[sequence] = self._verify(part, last, is_best=is_best)
            except TampuError as error:
                self.fail(sequence, _explained(error, computed.fault, sequence))
        return sampled

    def deliver(self, plan: Plan, sampled: StepTokens) -> None:
        """Send the text of the tokens to the callers, and end completed sequences."""
        for part in plan.parts:
            sequence = part.sequence
            if sequence in sampled and sequence in self._scheduler.running:  # not failed since
                self._deliver(sequence, sampled[sequence])

    def _hand_over(self, plan: Plan, computed: Computed) -> None:
        """Give each sequence what it captures; an error ends that one."""
        for sequence, capture, values in plan.media:
            self._give(sequence, capture, np.empty(0, np.int32), values)
        captured = plan.inputs.captured
        if captured is None:
            return
        every = captured.found(computed.outputs[1:])
        for part, own, found in zip(plan.captures, captured.parts, every, strict=True):
            self._give(part.sequence, own.capture, own.positions, found)

    def _give(
        self,
        sequence: Sequence,
        capture: SequenceCapture,
        positions: Positions,
        values: Mapping[Point, Values],
    ) -> None:
        if sequence.finish is None:
            try:
                capture.take(positions, values)
            except TampuError as error:
                self.fail(sequence, error)

    # -- one sequence ----------------------------------------------------------------------------

    def _verify(self, part: BatchPart, rows: Rows, *, is_best: bool) -> list[SampledToken]:
        """Sample a sequence's next tokens, until one differs from its draft.

        Each is sampled as without drafts: from the same logits, with the same penalties, grammar
        and random numbers. So drafts change the number of steps and nothing else. The cells of
        drafts that are wrong are taken back.

        Args:
            part: of the sequence.
            rows: the outputs of its last known token and of its drafts.
            is_best: as in `_sample`.
        """
        sequence, drafts = part.sequence, part.drafts
        tokens: list[SampledToken] = []
        for row, draft in zip_longest(rows, drafts):
            generated = sequence.generated
            try:
                sampled = self._sample(sequence, row, is_best=is_best)
            except TampuError:
                if not tokens or sequence.generated > generated:
                    raise
                break  # what comes before is delivered; the next step raises the error
            if sampled is None:
                break
            tokens.append(sampled)
            if sequence.finish is not None or sampled.token != draft:
                break
        if drafts:
            sequence.drafts = ()
            sequence.draft_steps += 1
            sequence.drafted += len(drafts)
            right = zip(tokens, drafts, strict=False)
            sequence.accepted += sum(each.token == draft for each, draft in right)
            self._scheduler.kv_manager.rollback(sequence.cell_table, sequence.length - 1)
            sequence.read = sequence.computed
        return tokens

    def _sample(
        self, sequence: Sequence, logits: npt.NDArray[np.float32], *, is_best: bool
    ) -> SampledToken | None:
        """Sample a sequence's next token and detect the end; None if `max_tokens` is 0.

        `is_best`: the row is one of `with_logits`, not of all logits.
        """
        options, constraint = sequence.options, sequence.constraint
        if not sequence.times.first_token:
            sequence.times.first_token = time.monotonic_ns()
            sequence.answer_batch = self._batch
        if options.max_tokens == 0:
            sequence.end_at("tokens")
            return None
        mask = constraint.mask() if constraint else None
        probabilities = None
        if options.logprobs and options.post_sampling_probs:
            probabilities = sequence.sampler.probabilities(logits, mask)
        if is_best:
            token = sequence.sampler.choose(*unpack(logits))
        else:
            token = sequence.sampler.sample(logits, mask)
        is_end = token in self._ends and not options.ignore_eos
        if is_end and (instead := _instead_of_end(constraint)) is not None:
            token, is_end, probabilities = instead, False, None
        sequence.append(token)
        if is_end or (constraint and _completes(constraint, token)):
            sequence.finish = "stop"
        elif sequence.generated == options.max_tokens:
            sequence.end_at("tokens")
        elif sequence.is_repeating:
            sequence.end_at("repetition")
        return self._with_logprobs(options, logits, token, probabilities)

    def _with_logprobs(
        self,
        options: GenerateOptions,
        logits: Rows,
        token: int,
        probabilities: tuple[npt.NDArray[np.intp], Rows] | None,
    ) -> SampledToken:
        """Return a token with what its request wants to know of its probability."""
        if not options.logprobs:
            return SampledToken(token)
        top, token_bytes = options.top_logprobs, self._tokenizer.token_bytes
        if probabilities is None:
            entry = token_logprob(logits, token, top, token_bytes)
        else:
            entry = post_sampling_logprob(*probabilities, token, top, token_bytes)
        if options.entropy:
            entry = replace(entry, entropy=entropy(logits))
        return SampledToken(token, (entry,))

    def _deliver(self, sequence: Sequence, sampled: list[SampledToken]) -> None:
        """Send the text of a sequence's next tokens; those after the end of the text are lost."""
        reason: FinishReason | None = None if sampled else sequence.finish
        for number, each in enumerate(sampled, 1):
            is_last = number == len(sampled)
            if reason := self._deliver_token(sequence, each, sequence.finish if is_last else None):
                sequence.length -= len(sampled) - number
                sequence.generated -= len(sampled) - number
                break
        is_full = sequence.computed >= sequence.capacity and not sequence.awaited
        try:
            if reason is None and is_full:
                reason = self._make_room(sequence)
        except TampuError as error:
            self.fail(sequence, error)
            return
        if reason:
            self.finish(sequence, reason)

    def _deliver_token(
        self, sequence: Sequence, sampled: SampledToken, reason: FinishReason | None
    ) -> FinishReason | None:
        """Send the text of one token; return why the answer ends here, if it does.

        `reason` is why the answer is complete with this token, as far as sampling has shown.
        """
        if reason == "stop" and sampled.token in self._ends:
            sequence.end = sampled
            return reason
        text = sequence.detokenizer.feed(sampled.token)
        sequence.pending.append(sampled)
        self._emit(sequence, text)
        if sequence.detokenizer.matched is not None:
            sequence.pending.clear()  # their text is part of the stop string
            return "stop"
        if sequence.detokenizer.is_cut:
            return sequence.end_at("indent")
        if reason is None and _ends_late_line(sequence, text):
            return sequence.end_at("time")
        return reason

    def _make_room(self, sequence: Sequence) -> FinishReason | None:
        """Shift a full context, or return why the sequence ends there."""
        options = sequence.options
        if not options.shift or sequence.capture:
            return sequence.end_at("context")
        keep = sequence.prompt_length if options.keep < 0 else options.keep
        keep = min(keep, sequence.capacity - 1)
        shifted = self._scheduler.shift(sequence, keep) if self._graphs.can_shift_keys else None
        if shifted is None:
            dropped = self._scheduler.recompute(sequence, keep)
        else:
            dropped, cells = shifted
            self._graphs.shift_keys(cells, -dropped)
        log.info("context full: dropped %d tokens after the first %d", dropped, keep)
        return None

    def _emit(self, sequence: Sequence, text: str, *, is_last: bool = False) -> None:
        """Send text with its tokens; the last event also includes tokens without text."""
        if not text and not (is_last and sequence.pending):
            return
        tokens = tuple(sampled.token for sampled in sequence.pending)
        logprobs = tuple(entry for sampled in sequence.pending for entry in sampled.logprobs)
        sequence.pending.clear()
        self._send(sequence, TextDelta(text, tokens, logprobs))

    def _send(self, sequence: Sequence, event: Event) -> None:
        """Send an event to a sequence's caller; if its sink fails, the request is cancelled.

        The sink may be able to take the error: who waits for the last event then gets one.
        """
        try:
            sequence.sink(event)
        except Exception as error:
            log.exception("the sink of a request failed: the request is cancelled")
            sink, sequence.sink = sequence.sink, _discard
            sequence.is_cancelled = True
            with suppress(Exception):
                sink(Failed("ComputeError", f"the output of a request cannot be used: {error}"))

    def _report_progress(self, sequence: Sequence) -> None:
        """Send how much of a prompt is computed, if that is requested and it has no answer yet."""
        if not sequence.options.return_progress or sequence.generated or sequence.finish:
            return
        processed = min(max(sequence.read, sequence.cached), sequence.prompt_length)
        elapsed_ns = time.monotonic_ns() - sequence.times.started if sequence.read else 0
        self._send(
            sequence,
            PromptProgress(sequence.prompt_length, sequence.cached, processed, elapsed_ns),
        )

    # -- ends ------------------------------------------------------------------------------------

    def finish(self, sequence: Sequence, reason: FinishReason) -> None:
        """End a sequence: free its slot, and send the rest of its text and its usage."""
        sequence.finish = reason
        self._scheduler.release(sequence)
        self._emit(sequence, sequence.detokenizer.flush(), is_last=True)
        collected = sequence.prompt_logprobs
        logprobs = tuple(collected.entries) if collected else ()
        usage = sequence.usage()
        log.debug("request %d: %s, %s", sequence.number, reason, usage)
        matched, batches = sequence.detokenizer.matched, sequence.batches
        limit = sequence.limit if reason == "length" else None
        last = sequence.end
        end = None if last is None else TextDelta("", (last.token,), last.logprobs)
        self._send(sequence, Done(reason, usage, logprobs, matched, batches, limit, end))

    def fail(self, sequence: Sequence, error: Exception) -> None:
        """End a sequence with an error, if it has not ended already."""
        sequence.finish = "stop"
        if self._scheduler.discard(sequence):
            self._send(sequence, Failed(type(error).__name__, str(error)))

    def fail_all(self, error: Exception) -> None:
        """End all running sequences: any may depend on rows of the failed batch."""
        self._scheduler.kv_manager.reset()
        for sequence in [*self._scheduler.running]:
            self.fail(sequence, error)

    def fail_media(self, failed: PlacedMedia, error: Exception) -> None:
        """End the sequences that contain an image or a sound."""
        for sequence in [*self._scheduler.running]:
            if any(placed.number == failed.number for placed in sequence.layout.media):
                self.fail(sequence, error)

    def abandon(self, sequence: Sequence, error: Exception) -> None:
        """Send a sequence's caller an error as its last event; nothing is freed."""
        self._send(sequence, Failed(type(error).__name__, str(error)))


def _explained(error: TampuError, fault: str, sequence: Sequence) -> TampuError:
    """Return an error of invalid logits with where they may come from, as far as that is known."""
    if not isinstance(error, ComputeError):
        return error
    message = str(error)
    if sequence.variant.adapters:
        message += "; the adapters of the request (lora) may be too strong"
    if sequence.variant.steering:
        message += "; the steering of the request may be too strong"
    return ComputeError(f"{message}; first NaN or infinity in {fault}" if fault else message)


def _completes(constraint: Constraint, token: int) -> bool:
    constraint.accept(token)
    return constraint.is_complete


def _instead_of_end(constraint: Constraint | None) -> int | None:
    """Return the token that ends reasoning, if content must follow; None: the answer ends."""
    if isinstance(constraint, ReasoningBudget) and constraint.ends_reasoning():
        return constraint.forced[0]
    return None


def _ends_late_line(sequence: Sequence, text: str) -> bool:
    """Whether text ends a line after the time of `max_predict_ms`."""
    limit = sequence.options.max_predict_ms
    if limit is None or "\n" not in text:
        return False
    return time.monotonic_ns() - sequence.times.first_token > limit * 1_000_000


def _discard(_event: Event) -> None:
    """Ignore an event of a cancelled request."""
