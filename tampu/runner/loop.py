"""The run loop: plans a batch while the previous one computes, then samples, launches, delivers.

It works with sequences, batches and the cache, whatever the architecture and the API. It runs on
its own thread; callers pass it sequences through `submit`.
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
from tampu.runner.output_processor import OutputProcessor, StepTokens
from tampu.runner.recorder import RunnerSnapshot
from tampu.runner.scheduler import Scheduler
from tampu.runner.sequence import Sequence
from tampu.runner.stats import LoopStats
from tampu.runner.watchdog import Watchdog
from tampu.tokenizer import Tokenizer

log = logging.getLogger("tampu.runner")


@dataclass(frozen=True, slots=True)
class PreparedStep:
    """A job with its graph."""

    job: Job
    prepared: PreparedGraph


@dataclass(frozen=True, slots=True)
class Step:
    """A job that is computing."""

    job: Job
    prepared: PreparedGraph
    result: Future[Computed]


class EngineLoop:
    """Runs sequences over one model until it is closed.

    Attributes:
        stats: where the time goes, and the trace if one is attached.
        graphs: the model's graphs.
        watchdog: detects that the loop hangs.
    """

    def __init__(self, scheduler: Scheduler, graphs: Graphs, tokenizer: Tokenizer) -> None:
        self.graphs = graphs
        self.stats = LoopStats()
        self.watchdog = Watchdog()
        self._scheduler = scheduler
        self._outputs = OutputProcessor(scheduler, graphs, tokenizer)
        self._inbox: queue.SimpleQueue[Sequence | None] = queue.SimpleQueue()  # None wakes the loop
        self._observers: queue.SimpleQueue[Future[RunnerSnapshot]] = queue.SimpleQueue()
        self._stopped = threading.Event()
        self._submit_lock = threading.Lock()  # nothing is submitted after the loop has ended
        self._cause: BaseException | None = None
        self._thread = threading.Thread(target=self._main, name="tampu-runner", daemon=True)
        self._thread.start()

    # -- for callers, on any thread --------------------------------------------------------------

    def submit(self, sequence: Sequence) -> None:
        """Submit a sequence.

        Raises:
            RunnerDiedError: if the loop has ended.
        """
        with self._submit_lock:
            if self._stopped.is_set():
                raise self._ended()
            self._inbox.put(sequence)

    def cancel(self, sequence: Sequence) -> None:
        """End a sequence before its next token, with the reason `cancelled`."""
        sequence.is_cancelled = True
        self._inbox.put(None)

    def observe(self) -> RunnerSnapshot:
        """Return what happened since the last call; wait for the step that is computing, if any.

        Steps are recorded from the first call on, until nobody has called for a while.

        Raises:
            RunnerDiedError: if the loop has ended.
        """
        found: Future[RunnerSnapshot] = Future()
        with self._submit_lock:
            if self._stopped.is_set():
                raise self._ended()
            self._observers.put(found)
            self._inbox.put(None)
        return found.result()

    def close(self) -> None:
        """End the loop; running sequences fail with RunnerDiedError. A second call does nothing."""
        self._stopped.set()
        self._inbox.put(None)
        self._thread.join()

    # -- the loop --------------------------------------------------------------------------------

    def run(self) -> None:
        """Run until closed. The step in flight is the loop's only state."""
        in_flight: Step | None = None
        while not self._stopped.is_set():
            start_ns = time.perf_counter_ns()
            self.admit(block=in_flight is None and self._scheduler.is_idle)
            self.watchdog.busy("planning")
            prepared = self.prepare(in_flight)  # while `in_flight` computes
            sampled = self.finish(in_flight) if in_flight else {}  # waits for its results
            launched = self.launch(prepared)
            if in_flight:
                self.deliver(in_flight, sampled)  # while `launched` computes
                self.stats.iterated(start_ns)
            elif launched is None and self._scheduler.is_idle:
                self._scheduler.check()
                self.graphs.check_reservation()
            self.answer_observers()  # while `launched` computes
            in_flight = launched
        if in_flight:
            in_flight.result.exception()  # wait: the device must be done before anything is freed

    def admit(self, *, block: bool) -> None:
        """Admit new requests and end cancelled ones; with `block`, wait for some."""
        if block:
            self.watchdog.idle()
        arrived = [self._inbox.get()] if block else []
        while not self._inbox.empty():
            arrived.append(self._inbox.get())
        self._scheduler.waiting += [sequence for sequence in arrived if sequence is not None]
        for sequence in self._scheduler.cancelled():
            self._outputs.finish(sequence, "cancelled")
        for sequence in self._scheduler.start_waiting():
            sequence.times.started = time.monotonic_ns()

    def prepare(self, in_flight: Step | None) -> PreparedStep | None:
        """Choose the next job and prepare its graph and inputs, except for unknown tokens."""
        start_ns = time.perf_counter_ns()
        job = self._next(in_flight)
        if job is None:
            return None
        planned_ns = time.perf_counter_ns()
        try:
            prepared = job.prepare(self.graphs)
        except TampuError as error:
            job.fail(error)
            return None
        self.stats.prepared(job, prepared, start_ns, planned_ns)
        return PreparedStep(job, prepared)

    def finish(self, step: Step) -> StepTokens:
        """Wait for a step and sample the next token of each sequence that gets one."""
        wait_ns, job = time.perf_counter_ns(), step.job
        self.watchdog.wait(job.kind, job.size)
        try:
            computed = step.result.result()
        except TampuError as error:
            job.fail(error)
            return {}
        self.watchdog.computed(job.kind, job.size, computed.compute_ns / 1e9)
        self.stats.computed(job, computed, wait_ns)
        start_ns = time.perf_counter_ns()
        sampled = job.finish(computed, step.prepared)
        self.stats.span("sample", start_ns, len(sampled))
        return sampled

    def launch(self, step: PreparedStep | None) -> Step | None:
        """Start computing a prepared step, now that its tokens are known."""
        if step is None or not step.job.fill():
            return None
        try:
            result = self.graphs.launch(step.prepared)
        except TampuError as error:
            step.job.fail(error)
            return None
        step.job.launched()
        return Step(step.job, step.prepared, result)

    def deliver(self, step: Step, sampled: StepTokens) -> None:
        """Send the text of the tokens to the callers, and end completed sequences."""
        start_ns = time.perf_counter_ns()
        step.job.deliver(sampled)
        self.stats.span("deliver", start_ns, len(sampled))

    def answer_observers(self) -> None:
        """Tell those who look what happened; the cache does not change meanwhile."""
        while not self._observers.empty():
            found = self._observers.get()
            try:
                found.set_result(self.stats.observed(self._scheduler, self.graphs.counts))
            except Exception as error:  # noqa: BLE001 - looking must not end what it looks at
                found.set_exception(error)

    # -- inside ----------------------------------------------------------------------------------

    def _next(self, in_flight: Step | None) -> Job | None:
        """Choose the next job; batches and images alternate."""
        was_image = in_flight is not None and isinstance(in_flight.job, ImageJob)
        if not was_image and (image := self._scheduler.needed_image()):
            return ImageJob(image, self._scheduler.images, self._outputs)
        plan = self._scheduler.plan()
        return BatchJob(plan, self._scheduler, self._outputs) if plan else None

    def _main(self) -> None:
        """Run the loop, then fail all sequences that are left."""
        try:
            self.run()
        except Exception as error:
            log.exception("the run loop has failed")
            self._cause = error
        with self._submit_lock:
            self._stopped.set()
        left = [*self._scheduler.running, *self._scheduler.waiting]
        while not self._inbox.empty():
            arrived = self._inbox.get()
            left += [arrived] if arrived is not None else []
        while not self._observers.empty():
            self._observers.get().set_exception(self._ended())
        for sequence in left:
            self._outputs.abandon(sequence, self._ended())

    def _ended(self) -> RunnerDiedError:
        return RunnerDiedError(f"the runner has ended: {self._cause or 'it was closed'}")
