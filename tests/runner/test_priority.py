"""Requests of priority `batch` give way to interactive ones, and lose nothing by it."""

from __future__ import annotations

import random
from typing import Any

import pytest
from support.fake_graphs import FakeEngine, FakeRequest, alone, hashed

from tampu.runner.events import Done


class Arrival:
    """Submits an interactive request while a given step of batch requests is computed."""

    def __init__(self, step: int, prompt: list[int], count: int) -> None:
        self.engine: FakeEngine | None = None
        self.asked: FakeRequest | None = None
        self.seen = 0  # steps when it arrived
        self._step, self._prompt, self._count = step, prompt, count

    def __call__(self, history: list[int]) -> int:
        engine = self.engine
        if engine and self.asked is None and len(engine.graphs.steps) >= self._step:
            self.seen = len(engine.graphs.steps)
            self.asked = engine.ask(self._prompt, max_tokens=self._count)
        return hashed(history)


@pytest.mark.parametrize("slots", [1, 3])
def test_an_interactive_request_waits_at_most_one_step_for_a_slot(slots: int) -> None:
    arrival = Arrival(5, [30, 31, 32], 4)
    with FakeEngine(arrival, slots=slots) as engine:
        arrival.engine = engine
        prompts = [[2 + number, 3, 4] for number in range(slots)]
        asked = [engine.ask(prompt, max_tokens=12, priority="batch") for prompt in prompts]
        answers = [each.answer()[1] for each in asked]
        assert arrival.asked is not None
        assert arrival.asked.answer()[1] == alone([30, 31, 32], 4)
        steps = engine.graphs.steps
        first = next(i for i, step in enumerate(steps) if (0, 30) in step)
        assert first <= arrival.seen + 1
        assert answers == [alone(prompt, 12) for prompt in prompts]
        engine.wait_until_idle()


def test_a_batch_request_goes_on_from_the_cache_and_computes_nothing_twice() -> None:
    arrival = Arrival(6, [30, 31], 3)
    with FakeEngine(arrival) as engine:
        arrival.engine = engine
        asked = engine.ask([2, 3, 4], max_tokens=10, priority="batch")
        *_, done = asked.events()
        assert isinstance(done, Done)
        assert (done.usage.cached_tokens, done.usage.generated_tokens) == (0, 10)
        assert done.usage.prompt_ns > 0
        rows = [row for step in engine.graphs.steps for row in step]
        assert len(rows) == (3 + 10 - 1) + (2 + 3 - 1)


def test_batch_requests_do_not_take_each_others_slots() -> None:
    with FakeEngine(hashed) as engine:
        first = engine.ask([2, 3], max_tokens=8, priority="batch")
        second = engine.ask([5, 6], max_tokens=8, priority="batch")
        assert [first.answer()[1], second.answer()[1]] == [alone([2, 3], 8), alone([5, 6], 8)]
        assert not first.sequence.was_preempted
        assert not second.sequence.was_preempted


def test_prompts_whose_rows_are_wanted_are_computed_once() -> None:
    arrival = Arrival(1, [30, 31], 3)
    prompt = [2 + number % 20 for number in range(24)]
    with FakeEngine(arrival) as engine:
        arrival.engine = engine
        assert engine.prompt_logits(prompt).answer() == [
            hashed(prompt[: end + 1]) for end in range(len(prompt))
        ]


@pytest.mark.parametrize("seed", range(20))
def test_every_answer_is_that_of_the_request_alone(seed: int) -> None:
    chance = random.Random(seed)
    with FakeEngine(hashed, slots=chance.randint(1, 3), batch=chance.randint(2, 9)) as engine:
        asked: list[tuple[Any, list[int], int]] = []
        for _ in range(12):
            prompt = [chance.randint(2, 21) for _ in range(chance.randint(1, 14))]
            count = chance.randint(1, 12)
            priority = chance.choice(["interactive", "batch"])
            asked.append((engine.ask(prompt, max_tokens=count, priority=priority), prompt, count))
        for request, prompt, count in asked:
            assert request.answer()[1] == alone(prompt, count)
        engine.wait_until_idle()
