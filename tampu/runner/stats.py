"""Statistics of the run loop, and its events in a trace."""

from __future__ import annotations

import time

from tampu.ml.backend import Computed
from tampu.runner.graphs import PreparedGraph
from tampu.runner.jobs import Job
from tampu.runner.trace import DEVICE, Trace


class LoopStats:
    """Counts the steps of a run loop and their time.

    Attributes:
        steps: batches and images computed.
        tokens: computed in them.
        compute_ns: time of them in ggml.
        total_ns: time of the loop's iterations that waited for a step.
        trace: receives an event for each step, if attached.
    """

    def __init__(self) -> None:
        self.steps = self.tokens = self.compute_ns = self.total_ns = 0
        self.trace: Trace | None = None

    def prepared(self, job: Job, prepared: PreparedGraph, start_ns: int, planned_ns: int) -> None:
        """Record the planning of a job, and whether its graph was built or reused."""
        if trace := self.trace:
            graph = "built" if prepared.is_new else "reused"
            trace.span("plan", start_ns, planned_ns, job.described())
            trace.span("prepare", planned_ns, time.perf_counter_ns(), {"graph": graph})

    def computed(self, job: Job, computed: Computed, wait_ns: int) -> None:
        """Record the end of a step, awaited since `wait_ns`."""
        self.steps += 1
        self.tokens += job.tokens
        self.compute_ns += computed.compute_ns
        if trace := self.trace:
            end_ns = computed.began_ns + computed.compute_ns
            trace.span(job.kind, computed.began_ns, end_ns, job.described(), lane=DEVICE)
            trace.span("wait", wait_ns, time.perf_counter_ns(), {})

    def span(self, name: str, start_ns: int, tokens: int) -> None:
        """Record work of the loop on some tokens that ends now."""
        if trace := self.trace:
            trace.span(name, start_ns, time.perf_counter_ns(), {"tokens": tokens})

    def iterated(self, start_ns: int) -> None:
        """Record the end of an iteration that waited for a step."""
        self.total_ns += time.perf_counter_ns() - start_ns
