"""Offline requests beside live streams: these slow down by a share at most, and all rows go on."""

import random
from collections.abc import Callable
from typing import Any, cast

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st
from support.fake_graphs import FakeEngine

from tampu.runner.batch import Plan
from tampu.runner.offline_pace import ALONE_EVERY, SHARE
from tampu.runner.sequence import RowCollector, Sequence

LEARNING = 8
"""Steps after which the time of a token is known."""


class Machine:
    """Steps of a scheduler on a machine with given times; every request has another prompt.

    Attributes:
        scheduler: the scheduler.
        plans: what it planned.
        seconds: how long these took.
    """

    def __init__(self, alone_s: float, token_s: float, batch: int = 512) -> None:
        engine = FakeEngine(lambda _history: 3, slots=12, context=600, batch=batch)
        engine.runner.close()
        cast("Any", engine.runner).submit = lambda _sequence: None
        self.scheduler = engine.scheduler
        self.plans: list[Plan] = []
        self.seconds: list[float] = []
        self._engine, self._first = engine, iter(range(100, 1000))
        self._alone_s, self._token_s = alone_s, token_s

    def ask(
        self, length: int = 1, *, priority: str = "interactive", rows: bool = False
    ) -> Sequence:
        """Add a request; with `rows`, for hidden states."""
        options: dict[str, Any] = {"priority": priority, "max_tokens": 0 if rows else None}
        collector = RowCollector(lambda _rows: None, wants_logits=False) if rows else None
        asked = self._engine.ask([next(self._first), *[3] * (length - 1)], collector, **options)
        self.scheduler.waiting.append(asked.sequence)
        self.scheduler.start_waiting()
        return asked.sequence

    def run(self, steps: int, slower: Callable[[], float] = lambda: 1.0) -> None:
        """Compute some steps; a sequence is never complete."""
        for _ in range(steps):
            plan = self.scheduler.plan()
            assert plan is not None
            rows = sum(part.count for part in plan.parts)
            live = sum(not s.is_offline for s in self.scheduler.running)
            seconds = (self._alone_s + self._token_s * (rows - live)) * slower()
            self.scheduler.pace.computed(plan.parts, seconds)
            for part in plan.parts:
                if part.is_last and part.sequence.wants_logits:
                    part.sequence.append(3)
            self.plans.append(plan)
            self.seconds.append(seconds)

    def batch_tokens(self, since: int = 0) -> list[int]:
        """Return how many tokens of offline requests each step has."""
        return [
            sum(part.count for part in plan.parts if part.sequence.is_offline)
            for plan in self.plans[since:]
        ]


@settings(max_examples=40)
@given(
    live=st.integers(1, 3),
    rows=st.integers(1, 8),
    alone_s=st.floats(0.001, 1.0),
    token=st.integers(0, 300).map(lambda percent: percent / 100),
)
def test_live_streams_slow_down_by_the_share_or_by_a_token_now_and_then(
    live: int, rows: int, alone_s: float, token: float
) -> None:
    machine = Machine(alone_s, token * alone_s)
    for _ in range(live):
        machine.ask()
    machine.run(3)
    for _ in range(rows):
        machine.ask(priority="batch")
    machine.run(LEARNING + 4 * ALONE_EVERY)
    seconds = machine.seconds[3 + LEARNING :]
    assert max(seconds) <= alone_s * (1 + max(SHARE, token)) * 1.0001
    assert sum(seconds) / len(seconds) <= alone_s * (1 + SHARE) * 1.02
    assert all(live <= len(plan.parts) for plan in machine.plans[3:])


@settings(max_examples=40)
@given(rows=st.integers(1, 8), token=st.integers(0, 300).map(lambda percent: percent / 100))
@example(rows=2, token=0.1)  # exactly two tokens a step
def test_all_rows_of_a_batch_progress_alike(rows: int, token: float) -> None:
    machine = Machine(0.05, 0.05 * token)
    machine.ask()
    asked = [machine.ask(priority="batch") for _ in range(rows)]
    machine.run(LEARNING + 100)
    generated = [sequence.generated for sequence in asked]
    assert max(generated) - min(generated) <= 1
    per_step = SHARE / token if token else rows
    per_step = min(int(per_step * 1.0001) or per_step, rows)
    assert sum(generated) >= 100 * per_step * 0.8 - rows


def test_the_share_is_used_if_tokens_are_cheap() -> None:
    machine = Machine(0.05, 0.002)
    machine.ask()
    for _ in range(8):
        machine.ask(priority="batch")
    machine.run(LEARNING + 3 * ALONE_EVERY)
    assert set(machine.batch_tokens(LEARNING)) == {0, 5}  # a fifth of 50 ms
    assert machine.batch_tokens(LEARNING).count(0) <= 3


def test_all_rows_decode_in_each_step_if_they_cost_nothing() -> None:
    machine = Machine(0.05, 0.0)
    machine.ask()
    for _ in range(8):
        machine.ask(priority="batch")
    machine.run(LEARNING + ALONE_EVERY - 2)
    assert set(machine.batch_tokens(LEARNING)) <= {0, 8}


@pytest.mark.parametrize("other", ["interactive", "batch"])
def test_requests_of_one_priority_are_all_in_each_step(other: str) -> None:
    machine = Machine(0.05, 0.05)
    for _ in range(6):
        machine.ask(priority=other)
    machine.run(60)
    assert {len(plan.parts) for plan in machine.plans} == {6}


def test_a_batch_goes_on_at_full_speed_when_the_live_stream_ends() -> None:
    machine = Machine(0.05, 0.05)
    live = machine.ask()
    for _ in range(6):
        machine.ask(priority="batch")
    machine.run(40)
    machine.scheduler.release(live)
    machine.run(10)
    assert machine.batch_tokens(40) == [6] * 10


def test_a_prompt_of_a_batch_is_computed_in_small_parts_beside_a_live_stream() -> None:
    machine = Machine(0.05, 0.002)
    machine.ask()
    machine.run(3)
    prompt = machine.ask(300, priority="batch")
    machine.run(LEARNING + 100)
    assert max(machine.batch_tokens(LEARNING)) == 5
    assert prompt.generated > 0


def test_a_prompt_of_a_batch_waits_for_its_rows_that_decode() -> None:
    machine = Machine(0.05, 0.01)
    machine.ask()
    row = machine.ask(priority="batch")
    machine.run(LEARNING)
    prompt = machine.ask(100, priority="batch")
    machine.run(40)
    assert prompt.computed == 0
    machine.scheduler.release(row)
    machine.run(40)
    assert prompt.computed >= 30


def test_a_live_prompt_is_not_limited() -> None:
    machine = Machine(0.05, 0.01)
    machine.ask()
    machine.ask(priority="batch")
    machine.run(LEARNING)
    prompt = machine.ask(127)
    machine.run(1)
    assert prompt.computed >= 126


def test_batches_of_hidden_states_take_their_share_too() -> None:
    machine = Machine(0.05, 0.002)
    live = machine.ask()
    machine.run(3)
    asked = [machine.ask(300, priority="batch", rows=True) for _ in range(4)]
    machine.run(400)
    own = [s for s, tokens in zip(machine.seconds, machine.batch_tokens(), strict=True) if tokens]
    assert live.generated + len(own) >= 400
    late_s = sum(own[2:])
    assert sum(sequence.computed for sequence in asked) > 128 * 3
    assert late_s <= SHARE * 0.05 * 403 * 1.05
    assert max(machine.batch_tokens(LEARNING)) <= 128


def test_a_step_that_takes_long_once_changes_nothing() -> None:
    machine = Machine(0.05, 0.002)
    machine.ask()
    for _ in range(8):
        machine.ask(priority="batch")
    machine.run(40)
    machine.run(1, slower=lambda: 100.0)
    machine.run(2 * ALONE_EVERY)
    assert set(machine.batch_tokens(41)) == {0, 5}


@pytest.mark.parametrize("seed", range(5))
def test_times_that_vary_change_little(seed: int) -> None:
    chance = random.Random(seed)
    machine = Machine(0.05, 0.005)
    machine.ask()
    for _ in range(8):
        machine.ask(priority="batch")
    machine.run(300, slower=lambda: chance.uniform(0.9, 1.1))
    seconds = machine.seconds[LEARNING:]
    assert sum(seconds) / len(seconds) <= 0.05 * 1.4
    assert sum(machine.batch_tokens(LEARNING)) >= 200


def test_rows_progress_beside_live_streams_whose_prompts_never_end() -> None:
    machine = Machine(0.05, 0.01)
    machine.ask()
    row = machine.ask(priority="batch")
    for _ in range(9):
        prompts = [machine.ask(500)]
        machine.run(4)
        for prompt in prompts:
            machine.scheduler.release(prompt)
    assert row.generated > 20
