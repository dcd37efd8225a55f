"""Who downloads what: every byte once, by somebody."""

from __future__ import annotations

from itertools import pairwise
from typing import Any

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from tampu.store.registry.chunks import (
    MIN_SPLIT_BYTES,
    MIN_SPLIT_S,
    STALLED_S,
    ChunkScheduler,
    Ranges,
)

SPANS = st.lists(st.tuples(st.integers(0, 30), st.integers(0, 30)))


@given(SPANS, st.integers(0, 30), st.integers(0, 30))
def test_ranges_behave_like_a_set_of_positions(
    spans: list[tuple[int, int]], start: int, end: int
) -> None:
    ranges = Ranges(spans)
    positions = {p for first, last in spans for p in range(first, last)}
    assert ranges.total == len(positions)
    assert {p for first, last in ranges.as_list() for p in range(first, last)} == positions
    found = ranges.as_list()
    assert all(one[1] < other[0] for one, other in pairwise(found))
    missing = [p for p in range(40) if p not in positions]
    assert ranges.frontier == missing[0]
    wanted = [p for p in range(start, end) if p not in positions]
    gap = ranges.gap(start, end)
    assert (gap is None) == (not wanted)
    if gap:
        assert gap[0] == wanted[0]
        assert set(range(*gap)) <= set(wanted)
        assert gap[1] == end or gap[1] in positions


class Workers(RuleBasedStateMachine):
    """Workers that take, write and give back chunks of a blob, against a plain array."""

    size = 5 * MIN_SPLIT_BYTES + 7

    def __init__(self) -> None:
        super().__init__()
        self.now = 0.0
        self.scheduler = ChunkScheduler(
            self.size, [(3, 1000)], MIN_SPLIT_BYTES * 2, lambda: self.now
        )
        self.written = np.zeros(self.size, np.bool_)
        self.written[3:1000] = True
        self.active: list[Any] = []
        self.claimed: list[Any] = []

    @rule()
    def take(self) -> None:
        chunk = self.scheduler.take()
        if chunk is not None:
            assert chunk.start == chunk.position < chunk.end
            self.active.append(chunk)

    @precondition(lambda self: self.active)
    @rule(which=st.integers(0, 9), count=st.integers(1, MIN_SPLIT_BYTES))
    def claim(self, which: Any, count: Any) -> None:
        chunk = self.active[which % len(self.active)]
        position, wanted = self.scheduler.claim(chunk, count)
        if wanted:
            self.claimed.append((chunk, position, wanted))

    @precondition(lambda self: self.claimed)
    @rule()
    def fill(self) -> None:
        _, position, wanted = self.claimed.pop(0)
        assert not self.written[position : position + wanted].any(), "written twice"
        self.written[position : position + wanted] = True
        self.scheduler.filled(position, wanted)

    @precondition(lambda self: self.active)
    @rule(which=st.integers(0, 9))
    def release(self, which: Any) -> None:
        chunk = self.active[which % len(self.active)]
        if not any(owner is chunk for owner, _, _ in self.claimed):
            self.active.remove(chunk)
            self.scheduler.release(chunk)

    @rule(seconds=st.sampled_from([1.0, STALLED_S]))
    def wait(self, seconds: float) -> None:
        self.now += seconds

    @invariant()
    def counts_agree(self) -> None:
        assert self.scheduler.completed == np.count_nonzero(self.written)
        frontier = self.size if self.written.all() else int(self.written.argmin())
        assert self.scheduler.frontier == frontier

    def teardown(self) -> None:
        while self.claimed:
            self.fill()
        for chunk in self.active:
            self.scheduler.release(chunk)
        self.active.clear()
        while chunk := self.scheduler.take():
            position, wanted = self.scheduler.claim(chunk, self.size)
            self.claimed.append((chunk, position, wanted))
            self.fill()
            self.scheduler.release(chunk)
        assert self.scheduler.is_done
        assert self.written.all()


TestWorkers = Workers.TestCase
TestWorkers.settings = settings(max_examples=30, stateful_step_count=40, deadline=None)


def test_chunks_are_assigned_in_order() -> None:
    scheduler = ChunkScheduler(100, [(10, 20)], chunk_size=30)
    taken = [scheduler.take() for _ in range(4)]
    assert [(chunk.start, chunk.end) for chunk in taken] == [(0, 10), (20, 50), (50, 80), (80, 100)]
    assert scheduler.take() is None


def test_a_single_connection_gets_everything_and_keeps_the_start_when_others_join() -> None:
    scheduler = ChunkScheduler(100, chunk_size=30)
    alone = scheduler.take()
    assert (alone.start, alone.end) == (0, 100)
    scheduler.filled(*scheduler.claim(alone, 25))
    other = scheduler.take()
    assert (alone.end, other.start, other.end) == (55, 55, 85)
    assert scheduler.claim(alone, 75) == (25, 30)


def test_the_largest_chunk_is_split_at_the_end() -> None:
    now = [0.0]
    size = 8 * MIN_SPLIT_BYTES
    scheduler = ChunkScheduler(size, chunk_size=size, clock=lambda: now[0])
    slow = scheduler.take()
    now[0] = MIN_SPLIT_S
    fast = scheduler.take()
    assert (slow.end, fast.start, fast.end) == (size // 2, size // 2, size)
    assert scheduler.claim(slow, size) == (0, size // 2)


def test_a_chunk_that_is_almost_done_is_not_split() -> None:
    now = [0.0]
    size = 8 * MIN_SPLIT_BYTES
    scheduler = ChunkScheduler(size, chunk_size=size, clock=lambda: now[0])
    chunk = scheduler.take()
    scheduler.filled(*scheduler.claim(chunk, size // 2 + 1))
    assert scheduler.take() is None
    now[0] = MIN_SPLIT_S
    assert scheduler.take() is None


def test_a_stalled_chunk_is_taken_over_whole() -> None:
    now = [0.0]
    scheduler = ChunkScheduler(1000, chunk_size=1000, clock=lambda: now[0])
    stalled = scheduler.take()
    scheduler.filled(*scheduler.claim(stalled, 10))
    assert scheduler.take() is None
    now[0] = STALLED_S
    other = scheduler.take()
    assert (other.start, other.end) == (10, 1000)
    assert scheduler.claim(stalled, 500) == (10, 0)


def test_a_released_chunk_is_assigned_again() -> None:
    scheduler = ChunkScheduler(100, chunk_size=100)
    chunk = scheduler.take()
    scheduler.filled(*scheduler.claim(chunk, 40))
    scheduler.release(chunk)
    again = scheduler.take()
    assert (again.start, again.end) == (40, 100)
