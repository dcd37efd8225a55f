"""The run loop: plans a batch while the previous one computes, then samples, launches, delivers.

It works with sequences, batches and the cache, whatever the architecture and the API. It runs on
its own thread; callers pass it sequences through `submit`.
"""

from __future__ import annotations

import logging
import os
import queue
import threading
import time
from collections.abc import Callable, Iterable
from concurrent.futures import Future
from dataclasses import dataclass
from typing import Any, TypeVar

import numpy as np
import numpy.typing as npt

from tampu.errors import DeviceLostError, RunnerDiedError, TampuError
from tampu.runner.graph_cache import GraphCache
from tampu.runner.idle_warm_up import IdleWarmUp
from tampu.runner.jobs import ForwardJob, ImageJob, Job, PreparedStep, Step
from tampu.runner.kv_connector import KVLoad
from tampu.runner.output_processor import OutputProcessor, StepTokens
from tampu.runner.recorder import RunnerSnapshot
from tampu.runner.scheduler import Scheduler
from tampu.runner.sequence import Sequence
from tampu.runner.stats import LoopStats
from tampu.runner.watchdog import Watchdog
from tampu.threads import ProgramEndedError
from tampu.tokenizer import Tokenizer

log = logging.getLogger("tampu.runner")
T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class Call:
    """Something to run on the loop's thread, and its result."""

    work: Callable[[], Any]
    result: Future[Any]


class EngineLoop:
    """Runs sequences over one model until it is closed.

    Attributes:
        stats: where the time goes, and the trace if one is attached.
        graphs: the model's graphs.
        watchdog: detects that the loop hangs.
    """

    def __init__(
        self,
        scheduler: Scheduler,
        graphs: GraphCache,
        tokenizer: Tokenizer,
        warm_up: IdleWarmUp | None = None,
    ) -> None:
        """Start the loop, which computes the batches of `warm_up` while it is idle."""
        self.graphs = graphs
        self.stats = LoopStats()
        self.watchdog = Watchdog()
        self._scheduler = scheduler
        self._outputs = OutputProcessor(scheduler, graphs, tokenizer)
        self._warm_up = warm_up or IdleWarmUp(graphs, scheduler.kv_manager, 0)
        self._inbox: queue.SimpleQueue[Sequence | KVLoad | Call | None] = queue.SimpleQueue()
        self._observers: queue.SimpleQueue[Future[RunnerSnapshot]] = queue.SimpleQueue()
        self._stopped = threading.Event()
        self._submit_lock = threading.Lock()  # nothing is submitted after the loop has ended
        self._cause: BaseException | None = None
        self._process = os.getpid()
        self._thread = threading.Thread(target=self._main, name="tampu-runner", daemon=True)
        self._thread.start()

    # -- for callers, on any thread --------------------------------------------------------------

    def submit(self, sequence: Sequence) -> None:
        """Submit a sequence.

        Raises:
            RunnerDiedError: if the loop has ended.
        """
        self._check_process()
        load = self._scheduler.connector.lookup(sequence)
        with self._submit_lock:
            if self._stopped.is_set():
                raise self._ended()
            self._inbox.put(load or sequence)

    def call(self, work: Callable[[], T]) -> T:
        """Run something on the loop's thread between two steps; it must not take long.

        Raises:
            RunnerDiedError: if the loop has ended.
        """
        self._check_process()
        result: Future[T] = Future()
        with self._submit_lock:
            if self._stopped.is_set():
                raise self._ended()
            self._inbox.put(Call(work, result))
        return result.result()

    def cancel(self, sequence: Sequence) -> None:
        """End a sequence before its next token, with the reason `cancelled`."""
        sequence.is_cancelled = True
        self._inbox.put(None)  # wakes the loop

    def finish_warm_up(self) -> None:
        """Compute now what loading has left for when the loop is idle.

        Raises:
            RunnerDiedError: if the loop has ended.
        """

        def finish() -> None:
            while self._warm_up.next():
                self._warm_up.compute()

        self.call(finish)

    def observe(self) -> RunnerSnapshot:
        """Return what happened since the last call; wait for the step that is computing, if any.

        Steps are recorded from the first call until two seconds after the last.

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

    def count_cached(self, prompts: Iterable[npt.NDArray[np.int32]]) -> list[int]:
        """Return how many of the first tokens of each prompt are in the cache.

        Args:
            prompts: each as the prefix cache compares it (`Sequence.keys`).

        Raises:
            RunnerDiedError: if the loop has ended.
        """
        prefixes = self._scheduler.kv_manager.prefixes
        return self.call(lambda: [prefixes.count_cached(keys) for keys in prompts])

    def close(self) -> None:
        """End the loop; running sequences fail with RunnerDiedError. A second call does nothing."""
        self._stopped.set()
        self._inbox.put(None)
        self._thread.join()
        self._scheduler.connector.close()

    # -- the loop --------------------------------------------------------------------------------

    def run(self) -> None:
        """Run until closed. The step in flight is the loop's only state.

        A step whose unknown tokens the device chooses is launched before the one in flight is done.
        """
        in_flight: Step | None = None
        while not self._stopped.is_set():
            start_ns = time.perf_counter_ns()
            self.admit(in_flight, block=in_flight is None and self._scheduler.is_idle)
            self.watchdog.busy("planning")
            prepared = self.prepare(in_flight)  # while `in_flight` computes
            follows = self.follows(prepared, in_flight)
            launched = self.launch(prepared, in_flight) if follows else None  # queued behind it
            sampled = self.finish(in_flight) if in_flight else {}  # waits for its results
            if not follows:
                prepared = self.with_drafts(prepared, in_flight)  # its tokens are known now
            if launched and sampled is None:
                self._drop(launched)  # what it read was never computed
                launched = None
            self._scheduler.connector.step_done()
            launched = launched if follows else self.launch(prepared)
            if in_flight and launched:
                in_flight.job.replaced((launched.launched_ns - in_flight.launched_ns) / 1e9)
            if in_flight:
                self.deliver(in_flight, sampled or {})  # while `launched` computes
                self.stats.iterated(start_ns)
            elif launched is None and self._scheduler.is_idle:
                self._scheduler.check()
                self.graphs.check_reservation()
            if launched is None:
                self._scheduler.connector.step_done()
            self.answer_observers()  # while `launched` computes
            in_flight = launched
        if in_flight:
            in_flight.result.exception()  # wait: the device must be done before anything is freed

    def admit(self, in_flight: Step | None, *, block: bool) -> None:
        """Admit new requests and end cancelled ones; with `block`, wait for some.

        Offline requests give up their slots for interactive ones that wait.
        """
        arrived = [self._wait()] if block else []
        while not self._inbox.empty():
            arrived.append(self._inbox.get())
        for each in arrived:
            if isinstance(each, KVLoad):
                if not self._scheduler.connector.load(each, self._inbox.put):
                    self._scheduler.waiting.append(each.sequence)
            elif isinstance(each, Call):
                _run(each)
            elif each is not None:
                self._scheduler.waiting.append(each)
        for sequence in self._scheduler.cancelled():
            self._outputs.finish(sequence, "cancelled")
        self._scheduler.preempt(_sequences(in_flight) if in_flight else ())
        self._scheduler.start_waiting()

    def prepare(self, in_flight: Step | None) -> PreparedStep | None:
        """Choose the next job and prepare its graph and inputs, except for unknown tokens.

        None too if drafts are in flight: which tokens come next depends on how many are right.
        """
        if in_flight and in_flight.job.has_drafts:
            return None
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

    def finish(self, step: Step) -> StepTokens | None:
        """Wait for a step and sample the next token of each sequence that gets one.

        Returns:
            The tokens; None if the step failed, which has ended its requests.
        """
        wait_ns, job = time.perf_counter_ns(), step.job
        self.watchdog.wait(job.kind, job.size)
        try:
            computed = step.result.result()
        except DeviceLostError:
            raise  # the cache is lost, so the loop ends, and with it a model's process
        except TampuError as error:
            job.fail(error)
            return None
        self.watchdog.computed(job.kind, job.size, computed.compute_ns / 1e9)
        self.stats.computed(job, computed, wait_ns)
        start_ns = time.perf_counter_ns()
        sampled = job.finish(computed, step.prepared)
        self.stats.span("sample", start_ns, len(sampled))
        job.measured((time.perf_counter_ns() - max(step.launched_ns, computed.began_ns)) / 1e9)
        return sampled

    def with_drafts(
        self, prepared: PreparedStep | None, in_flight: Step | None
    ) -> PreparedStep | None:
        """Plan the next step again if drafts of its answers' tokens can be had now.

        Args:
            prepared: the step, as planned before the one in flight was done; None: it was not.
            in_flight: the step that is done.
        """
        if prepared is None:
            return self.prepare(None) if in_flight and in_flight.job.has_drafts else None
        return self.prepare(None) if prepared.job.withdraw() else prepared

    def follows(self, step: PreparedStep | None, in_flight: Step | None) -> bool:
        """Return whether a prepared step can be launched before the one in flight is done."""
        if step is None or in_flight is None or not self.graphs.keeps_tokens:
            return False
        return step.job.follows(in_flight.job)

    def launch(self, step: PreparedStep | None, before: Step | None = None) -> Step | None:
        """Start computing a prepared step, now that its tokens are known.

        Args:
            step: it.
            before: a step in flight that it follows.
        """
        if step is None or not step.job.fill(before.job if before else None):
            return None
        launched_ns = time.perf_counter_ns()
        try:
            result = self.graphs.launch(step.prepared)
        except TampuError as error:
            step.job.fail(error)
            return None
        step.job.launched()
        self._warm_up.rest()
        return Step(step.job, step.prepared, result, launched_ns)

    def deliver(self, step: Step, sampled: StepTokens) -> None:
        """Send the text of the tokens to the callers, and end completed sequences."""
        start_ns = time.perf_counter_ns()
        step.job.deliver(sampled)
        self.stats.span("deliver", start_ns, len(sampled))

    def answer_observers(self) -> None:
        """Give watchers what happened; the cache does not change meanwhile."""
        while not self._observers.empty():
            found = self._observers.get()
            try:
                found.set_result(self.stats.observed(self._scheduler, self.graphs.counts))
            except Exception as error:  # noqa: BLE001 - a watcher must not end the loop
                found.set_exception(error)

    # -- inside ----------------------------------------------------------------------------------

    def _wait(self) -> Sequence | KVLoad | Call | None:
        """Wait for what arrives; until then GPUs compute what loading has left."""
        self.watchdog.idle()
        while not self._stopped.is_set() and (batch := self._warm_up.next()):
            try:
                return self._inbox.get(timeout=self._warm_up.seconds)
            except queue.Empty:
                self.watchdog.wait("warm-up", batch.tokens)
                self._warm_up.compute()
                self.watchdog.idle()
        return self._inbox.get()

    def _next(self, in_flight: Step | None) -> Job | None:
        """Choose the next job; batches and images alternate."""
        was_image = in_flight is not None and isinstance(in_flight.job, ImageJob)
        if not was_image and (image := self._scheduler.needed_image()):
            return ImageJob(image, self._scheduler.images, self._outputs)
        plan = self._scheduler.plan()
        return ForwardJob(plan, self._scheduler, self._outputs) if plan else None

    def _drop(self, step: Step) -> None:
        """Wait for a step whose requests have all failed: its own failure must end no others.

        Raises:
            DeviceLostError: if that is why it failed.
        """
        error = step.result.exception()
        if isinstance(error, DeviceLostError):
            raise error

    def _main(self) -> None:
        """Run the loop, then fail all sequences that are left."""
        try:
            self.run()
        except ProgramEndedError as error:  # no thread that waits will run again
            self._cause = error
            self._stopped.set()
            return
        except Exception as error:
            log.exception("the run loop has failed")
            self._cause = error
        with self._submit_lock:
            self._stopped.set()
        left = [*self._scheduler.running, *self._scheduler.waiting]
        left += self._scheduler.connector.pending()
        while not self._inbox.empty():
            arrived = self._inbox.get()
            if isinstance(arrived, KVLoad):
                left.append(arrived.sequence)
            elif isinstance(arrived, Call):
                arrived.result.set_exception(self._ended())
            elif arrived is not None:
                left.append(arrived)
        while not self._observers.empty():
            self._observers.get().set_exception(self._ended())
        for sequence in dict.fromkeys(left):  # one that was loaded may be pending too
            self._outputs.abandon(sequence, self._ended())

    def _check_process(self) -> None:
        """Refuse to wait for a thread that a fork has not copied."""
        if os.getpid() != self._process:
            raise RunnerDiedError(
                "the model was loaded before this process was forked: load it in each process, or "
                "start processes with multiprocessing's 'spawn'"
            )

    def _ended(self) -> RunnerDiedError:
        return RunnerDiedError(f"the runner has ended: {self._cause or 'it was closed'}")


def _run(call: Call) -> None:
    try:
        call.result.set_result(call.work())
    except BaseException as error:  # noqa: BLE001 - it is raised where it is waited for
        call.result.set_exception(error)


def _sequences(step: Step) -> list[Sequence]:
    """Return the sequences that a step computes tokens of."""
    return (
        [part.sequence for part in step.job.plan.parts] if isinstance(step.job, ForwardJob) else []
    )
