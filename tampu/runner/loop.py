"""The run loop's thread: admits what other threads submit, and computes one step after the other.

Callers pass it sequences through `submit`; what a step does is in `engine_core.py`.
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

from tampu.errors import RunnerDiedError
from tampu.runner.engine_core import EngineCore
from tampu.runner.graph_cache import GraphCache
from tampu.runner.idle_warm_up import IdleWarmUp
from tampu.runner.jobs import ForwardJob, Step
from tampu.runner.kv_connector import KVLoad
from tampu.runner.output_processor import OutputProcessor
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
        self._core = EngineCore(
            scheduler, graphs, self._outputs, self._warm_up, self.stats, self.watchdog
        )
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
        """Run until closed. The step in flight is the loop's only state."""
        in_flight: Step | None = None
        while not self._stopped.is_set():
            start_ns = time.perf_counter_ns()
            self.admit(in_flight, block=in_flight is None and self._scheduler.is_idle)
            launched = self._core.step(in_flight)
            if in_flight:
                self.stats.iterated(start_ns)
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
