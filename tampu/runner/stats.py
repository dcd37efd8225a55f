"""Where the run loop's time goes: counters always, a trace and a log of requests on demand."""

from __future__ import annotations

import time
from dataclasses import dataclass

from tampu.ml.backend import Computed
from tampu.runner.graphs import PreparedGraph
from tampu.runner.jobs import Job
from tampu.runner.trace import DEVICE, Trace


@dataclass(slots=True)
class LoopTimes:
    """Where the loop's time went since the start, in nanoseconds.

    Attributes:
        steps: batches and images computed.
        compute_ns: in ggml.
        total_ns: in turns of the loop that waited for a step.
        tokens: computed.
    """

    steps: int = 0
    compute_ns: int = 0
    total_ns: int = 0
    tokens: int = 0


class Records:
    """Takes note of each step of the loop.

    Attributes:
        times: the sums.
        trace: receives an event for each step; None: nobody looks.
    """

    def __init__(self) -> None:
        self.times = LoopTimes()
        self.trace: Trace | None = None

    def prepared(self, job: Job, prepared: PreparedGraph, began: int, planned: int) -> None:
        """Note what was decided, and whether its graph had to be built."""
        if trace := self.trace:
            graph = "built" if prepared.is_new else "used again"
            trace.span("plan", began, planned, job.described())
            trace.span("prepare", planned, time.perf_counter_ns(), {"graph": graph})

    def computed(self, job: Job, computed: Computed, waited: int) -> None:
        """Note that a step is done."""
        now = time.perf_counter_ns()
        self.times.steps += 1
        self.times.compute_ns += computed.compute_ns
        self.times.tokens += job.tokens
        if trace := self.trace:
            ended = computed.began_ns + computed.compute_ns
            trace.span(job.kind, computed.began_ns, ended, job.described(), lane=DEVICE)
            trace.span("wait", waited, now, {})

    def sampled(self, began: int, tokens: int) -> None:
        """Note that tokens were drawn."""
        if trace := self.trace:
            trace.span("sample", began, time.perf_counter_ns(), {"tokens": tokens})

    def delivered(self, began: int, tokens: int) -> None:
        """Note that text was handed on."""
        if trace := self.trace:
            trace.span("deliver", began, time.perf_counter_ns(), {"tokens": tokens})

    def turn(self, began: int) -> None:
        """Note that a turn of the loop is over that waited for a step."""
        self.times.total_ns += time.perf_counter_ns() - began
