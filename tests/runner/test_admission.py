"""Slots that share the cells of one context: who starts, and who waits when cells are few."""

from __future__ import annotations

from typing import Any

import pytest
from support.fake_graphs import FakeEngine, alone, hashed

from tampu.runner.events import Done


class Most:
    """Counts how many sequences are in a step at most."""

    def __init__(self) -> None:
        self.engine: FakeEngine | None = None
        self.running = 0

    def __call__(self, history: list[int]) -> int:
        if self.engine:
            self.running = max(self.running, len(self.engine.scheduler.running))
        return hashed(history)


def together(prompts: list[list[int]], count: int, **size: Any) -> tuple[list[list[int]], int]:
    """Ask all at once; return the answers, and how many ran at once."""
    most = Most()
    with FakeEngine(most, kv_unified=True, **size) as engine:
        most.engine = engine
        asked = engine.runner.call(
            lambda: [engine.ask(prompt, max_tokens=count) for prompt in prompts]
        )
        answers = [each.answer()[1] for each in asked]
        engine.wait_until_idle()
        assert engine.kv_manager.groups[0].cells.available == engine.context
    return answers, most.running


def test_short_requests_run_together_in_the_cells_of_one_context() -> None:
    beginning = list(range(2, 18))
    prompts = [[*beginning, 20 + number] for number in range(8)]
    answers, running = together(prompts, 6, slots=8, context=128, batch=32)
    assert answers == [alone(prompt, 6) for prompt in prompts]
    assert running == 8


def test_a_prompt_waits_while_its_cells_are_taken() -> None:
    prompts = [[2 + number] * 40 for number in range(3)]
    answers, running = together(prompts, 4, slots=4, context=64, batch=64)
    assert answers == [alone(prompt, 4) for prompt in prompts]
    assert running == 1


@pytest.mark.parametrize("batch", [3, 64])
def test_answers_that_outgrow_the_cells_take_turns_and_are_the_same_as_alone(batch: int) -> None:
    prompts = [[2 + number, 30, 31] for number in range(4)]
    answers, running = together(prompts, 50, slots=4, context=64, batch=batch)
    assert answers == [alone(prompt, 50) for prompt in prompts]
    assert running > 1


def test_the_earliest_request_never_waits_for_cells() -> None:
    with FakeEngine(hashed, slots=4, context=64, batch=16, kv_unified=True) as engine:
        asked = engine.runner.call(
            lambda: [engine.ask([2 + number, 30], max_tokens=40) for number in range(4)]
        )
        for each in asked:
            each.answer()
        waited = [each.sequence.was_preempted for each in asked]
    assert not waited[0]
    assert any(waited[1:])


def test_batch_requests_leave_their_cells_to_an_interactive_prompt() -> None:
    asked: list[Any] = []

    def follow(history: list[int]) -> int:
        if len(history) == 20 and not asked:
            asked.append(engine.ask([30] * 40, max_tokens=3))
        return hashed(history)

    with FakeEngine(follow, slots=8, context=64, batch=64, kv_unified=True) as engine:
        prompts = [[2 + number, 3] for number in range(2)]
        rows = [engine.ask(prompt, max_tokens=24, priority="batch") for prompt in prompts]
        answers = [each.answer()[1] for each in rows]
        *_, done = asked[0].events()
        assert isinstance(done, Done)
        assert done.usage.generated_tokens == 3
        assert answers == [alone(prompt, 24) for prompt in prompts]
        steps = engine.graphs.steps
        first = next(number for number, step in enumerate(steps) if (0, 30) in step)
        assert first < len(steps) - 5  # before the rows were done
