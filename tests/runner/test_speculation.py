"""Which guesses become drafts, and that they change nothing but the number of steps."""

import random
from typing import Any

import pytest
from support.fake_graphs import FakeEngine, FakeRequest

from tampu.runner.step_times import StepTimes


class Cheap(StepTimes):
    """Further rows cost little, whatever is measured."""

    def add(self, rows: int, seconds: float) -> None:  # noqa: ARG002
        super().add(rows, 1 + rows / 100)


class Dear(StepTimes):
    """Each row costs as much as a step."""

    def add(self, rows: int, seconds: float) -> None:  # noqa: ARG002
        super().add(rows, float(rows))


def cycle(history: list[int]) -> int:
    """Return the next token of 2, 3, ..., 13, 2, 3, ..."""
    return 2 + (int(history[-1]) - 1) % 12


def scattered(history: list[int]) -> int:
    """Return a token that no n-gram foretells."""
    return random.Random(str(history)).randrange(2, 60)


def ask(
    follow: Any, times: StepTimes, prompts: list[list[int]], **options: Any
) -> tuple[list[list[int]], list[FakeRequest], int]:
    """Return the answers to prompts, the requests, and how many steps there were."""
    size: dict[str, Any] = {"slots": len(prompts), "context": 128, "batch": 64}
    with FakeEngine(follow, times=times, **size) as engine:
        asked = engine.runner.call(lambda: [engine.ask(prompt, **options) for prompt in prompts])
        found = [each.answer()[1] for each in asked]
        engine.wait_until_idle()
        return found, asked, len(engine.graphs.steps)


def test_a_text_that_repeats_itself_takes_few_steps() -> None:
    prompts = [[2, 3, 4], [7, 8, 9]]
    found, asked, steps = ask(cycle, Cheap(), prompts, max_tokens=80)
    assert found == [[2 + (start + n) % 12 for n in range(80)] for start in (3, 8)]
    assert steps < 40
    for each in asked:
        usage = each.sequence.usage()
        assert usage.accepted_tokens > 40
        assert usage.accepted_tokens <= usage.drafted_tokens


@pytest.mark.parametrize("options", [{"draft_tokens": 0}, {}])
def test_without_drafts_there_is_a_step_for_each_token(options: dict[str, Any]) -> None:
    times = Cheap() if options else Dear()
    _, asked, steps = ask(cycle, times, [[2, 3, 4]], max_tokens=80, **options)
    drafted = asked[0].sequence.drafted
    assert (steps, drafted) == (80, 0) if options else steps + drafted <= 90


def test_a_step_has_no_more_drafts_than_the_request_allows() -> None:
    _, asked, steps = ask(cycle, Cheap(), [[2, 3, 4]], max_tokens=80, draft_tokens=1)
    assert steps >= 40
    assert asked[0].sequence.accepted > 20


def test_a_text_that_cannot_be_guessed_has_hardly_any_drafts() -> None:
    _, asked, _ = ask(scattered, Cheap(), [[2, 3, 4]], max_tokens=120)
    assert asked[0].sequence.drafted < 12


def test_the_same_request_again_follows_the_answer_before() -> None:
    size: dict[str, Any] = {"context": 128, "batch": 64}
    with FakeEngine(scattered, times=Cheap(), **size) as engine:
        first = engine.ask([2, 3, 4], max_tokens=60).answer()
        steps = len(engine.graphs.steps)
        again = engine.ask([2, 3, 4], max_tokens=60)
        assert again.answer() == first
        assert len(engine.graphs.steps) - steps < 20
        assert again.sequence.accepted > 40
