"""From results to answers: tokens are drawn, their text is handed on, sequences end."""

from __future__ import annotations

import logging
import time
from typing import Protocol, TypeAlias

import numpy as np
import numpy.typing as npt

from tampu.errors import ComputeError, TampuError
from tampu.ml.backend import Computed
from tampu.runner.batch import Plan
from tampu.runner.events import Done, Event, Failed, FinishReason, TextDelta
from tampu.runner.graphs import Graphs
from tampu.runner.layout import PlacedImage
from tampu.runner.scheduler import Scheduler
from tampu.runner.sequence import Constraint, Sampled, Sequence, token_logprob

log = logging.getLogger("tampu.runner")

Drawn: TypeAlias = dict[Sequence, Sampled | None]
"""The token that a step gave to each sequence; None to one that wants none."""


class Vocabulary(Protocol):
    """The part of a tokenizer that the run loop uses."""

    @property
    def eos(self) -> frozenset[int]:
        """The end-of-sequence tokens."""
        ...

    def token_bytes(self, token: int, /) -> bytes:
        """Return a token's text in UTF-8, possibly part of a character."""
        ...


class Answers:
    """What a step's results mean for each sequence.

    An error that concerns one sequence ends that one, and the others' tokens are the same.
    """

    def __init__(self, scheduler: Scheduler, graphs: Graphs, tokenizer: Vocabulary) -> None:
        self._scheduler = scheduler
        self._graphs = graphs
        self._tokenizer = tokenizer
        self._ends = tokenizer.eos

    def await_tokens(self, plan: Plan) -> None:
        """Note who will get a token from a batch that was launched."""
        for part in plan.parts:
            part.sequence.awaits = part.is_last
            if part.is_last and part.sequence.constraint and part.sequence.finish is None:
                part.sequence.constraint.begin()

    def draw(self, plan: Plan, computed: Computed) -> Drawn:
        """Draw a token for each sequence that a batch gives one."""
        drawn: Drawn = {}
        for part in plan.parts:
            sequence = part.sequence
            sequence.awaits = False
            sequence.read = part.end
            if part.outputs == 0 or sequence.finish is not None:
                continue
            rows = np.asarray(
                computed.outputs[0][part.output : part.output + part.outputs], np.float32
            )
            try:
                if sequence.collector:
                    sequence.collector.rows(rows)
                elif sequence.prompt_logprobs:
                    sequence.prompt_logprobs.add(rows)
                if part.is_last:
                    drawn[sequence] = self._draw(sequence, rows[-1])
            except TampuError as error:
                self.fail(sequence, _explained(error, computed.fault))
        return drawn

    def deliver(self, plan: Plan, drawn: Drawn) -> None:
        """Hand on the text of the tokens, and end the sequences that are complete."""
        for part in plan.parts:
            sequence = part.sequence
            if sequence in drawn and self._scheduler.runs(sequence):  # not failed since
                self._deliver(sequence, drawn[sequence])

    # -- one token -------------------------------------------------------------------------------

    def _draw(self, sequence: Sequence, logits: npt.NDArray[np.float32]) -> Sampled | None:
        """Draw a sequence's next token, and note if it is the last; None if it wants none."""
        options, constraint = sequence.options, sequence.constraint
        sequence.clock.first_token = sequence.clock.first_token or time.monotonic_ns()
        if options.max_tokens == 0:
            sequence.finish = "length"
            return None
        token = sequence.sampler.sample(logits, constraint.mask() if constraint else None)
        sequence.append(token)
        is_end = token in self._ends and not options.ignore_eos
        if is_end or (constraint and _completes(constraint, token)):
            sequence.finish = "stop"
        elif sequence.generated == options.max_tokens or sequence.only_repeats:
            sequence.finish = "length"
        if not options.logprobs:
            return Sampled(token)
        top = options.top_logprobs
        return Sampled(token, (token_logprob(logits, token, top, self._tokenizer.token_bytes),))

    def _deliver(self, sequence: Sequence, sampled: Sampled | None) -> None:
        reason: FinishReason | None = sequence.finish
        if sampled and not (reason == "stop" and sampled.token in self._ends):
            text = sequence.detokenizer.feed(sampled.token)
            sequence.pending.append(sampled)
            self._emit(sequence, text)
            if sequence.detokenizer.matched is not None:
                reason = "stop"
                sequence.pending.clear()  # their text is the stop string
        is_full = sequence.computed >= sequence.capacity and not sequence.awaits
        try:
            if reason is None and is_full:
                reason = self._make_room(sequence)
        except TampuError as error:
            self.fail(sequence, error)
            return
        if reason:
            self.finish(sequence, reason)

    def _make_room(self, sequence: Sequence) -> FinishReason | None:
        """Shift a full context, or say why the sequence ends there."""
        options = sequence.options
        if not options.shift:
            return "length"
        keep = sequence.prompt_length if options.keep < 0 else options.keep
        keep = min(keep, sequence.capacity - 1)
        shifted = self._scheduler.shift(sequence, keep) if self._graphs.can_rotate else None
        if shifted is None:
            dropped = self._scheduler.restart(sequence, keep)
        else:
            dropped, cells = shifted
            self._graphs.rotate(cells, -dropped)
        log.info("context full: dropped %d tokens after the first %d", dropped, keep)
        return None

    def _emit(self, sequence: Sequence, text: str, *, is_last: bool = False) -> None:
        """Hand on text with the tokens that made it; at the end also tokens that made none."""
        if not text and not (is_last and sequence.pending):
            return
        tokens = tuple(sampled.token for sampled in sequence.pending)
        logprobs = tuple(entry for sampled in sequence.pending for entry in sampled.logprobs)
        sequence.pending.clear()
        self._send(sequence, TextDelta(text, tokens, logprobs))

    def _send(self, sequence: Sequence, event: Event) -> None:
        """Give an event to a sequence's caller; one that cannot take it wants no more."""
        try:
            sequence.sink(event)
        except Exception:
            log.exception("the receiver of an answer failed: its request is cancelled")
            sequence.sink = _nowhere
            sequence.is_cancelled = True

    # -- ends ------------------------------------------------------------------------------------

    def finish(self, sequence: Sequence, reason: FinishReason) -> None:
        """End a sequence: the rest of its text, what it cost, its slot."""
        sequence.finish = reason
        self._scheduler.release(sequence)
        self._emit(sequence, sequence.detokenizer.flush(), is_last=True)
        collected = sequence.prompt_logprobs
        logprobs = tuple(collected.entries) if collected else ()
        usage = sequence.usage()
        log.debug("request %d: %s, %s", sequence.number, reason, usage)
        self._send(sequence, Done(reason, usage, logprobs, sequence.detokenizer.matched))

    def fail(self, sequence: Sequence, error: Exception) -> None:
        """End a sequence with an error, if it has not ended already."""
        sequence.finish = "stop"
        if self._scheduler.discard(sequence):
            self._send(sequence, Failed(type(error).__name__, str(error)))

    def fail_all(self, error: Exception) -> None:
        """End all that runs: any of it may have begun with rows of the batch that failed."""
        self._scheduler.kv_manager.reset()
        for sequence in [*self._scheduler.running]:
            self.fail(sequence, error)

    def fail_image(self, failed: PlacedImage, error: Exception) -> None:
        """End the sequences that an image belongs to."""
        for sequence in [*self._scheduler.running]:
            if any(image.number == failed.number for image in sequence.layout.images):
                self.fail(sequence, error)

    def abandon(self, sequence: Sequence, error: Exception) -> None:
        """Tell a sequence's caller that nothing more will come; nothing is freed."""
        self._send(sequence, Failed(type(error).__name__, str(error)))


def _explained(error: TampuError, fault: str) -> TampuError:
    """Return an error of unusable logits that says where they come from, if that is known."""
    if fault and isinstance(error, ComputeError):
        return ComputeError(f"{error}; unusable numbers begin with {fault}")
    return error


def _completes(constraint: Constraint, token: int) -> bool:
    constraint.accept(token)
    return constraint.is_complete


def _nowhere(_event: Event) -> None:
    """Receive events that nobody wants."""
