"""What the run loop does, for watchers: its last steps, requests, and the cache, as numbers.

Nothing of it is a text or a token. The loop's thread records and takes snapshots; nothing is
recorded while there are no watchers, and the memory is bounded. Times are in milliseconds; moments
are counted from 1970.
"""

from __future__ import annotations

import time
from collections import deque

import msgspec

from tampu.kvcache import CacheSnapshot, take_snapshot
from tampu.ml.backend import Computed
from tampu.runner.graph_cache import GraphCounts
from tampu.runner.jobs import ForwardJob, Job
from tampu.runner.scheduler import Scheduler
from tampu.runner.sequence import Sequence

MAX_STEPS = 512
MAX_REQUESTS = 128
_FORGOTTEN_NS = 2_000_000_000  # after so long without a snapshot nothing is recorded
_CACHE_NS = 400_000_000  # at least, between two looks at the cache
_TIMES_COST = 500  # a look at the cache is followed by so many times as long without one
_MS = 1e-6  # of a nanosecond


class Part(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """The tokens of one request in a batch; in JSON a list of these six.

    Attributes:
        request: its number.
        start: position of the first token.
        tokens: how many; 0: the request shares the result of another one.
        is_prompt: whether they are of the prompt.
        drafts: how many of them are guesses.
        accepted: how many of the guesses are right.
    """

    request: int
    start: int
    tokens: int
    is_prompt: bool
    drafts: int = 0
    accepted: int = 0


class StepRecord(msgspec.Struct):
    """A batch, an image or a sound that was computed.

    Attributes:
        kind: batch, image or sound.
        began_ms: when the device began.
        compute_ms: how long it took.
        plan_ms: planning it and preparing its graph, while the step before was computed.
        wait_ms: how long the loop waited for it.
        sample_ms: sampling its tokens.
        is_new_graph: whether its graph was built, not reused.
        parts: of each request.
    """

    kind: str
    began_ms: float
    compute_ms: float
    plan_ms: float
    wait_ms: float
    is_new_graph: bool
    parts: list[Part]
    sample_ms: float = 0.0


class RequestRecord(msgspec.Struct, frozen=True):
    """A running request.

    Attributes:
        request: its number, in the order of getting a slot.
        prompt_tokens: of its prompt.
        cached_tokens: of these, taken from the cache or computed for others.
        computed_tokens: whose batches are done, of prompt and answer.
        generated_tokens: of its answer.
        waited_ms: for a slot.
    """

    request: int
    prompt_tokens: int
    cached_tokens: int
    computed_tokens: int
    generated_tokens: int
    waited_ms: float


class RunnerSnapshot(msgspec.Struct, frozen=True):
    """What happened since the snapshot before, and how it is now.

    Attributes:
        interval_ms: how long ago that was; 0: it is the first one, and nothing was recorded.
        steps: the last ones of the interval, the oldest first.
        lost_steps: how many before them are not listed.
        requests: those with a slot, at most `MAX_REQUESTS`.
        waiting: how many wait for a slot.
        longest_wait_ms: the longest that one of them has waited.
        waits_ms: how long each has waited, the next one first, at most `MAX_REQUESTS`.
        prompt_tokens: of prompts, computed in the interval.
        generated_tokens: of answers, in the interval.
        python_share: of the time of steps, that in which nothing was computed; None: no steps.
        graphs_built, graphs_reused: since the model was loaded.
        recording_ms: CPU time that recording took in the interval, with the snapshot before.
        cache: None: it was looked at a short time ago.
    """

    interval_ms: float
    steps: list[StepRecord]
    lost_steps: int
    requests: list[RequestRecord]
    waiting: int
    longest_wait_ms: float
    waits_ms: list[float]
    prompt_tokens: int
    generated_tokens: int
    python_share: float | None
    graphs_built: int
    graphs_reused: int
    recording_ms: float
    cache: CacheSnapshot | None


class StepRecorder:
    """Keeps what the loop has done since the last snapshot."""

    def __init__(self) -> None:
        """Start without steps."""
        self._offset_ns = time.time_ns() - time.perf_counter_ns()
        self._steps: deque[StepRecord] = deque(maxlen=MAX_STEPS)
        self._planned: deque[tuple[Job, int, bool]] = deque(maxlen=2)
        self._guessed: list[tuple[int, Sequence, int]] = []  # place, and what it accepted before
        self._asked_ns = self._next_cache_ns = 0
        self._compute_ns = self._total_ns = 0
        self._recorded = self._prompt_tokens = self._generated_tokens = self._cost_ns = 0

    @property
    def is_forgotten(self) -> bool:
        """Whether the last snapshot was taken too long ago to continue recording."""
        return time.perf_counter_ns() - self._asked_ns > _FORGOTTEN_NS

    def prepared(self, job: Job, start_ns: int, *, is_new: bool) -> None:
        """Record that a job was planned and prepared since `start_ns`."""
        self._planned.append((job, time.perf_counter_ns() - start_ns, is_new))

    def computed(self, job: Job, computed: Computed, wait_ns: int) -> None:
        """Record that a job was computed, awaited since `wait_ns`."""
        began_ns, now_ns = time.thread_time_ns(), time.perf_counter_ns()
        plan_ns, is_new = next(
            ((ns, is_new) for planned, ns, is_new in self._planned if planned is job), (0, False)
        )
        parts: list[Part] = []
        self._guessed.clear()
        if isinstance(job, ForwardJob):
            for part in job.plan.parts:
                sequence, drafts = part.sequence, len(part.drafts)
                if drafts:
                    self._guessed.append((len(parts), sequence, sequence.accepted))
                parts.append(Part(sequence.number, part.start, part.count, part.is_prefill, drafts))
                if part.is_prefill:
                    self._prompt_tokens += part.count
        began_ms = (computed.began_ns + self._offset_ns) * _MS
        compute_ms, wait_ms = computed.compute_ns * _MS, (now_ns - wait_ns) * _MS
        self._steps.append(
            StepRecord(job.kind, began_ms, compute_ms, plan_ns * _MS, wait_ms, is_new, parts)
        )
        self._recorded += 1
        self._cost_ns += time.thread_time_ns() - began_ns

    def sampled(self, start_ns: int, tokens: int) -> None:
        """Record that tokens of the last step were sampled since `start_ns`."""
        self._generated_tokens += tokens
        if self._steps:
            step = self._steps[-1]
            step.sample_ms = (time.perf_counter_ns() - start_ns) * _MS
            for place, sequence, before in self._guessed:
                accepted = sequence.accepted - before
                step.parts[place] = msgspec.structs.replace(step.parts[place], accepted=accepted)
        self._guessed.clear()

    def snapshot(
        self, scheduler: Scheduler, counts: GraphCounts, compute_ns: int, total_ns: int
    ) -> RunnerSnapshot:
        """Return what was recorded since the last snapshot, and forget it.

        Args:
            scheduler: has the requests and the cache.
            counts: of graphs.
            compute_ns: time of all steps in ggml.
            total_ns: time of the loop's iterations with steps.
        """
        now_ns, monotonic_ns = time.perf_counter_ns(), time.monotonic_ns()
        began_ns = time.thread_time_ns()
        is_first = self._asked_ns == 0
        interval_ns = 0 if is_first else now_ns - self._asked_ns
        computed_ns, took_ns = compute_ns - self._compute_ns, total_ns - self._total_ns
        has_steps = not is_first and took_ns > 0
        times = [each.times for each in scheduler.waiting]
        waits = [(monotonic_ns - (each.preempted or each.submitted)) * _MS for each in times]
        found = RunnerSnapshot(
            interval_ns * _MS,
            [*self._steps],
            self._recorded - len(self._steps),
            [_record(each) for each in scheduler.running[:MAX_REQUESTS]],
            len(waits),
            max(waits, default=0),
            waits[:MAX_REQUESTS],
            self._prompt_tokens,
            self._generated_tokens,
            min(max(1 - computed_ns / took_ns, 0.0), 1.0) if has_steps else None,
            counts.built,
            counts.reused,
            self._cost_ns * _MS,
            self._cache(scheduler, now_ns),
        )
        self._steps.clear()
        self._recorded = self._prompt_tokens = self._generated_tokens = 0
        self._asked_ns, self._compute_ns, self._total_ns = now_ns, compute_ns, total_ns
        self._cost_ns = time.thread_time_ns() - began_ns
        return found

    def _cache(self, scheduler: Scheduler, now_ns: int) -> CacheSnapshot | None:
        """Look at the cache, unless that would take too much of the time."""
        if now_ns < self._next_cache_ns:
            return None
        began_ns = time.thread_time_ns()
        tables = {each.number: each.cell_table for each in scheduler.running}
        found = take_snapshot(scheduler.kv_manager, tables)
        cost_ns = time.thread_time_ns() - began_ns
        self._next_cache_ns = now_ns + max(_CACHE_NS, _TIMES_COST * cost_ns)
        return found


def _record(sequence: Sequence) -> RequestRecord:
    times = sequence.times
    return RequestRecord(
        sequence.number,
        sequence.prompt_length,
        sequence.cached,
        sequence.read,
        sequence.generated,
        (times.started - times.submitted) * _MS,
    )
