"""The run loop: plan a batch while the last one computes, then sample, launch and deliver.

The loop knows sequences, batches and the cache, and nothing of any architecture, of HTTP or of
chat. It runs on a thread of its own; callers hand it work through `submit` and `probe`.
"""

from __future__ import annotations

import logging
import queue
import threading
import time
from concurrent.futures import Future
from dataclasses import dataclass
from typing import Protocol, TypeAlias

import numpy as np
import numpy.typing as npt

from tampu.errors import RunnerDiedError, TampuError
from tampu.kvcache import Segment
from tampu.ml.backend import Computed
from tampu.runner.events import Done, Event, Failed, FinishReason, Text, TokenLogprob
from tampu.runner.graphs import Graphs, StepInputs
from tampu.runner.scheduler import Plan, Scheduler
from tampu.runner.sequence import Probe, Sampled, Sequence
from tampu.sampling import top_logprobs

log = logging.getLogger("tampu.runner")

Job: TypeAlias = Sequence | Probe | None  # None wakes the loop


class Ends(Protocol):
    """What the loop asks of a tokeniser."""

    @property
    def eos(self) -> frozenset[int]:
        """The tokens that end an answer."""
        ...


@dataclass(frozen=True, slots=True)
class Step:
    """A batch that is computing."""

    plan: Plan
    result: Future[Computed]


@dataclass(slots=True)
class LoopTimes:
    """Where the loop's time went since the start, in nanoseconds."""

    steps: int = 0
    compute_ns: int = 0
    total_ns: int = 0


class Runner:
    """Runs sequences over one model until it is closed.

    Attributes:
        times: where the time went.
        graphs: how often graphs were built and used again.
    """

    def __init__(self, scheduler: Scheduler, graphs: Graphs, ends: Ends) -> None:
        self.graphs = graphs
        self.times = LoopTimes()
        self._scheduler = scheduler
        self._ends = ends.eos
        self._inbox: queue.SimpleQueue[Job] = queue.SimpleQueue()
        self._stopped = threading.Event()
        self._door = threading.Lock()  # no job comes in once the last ones were answered
        self._cause: BaseException | None = None
        self._thread = threading.Thread(target=self._main, name="tampu-runner", daemon=True)
        self._thread.start()

    # -- for callers, on any thread --------------------------------------------------------------

    def submit(self, job: Sequence | Probe) -> None:
        """Hand over a sequence or a probe.

        Raises:
            RunnerDiedError: if the loop has ended.
        """
        with self._door:
            if self._stopped.is_set():
                raise self._ended()
            self._inbox.put(job)

    def cancel(self, sequence: Sequence) -> None:
        """Let a sequence end with the reason `cancelled` before its next token."""
        sequence.is_cancelled = True
        self._inbox.put(None)

    def close(self) -> None:
        """End the loop; what is under way fails with RunnerDiedError. Twice is harmless."""
        self._stopped.set()
        self._inbox.put(None)
        self._thread.join()

    # -- the loop --------------------------------------------------------------------------------

    def run(self) -> None:
        """Run until closed. What is on the device is the loop's only state."""
        flying: Step | None = None
        while not self._stopped.is_set():
            began = time.perf_counter_ns()
            self.admit(block=flying is None and self._scheduler.is_idle)
            planned = self._scheduler.plan()  # while `flying` computes
            tokens = self.sample(flying) if flying else {}  # waits for its logits
            launched = self.launch(planned)
            if flying:
                self.deliver(flying, tokens)  # while `launched` computes
                self.times.total_ns += time.perf_counter_ns() - began
            elif launched is None:
                self.rest()
            flying = launched
        if flying:
            flying.result.exception()  # wait: the device must be done before anything is freed

    def admit(self, *, block: bool) -> None:
        """Take in new work and end what was cancelled; if `block`, wait for some."""
        jobs = [self._inbox.get()] if block else []
        while not self._inbox.empty():
            jobs.append(self._inbox.get())
        for job in jobs:
            if isinstance(job, Probe):
                self._scheduler.probes.append(job)
            elif job is not None:
                self._scheduler.waiting.append(job)
        for sequence in self._scheduler.cancelled():
            self._finish(sequence, "cancelled")
        for sequence in self._scheduler.start_waiting():
            sequence.clock.started = time.monotonic_ns()

    def sample(self, step: Step) -> dict[Sequence, Sampled | None]:
        """Wait for a step and draw a token for each sequence that it gives one."""
        try:
            computed = step.result.result()
        except TampuError as error:
            self._fail_running(error)
            return {}
        self.times.steps += 1
        self.times.compute_ns += computed.compute_ns
        drawn: dict[Sequence, Sampled | None] = {}
        for part in step.plan.parts:
            part.sequence.awaits = False
            if part.output is None or part.sequence.finish is not None:
                continue
            try:
                drawn[part.sequence] = self._draw(part.sequence, computed.outputs[0][part.output])
            except TampuError as error:
                self._fail(part.sequence, error)
        return drawn

    def launch(self, plan: Plan | None) -> Step | None:
        """Begin to compute a planned batch, now that its tokens are known."""
        if plan is None:
            return None
        if not plan.is_needed:
            self._scheduler.undo(plan)
            return None
        plan.fill()
        try:
            result = self.graphs.submit(plan.inputs)
        except TampuError as error:
            self._scheduler.undo(plan)
            for part in plan.parts:
                if part.sequence.finish is None:
                    self._fail(part.sequence, error)
            return None
        for part in plan.parts:
            part.sequence.awaits = part.output is not None
        return Step(plan, result)

    def deliver(self, step: Step, tokens: dict[Sequence, Sampled | None]) -> None:
        """Hand on the text of the tokens, and end the sequences that are complete."""
        for part in step.plan.parts:
            sequence = part.sequence
            if sequence in tokens and self._scheduler.runs(sequence):  # not failed since
                self._deliver_token(sequence, tokens[sequence])

    def rest(self) -> None:
        """Do what waits for a moment without a batch: probes and self-checks."""
        if probe := self._scheduler.next_probe():
            self._run_probe(probe)
        elif self._scheduler.is_idle:
            self._scheduler.check()

    # -- one token -------------------------------------------------------------------------------

    def _draw(self, sequence: Sequence, logits: npt.NDArray[np.generic]) -> Sampled | None:
        """Draw a sequence's next token, and note if it is the last; None if it wants none."""
        options = sequence.options
        sequence.clock.first_token = sequence.clock.first_token or time.monotonic_ns()
        if options.max_tokens == 0:
            sequence.finish = "length"
            return None
        row = np.asarray(logits, np.float32)
        token = sequence.sampler.sample(row)
        sequence.append(token)
        if token in self._ends and not options.ignore_eos:
            sequence.finish = "stop"
        elif sequence.generated == options.max_tokens:
            sequence.finish = "length"
        if not options.logprobs:
            return Sampled(token)
        own, top = top_logprobs(row, token, options.top_logprobs)
        return Sampled(token, (TokenLogprob(token, own, tuple(top)),))

    def _deliver_token(self, sequence: Sequence, sampled: Sampled | None) -> None:
        reason: FinishReason | None = sequence.finish
        if sampled and not (reason == "stop" and sampled.token in self._ends):
            piece = sequence.text.feed(sampled.token)
            sequence.pending.append(sampled)
            self._emit(sequence, piece.text)
            if piece.stopped:
                reason = "stop"
                sequence.pending.clear()  # their text is the stop string
        is_full = sequence.computed >= sequence.capacity and not sequence.awaits
        if reason is None and is_full:
            reason = self._make_room(sequence)
        if reason:
            self._finish(sequence, reason)

    def _make_room(self, sequence: Sequence) -> FinishReason | None:
        """Shift a full context, or say why the sequence ends there."""
        options = sequence.options
        if not options.shift:
            return "length"
        keep = sequence.prompt_length if options.keep < 0 else options.keep
        dropped = self._scheduler.shift(sequence, min(keep, sequence.capacity - 1))
        log.info("context full: dropped %d tokens after the first %d", dropped, keep)
        return None

    def _emit(self, sequence: Sequence, text: str, *, is_last: bool = False) -> None:
        """Hand on text with the tokens that made it; at the end also tokens that made none."""
        if not text and not (is_last and sequence.pending):
            return
        tokens = tuple(sampled.token for sampled in sequence.pending)
        logprobs = tuple(entry for sampled in sequence.pending for entry in sampled.logprobs)
        sequence.pending.clear()
        self._send(sequence, Text(text, tokens, logprobs))

    def _send(self, sequence: Sequence, event: Event) -> None:
        """Give an event to a sequence's caller; one that cannot take it wants no more."""
        try:
            sequence.sink(event)
        except Exception:
            log.exception("the receiver of an answer failed: its request is cancelled")
            sequence.sink = _nowhere
            sequence.is_cancelled = True

    # -- ends ------------------------------------------------------------------------------------

    def _finish(self, sequence: Sequence, reason: FinishReason) -> None:
        """End a sequence: the rest of its text, what it cost, its slot."""
        sequence.finish = reason
        self._scheduler.release(sequence)
        self._emit(sequence, sequence.text.flush(), is_last=True)
        self._send(sequence, Done(reason, sequence.usage()))

    def _fail(self, sequence: Sequence, error: Exception) -> None:
        """End a sequence with an error, if it has not ended already."""
        sequence.finish = "stop"
        if self._scheduler.discard(sequence):
            self._send(sequence, Failed(type(error).__name__, str(error)))

    def _fail_running(self, error: Exception) -> None:
        """End all that runs: any of it may have begun with rows of the batch that failed."""
        self._scheduler.forget()
        for sequence in [*self._scheduler.running]:
            self._fail(sequence, error)

    def _main(self) -> None:
        """Run the loop; whatever ends it ends the work that was left."""
        try:
            self.run()
        except Exception as error:
            log.exception("the runner has ended")
            self._cause = error
        with self._door:
            self._stopped.set()
        why = self._ended()
        while not self._inbox.empty():
            job = self._inbox.get()
            if isinstance(job, Probe):
                self._scheduler.probes.append(job)
            elif job is not None:
                self._scheduler.waiting.append(job)
        for sequence in [*self._scheduler.running, *self._scheduler.waiting]:
            self._send(sequence, Failed("RunnerDiedError", str(why)))
        for probe in self._scheduler.probes:
            probe.finished(why)

    def _ended(self) -> RunnerDiedError:
        return RunnerDiedError(f"the runner has ended: {self._cause or 'it was closed'}")

    # -- probes ----------------------------------------------------------------------------------

    def _run_probe(self, probe: Probe) -> None:
        """Compute a text chunk by chunk and hand out every token's row."""
        error: TampuError | None = None
        cells = self._scheduler.borrow(len(probe.tokens))
        try:
            for start in range(0, len(probe.tokens), probe.chunk):
                end = min(start + probe.chunk, len(probe.tokens))
                inputs = StepInputs(
                    probe.tokens[start:end],
                    np.arange(start, end, dtype=np.int32),
                    np.arange(end - start, dtype=np.int32),
                    [Segment(cells[:end], start)],
                    probe.wants_logits,
                )
                rows = self.graphs.submit(inputs).result().outputs[0]
                probe.collect(np.asarray(rows, np.float32))
            self.graphs.check_reservation()
        except TampuError as failure:
            error = failure
        finally:
            self._scheduler.give_back(cells)
        self._scheduler.probes.remove(probe)
        probe.finished(error)


def _nowhere(_event: Event) -> None:
    """Receive events that nobody wants."""
