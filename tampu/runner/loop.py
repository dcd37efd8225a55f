"""The run loop: plan a batch while the last one computes, then sample, launch and deliver.

The loop knows sequences, batches and the cache, and nothing of any architecture, of HTTP or of
chat. It runs on a thread of its own; callers hand it work through `submit`.
"""

from __future__ import annotations

import logging
import queue
import threading
import time
from concurrent.futures import Future
from dataclasses import dataclass

from tampu.errors import RunnerDiedError, TampuError
from tampu.ml.backend import Computed
from tampu.runner.graphs import Graphs, PreparedGraph
from tampu.runner.jobs import BatchJob, ImageJob, Job
from tampu.runner.output_processor import Answers, Drawn, Vocabulary
from tampu.runner.scheduler import Scheduler
from tampu.runner.sequence import Sequence
from tampu.runner.stats import Records
from tampu.runner.watchdog import Pulse

log = logging.getLogger("tampu.runner")


@dataclass(frozen=True, slots=True)
class Work:
    """A job with its graph ready."""

    job: Job
    prepared: PreparedGraph


@dataclass(frozen=True, slots=True)
class Step:
    """Work that is computing."""

    work: Work
    result: Future[Computed]


class Runner:
    """Runs sequences over one model until it is closed.

    Attributes:
        records: where the time went, and the trace if there is one.
        graphs: how often graphs were built and used again.
        pulse: whether the loop still moves.
    """

    def __init__(self, scheduler: Scheduler, graphs: Graphs, tokenizer: Vocabulary) -> None:
        self.graphs = graphs
        self.records = Records()
        self.pulse = Pulse()
        self._scheduler = scheduler
        self._answers = Answers(scheduler, graphs, tokenizer)
        self._inbox: queue.SimpleQueue[Sequence | None] = queue.SimpleQueue()  # None wakes the loop
        self._stopped = threading.Event()
        self._door = threading.Lock()  # no request comes in once the last ones were answered
        self._cause: BaseException | None = None
        self._thread = threading.Thread(target=self._main, name="tampu-runner", daemon=True)
        self._thread.start()

    # -- for callers, on any thread --------------------------------------------------------------

    def submit(self, sequence: Sequence) -> None:
        """Hand over a sequence.

        Raises:
            RunnerDiedError: if the loop has ended.
        """
        with self._door:
            if self._stopped.is_set():
                raise self._ended()
            self._inbox.put(sequence)

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
            self.pulse.move("planning")
            work = self.prepare(flying)  # while `flying` computes
            drawn = self.finish(flying) if flying else {}  # waits for its results
            launched = self.launch(work)
            if flying:
                self.deliver(flying, drawn)  # while `launched` computes
                self.records.turn(began)
            elif launched is None and self._scheduler.is_idle:
                self._scheduler.check()
                self.graphs.check_reservation()
            flying = launched
        if flying:
            flying.result.exception()  # wait: the device must be done before anything is freed

    def admit(self, *, block: bool) -> None:
        """Take in new requests and end those that were cancelled; if `block`, wait for some."""
        if block:
            self.pulse.rest()
        arrived = [self._inbox.get()] if block else []
        while not self._inbox.empty():
            arrived.append(self._inbox.get())
        self._scheduler.waiting += [sequence for sequence in arrived if sequence is not None]
        for sequence in self._scheduler.cancelled():
            self._answers.finish(sequence, "cancelled")
        for sequence in self._scheduler.start_waiting():
            sequence.clock.started = time.monotonic_ns()

    def prepare(self, flying: Step | None) -> Work | None:
        """Decide what comes next, and have its graph and inputs ready but for unknown tokens."""
        began = time.perf_counter_ns()
        job = self._next(flying)
        if job is None:
            return None
        planned = time.perf_counter_ns()
        try:
            prepared = job.prepare(self.graphs)
        except TampuError as error:
            job.fail(error)
            return None
        self.records.prepared(job, prepared, began, planned)
        return Work(job, prepared)

    def finish(self, step: Step) -> Drawn:
        """Wait for a step and draw a token for each sequence that it gives one."""
        waited, job = time.perf_counter_ns(), step.work.job
        self.pulse.wait(job.kind, job.size)
        try:
            computed = step.result.result()
        except TampuError as error:
            job.fail(error)
            return {}
        self.pulse.computed(job.kind, job.size, computed.compute_ns / 1e9)
        self.records.computed(job, computed, waited)
        began = time.perf_counter_ns()
        drawn = job.finish(computed, step.work.prepared)
        self.records.sampled(began, len(drawn))
        return drawn

    def launch(self, work: Work | None) -> Step | None:
        """Begin to compute what was prepared, now that its tokens are known."""
        if work is None or not work.job.complete():
            return None
        try:
            result = self.graphs.launch(work.prepared)
        except TampuError as error:
            work.job.fail(error)
            return None
        work.job.launched()
        return Step(work, result)

    def deliver(self, step: Step, drawn: Drawn) -> None:
        """Hand on the text of the tokens, and end the sequences that are complete."""
        began = time.perf_counter_ns()
        step.work.job.deliver(drawn)
        self.records.delivered(began, len(drawn))

    # -- inside ----------------------------------------------------------------------------------

    def _next(self, flying: Step | None) -> Job | None:
        """Decide what the device does next; batches and images take turns."""
        was_image = flying is not None and isinstance(flying.work.job, ImageJob)
        if not was_image and (image := self._scheduler.needed_image()):
            return ImageJob(image, self._scheduler.images, self._answers)
        plan = self._scheduler.plan()
        return BatchJob(plan, self._scheduler, self._answers) if plan else None

    def _main(self) -> None:
        """Run the loop; whatever ends it ends the work that was left."""
        try:
            self.run()
        except Exception as error:
            log.exception("the runner has ended")
            self._cause = error
        with self._door:
            self._stopped.set()
        left = [*self._scheduler.running, *self._scheduler.waiting]
        while not self._inbox.empty():
            arrived = self._inbox.get()
            left += [arrived] if arrived is not None else []
        for sequence in left:
            self._answers.abandon(sequence, self._ended())

    def _ended(self) -> RunnerDiedError:
        return RunnerDiedError(f"the runner has ended: {self._cause or 'it was closed'}")
