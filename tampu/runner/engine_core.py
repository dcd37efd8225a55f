"""A step on the device: what comes next is planned while it computes, then its tokens are sampled.

It works with sequences, batches and the cache, whatever the architecture and the API.
"""

from __future__ import annotations

import time

from tampu.errors import DeviceLostError, TampuError
from tampu.runner.graph_cache import GraphCache
from tampu.runner.idle_warm_up import IdleWarmUp
from tampu.runner.jobs import EncoderJob, ForwardJob, Job, PreparedStep, Step
from tampu.runner.output_processor import OutputProcessor, StepTokens
from tampu.runner.scheduler import Scheduler
from tampu.runner.stats import LoopStats
from tampu.runner.watchdog import Watchdog


class EngineCore:
    """Plans, launches and completes the steps of a model, on the run loop's thread."""

    def __init__(
        self,
        scheduler: Scheduler,
        graphs: GraphCache,
        outputs: OutputProcessor,
        warm_up: IdleWarmUp,
        stats: LoopStats,
        watchdog: Watchdog,
    ) -> None:
        self._scheduler = scheduler
        self._graphs = graphs
        self._outputs = outputs
        self._warm_up = warm_up
        self._stats = stats
        self._watchdog = watchdog

    def step(self, in_flight: Step | None) -> Step | None:
        """Launch the next step, and complete the one in flight; return the launched one.

        A step whose unknown tokens the device chooses is launched before the one in flight is done.
        """
        self._watchdog.busy("planning")
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
            seconds = (launched.launched_ns - in_flight.launched_ns) / 1e9
            in_flight.job.replaced(seconds, is_new=in_flight.is_new or launched.is_new)
        if in_flight:
            self.deliver(in_flight, sampled or {})  # while `launched` computes
        elif launched is None and self._scheduler.is_idle:
            self._scheduler.check()
            self._graphs.check_reservation()
        if launched is None:
            self._scheduler.connector.step_done()
        return launched

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
        if step := self._prepared(job):
            self._stats.prepared(step.job, step.prepared, start_ns, planned_ns)
        return step

    def _prepared(self, job: Job) -> PreparedStep | None:
        """Prepare a job's graph; None if that fails, which ends its requests."""
        try:
            return PreparedStep(job, job.prepare(self._graphs))
        except TampuError as error:
            if rest := job.without_capture(error):
                return self._prepared(rest)
            job.fail(error)
            return None

    def finish(self, step: Step) -> StepTokens | None:
        """Wait for a step and sample the next token of each sequence that gets one.

        Returns:
            The tokens; None if the step failed, which has ended its requests.
        """
        wait_ns, job = time.perf_counter_ns(), step.job
        self._watchdog.wait(job.kind, job.size)
        try:
            computed = step.result.result()
        except DeviceLostError:
            raise  # the cache is lost, so the loop ends, and with it a model's process
        except TampuError as error:
            job.fail(error)
            return None
        self._watchdog.computed(job.kind, job.size, computed.compute_ns / 1e9)
        self._stats.computed(job, computed, wait_ns)
        start_ns = time.perf_counter_ns()
        sampled = job.finish(computed, step.prepared)
        self._stats.span("sample", start_ns, _count(sampled))
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
        if step is None or in_flight is None or not self._graphs.keeps_tokens:
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
            result = self._graphs.launch(step.prepared)
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
        self._stats.span("deliver", start_ns, _count(sampled))

    def _next(self, in_flight: Step | None) -> Job | None:
        """Choose the next job; batches and encoders alternate."""
        was_encoder = in_flight is not None and isinstance(in_flight.job, EncoderJob)
        if not was_encoder and (placed := self._scheduler.needed_media()):
            return EncoderJob(placed, self._scheduler.encoder_cache, self._outputs)
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


def _count(sampled: StepTokens) -> int:
    """Return the number of tokens of all sequences: with drafts several of one."""
    return sum(map(len, sampled.values()))
