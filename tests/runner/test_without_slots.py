"""Prompts after which nothing is generated need no slot where a batch has room for all of them."""

from __future__ import annotations

import random
from typing import Any, cast

import pytest
from support.fake_graphs import FakeEngine, hashed

from tampu.engine import scoring
from tampu.engine.completion import RequestHandle
from tampu.engine.scoring import Handle
from tampu.runner.sequence import RowCollector, Sequence, Sink

SHARED = [2 + number % 20 for number in range(20)]


def prompts(count: int) -> list[list[int]]:
    return [[*SHARED, 2 + number, 3] for number in range(count)]


def last_row(rows: list[Any]) -> RowCollector:
    return RowCollector(rows.append, last=1)


class Idle(FakeEngine):
    """Its loop is closed: a test plans its batches."""

    def __init__(self, **options: Any) -> None:
        super().__init__(hashed, **options)
        self.runner.close()
        self.runner.submit = cast("Any", lambda _sequence: None)

    def wait(self, prompt: list[int], *, last: bool = True, **options: Any) -> Sequence:
        """Add a request that waits; with `last`, for its last row."""
        if last:
            options |= {"collector": last_row([]), "max_tokens": 0}
        asked = self.ask(prompt, **options)
        self.scheduler.waiting.append(asked.sequence)
        return asked.sequence

    def plan(self) -> list[Sequence]:
        """Return the sequences of the next batch, all of whose results are there at once."""
        self.scheduler.start_waiting()
        plan = self.scheduler.plan()
        assert plan is not None
        for part in plan.parts:
            if part.is_last and part.sequence.options.max_tokens == 0:
                self.scheduler.release(part.sequence)
            elif part.is_last:
                part.sequence.append(3)
        return [part.sequence for part in plan.parts]


def test_as_many_as_fit_are_computed_together() -> None:
    engine = Idle(batch=32, slots=1, context=128)
    engine.scheduler._max_outputs = 32
    asked = [engine.wait(prompt) for prompt in prompts(12)]
    assert engine.plan() == asked[:6]  # 20 shared tokens and 6 times 2, which no other has
    assert engine.plan() == asked[6:]
    assert engine.scheduler.is_idle
    engine.scheduler.check()
    assert [each.cached for each in asked] == [0, *[20] * 11]
    assert sorted(each.number for each in asked) == [*range(1, 13)]
    assert all(each.times.started for each in asked)


def test_one_that_does_not_fit_waits_for_a_slot() -> None:
    engine = Idle(batch=8, slots=1, context=64)
    running = engine.wait([4, 5], last=False)
    engine.wait([*range(2, 14)])
    assert engine.plan() == [running]
    assert engine.plan() == [running]
    assert len(engine.scheduler.waiting) == 1


def test_there_are_no_more_outputs_than_a_batch_may_have() -> None:
    engine = Idle(batch=64, slots=1, context=128)
    for prompt in prompts(12):
        engine.wait(prompt)
    assert [len(engine.plan()) for _ in range(3)] == [4, 4, 4]


def test_cells_that_the_slots_need_next_are_left() -> None:
    engine = Idle(batch=32, slots=1, context=30)
    running = engine.wait([4, 5, 6, 7], last=False)
    engine.plan()
    long = engine.wait([*range(2, 26)])  # 24 of the 26 cells that are left, and one for the slot
    longer = engine.wait([*range(3, 29)])
    assert engine.plan() == [running, long]
    assert engine.plan() == [running]
    assert engine.scheduler.waiting == [longer]


def test_rows_that_nobody_owns_are_not_counted_as_room_for_others() -> None:
    engine = Idle(batch=32, slots=1, context=30)
    first = engine.wait([*SHARED, 3])
    assert engine.plan() == [first]  # its rows are cached
    running = engine.wait([4, 5, 6, 7], last=False)
    engine.plan()
    engine.wait([*SHARED, *range(2, 10)])  # 8 cells more, where only 6 are left
    assert engine.plan() == [running]


def test_interactive_requests_keep_their_order_and_batch_requests_their_share() -> None:
    engine = Idle(batch=32, slots=1, context=64)
    live = engine.wait([4, 5], last=False)
    engine.plan()
    row = engine.wait([6, 7], priority="batch")
    asked = engine.wait([8, 9])
    assert engine.plan() == [live, asked]
    assert engine.scheduler.waiting == [row]


def test_one_without_a_slot_is_not_what_the_slot_answered_last() -> None:
    engine = Idle(batch=32, slots=1, context=64)
    live = engine.wait([4, 5], last=False)
    engine.plan()
    other = engine.wait([6, 7], last=False)
    other.options = type(other.options)(max_tokens=0)
    assert engine.plan() == [live, other]
    assert engine.scheduler.recent == {}


@pytest.mark.parametrize("seed", range(20))
def test_scores_are_those_of_one_prompt_at_a_time(seed: int) -> None:
    source = random.Random(seed)
    shared = [source.randrange(2, 20) for _ in range(source.randrange(1, 20))]
    asked = [
        (
            [*shared, *(source.randrange(2, 20) for _ in range(source.randrange(4)))],
            [
                tuple(source.randrange(2, 20) for _ in range(source.randrange(1, 4)))
                for _ in range(source.randrange(1, 5))
            ],
        )
        for _ in range(source.randrange(1, 12))
    ]

    def computed(at_once: int, slots: int) -> list[list[float]]:
        with FakeEngine(hashed, slots=slots, batch=16, context=32) as engine:

            def collect(prompt: Any, collector: RowCollector, sink: Sink) -> Handle:
                request = engine.ask(prompt, collector, sink, max_tokens=0)
                return RequestHandle(engine.runner, request.sequence)

            found = scoring.scores(asked, collect, at_once=at_once)
            engine.wait_until_idle()
            return [[one.logprob for one in each.continuations] for each in found]

    assert computed(64, source.randrange(1, 4)) == computed(1, 1)
