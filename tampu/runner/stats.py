"""Statistics of the run loop, and traces in Chrome's trace format, which Perfetto opens.

Source: "Trace Event Format", the JSON array format with complete events. The loop and the device
are two lanes; the loop's events list the parts of each batch.
"""

from __future__ import annotations

import json
import threading
import time
from collections.abc import Mapping
from pathlib import Path

from tampu.errors import RequestError
from tampu.ml.backend import Computed
from tampu.runner.events import BatchCounts
from tampu.runner.graph_cache import GraphCounts, PreparedGraph
from tampu.runner.jobs import Job
from tampu.runner.recorder import RunnerSnapshot, StepRecorder
from tampu.runner.scheduler import Scheduler

LOOP, DEVICE = 1, 2
_LANES = {LOOP: "run loop", DEVICE: "device"}


class Trace:
    """Writes events to a file as they happen; the file is readable even after a crash."""

    def __init__(self, path: Path) -> None:
        """Open a file.

        Raises:
            RequestError: if it cannot be written.
        """
        try:
            self._file = path.open("w", encoding="utf-8")
        except OSError as error:
            raise RequestError(f"the trace cannot be written: {error}") from None
        self._lock = threading.Lock()
        self._start_ns = time.perf_counter_ns()
        self._file.write("[\n")
        for lane, name in _LANES.items():
            self._write({"ph": "M", "name": "thread_name", "tid": lane, "args": {"name": name}})

    def span(
        self,
        name: str,
        start_ns: int,
        end_ns: int,
        details: Mapping[str, object],
        *,
        lane: int = LOOP,
    ) -> None:
        """Record something that took from `start_ns` to `end_ns` of `time.perf_counter_ns`."""
        start, duration = (start_ns - self._start_ns) / 1000, (end_ns - start_ns) / 1000
        self._write(
            {
                "ph": "X",
                "name": name,
                "tid": lane,
                "ts": start,
                "dur": duration,
                "args": dict(details),
            }
        )

    def close(self) -> None:
        """Complete the file; later events are ignored, and a second call does nothing."""
        with self._lock:
            if not self._file.closed:
                self._file.write("{}]\n")
                self._file.close()

    def _write(self, event: Mapping[str, object]) -> None:
        line = json.dumps({"pid": 1, **event}, ensure_ascii=False)
        with self._lock:
            if not self._file.closed:
                self._file.write(line + ",\n")


class LoopStats:
    """Counts the steps of a run loop and their time.

    Attributes:
        steps: batches computed, and images and sounds encoded.
        tokens: computed in them.
        batches: computed.
        sequences: the sum of the requests in each batch.
        compute_ns: time of them in ggml.
        total_ns: time of the loop's iterations that waited for a step.
        trace: receives an event for each step, if attached.
        recorder: keeps what happens for watchers, if attached.
    """

    def __init__(self) -> None:
        self.steps = self.tokens = self.compute_ns = self.total_ns = 0
        self.batches = self.sequences = 0
        self.trace: Trace | None = None
        self.recorder: StepRecorder | None = None

    def prepared(self, job: Job, prepared: PreparedGraph, start_ns: int, planned_ns: int) -> None:
        """Record the planning of a job, and whether its graph was built or reused."""
        if trace := self.trace:
            graph = "built" if prepared.is_new else "reused"
            trace.span("plan", start_ns, planned_ns, job.described())
            trace.span("prepare", planned_ns, time.perf_counter_ns(), {"graph": graph})
        if recorder := self.recorder:
            recorder.prepared(job, start_ns, is_new=prepared.is_new)
            if recorder.is_forgotten:
                self.recorder = None

    def computed(self, job: Job, computed: Computed, wait_ns: int) -> None:
        """Record the end of a step, awaited since `wait_ns`."""
        self.steps += 1
        self.tokens += job.tokens
        self.batches += job.sequences > 0
        self.sequences += job.sequences
        self.compute_ns += computed.compute_ns
        if trace := self.trace:
            end_ns = computed.began_ns + computed.compute_ns
            trace.span(job.kind, computed.began_ns, end_ns, job.described(), lane=DEVICE)
            trace.span("wait", wait_ns, time.perf_counter_ns(), {})
        if recorder := self.recorder:
            recorder.computed(job, computed, wait_ns)

    def span(self, name: str, start_ns: int, tokens: int) -> None:
        """Record work of the loop on some tokens that ends now."""
        if trace := self.trace:
            trace.span(name, start_ns, time.perf_counter_ns(), {"tokens": tokens})
        if (recorder := self.recorder) and name == "sample":
            recorder.sampled(start_ns, tokens)

    @property
    def counts(self) -> BatchCounts:
        """The batches of the loop; any thread may read them."""
        return BatchCounts(self.batches, self.sequences)

    def iterated(self, start_ns: int) -> None:
        """Record the end of an iteration that waited for a step."""
        self.total_ns += time.perf_counter_ns() - start_ns

    def observed(self, scheduler: Scheduler, counts: GraphCounts) -> RunnerSnapshot:
        """Return what happened since the last call; the first call starts the recording."""
        recorder = self.recorder = self.recorder or StepRecorder()
        return recorder.snapshot(scheduler, counts, self.compute_ns, self.total_ns)
