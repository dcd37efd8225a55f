import random
import time

import pytest
from support.fake_graphs import EOS, FakeEngine, alone, count_up, hashed
from support.waiting import wait_until

from tampu.errors import RunnerDiedError
from tampu.runner.events import Done


def test_text_arrives_in_the_order_of_its_tokens() -> None:
    with FakeEngine(count_up) as engine:
        assert engine.ask([2], max_tokens=4).answer() == ("bcde", [3, 4, 5, 6], "length")


@pytest.mark.parametrize("count", [0, 1, 2, 10])
def test_exactly_max_tokens_tokens_are_generated(count: int) -> None:
    with FakeEngine(hashed) as engine:
        *_, done = engine.ask([2, 3], max_tokens=count).events()
        assert isinstance(done, Done)
        assert (done.reason, done.usage.generated_tokens) == ("length", count)


@pytest.mark.seed("S11")
def test_the_end_token_ends_the_answer_and_has_no_text() -> None:
    with FakeEngine(lambda history: EOS if history[-1] == 5 else history[-1] + 1) as engine:
        assert engine.ask([2]).answer() == ("bcd", [3, 4, 5], "stop")
        assert engine.ask([2], ignore_eos=True, max_tokens=5).answer()[2] == "length"


def test_a_last_token_without_text_is_still_reported() -> None:
    with FakeEngine(lambda history: 0 if len(history) == 4 else 3) as engine:
        assert engine.ask([2], max_tokens=4).answer() == ("bbb", [3, 3, 3, 0], "length")


def test_a_stop_string_across_tokens_ends_the_answer() -> None:
    with FakeEngine(count_up) as engine:
        assert engine.ask([2], stop=("ef",)).answer()[::2] == ("bcd", "stop")


def test_a_stop_string_wins_over_the_limit() -> None:
    with FakeEngine(count_up) as engine:
        assert engine.ask([2], stop=("d",), max_tokens=3).answer()[::2] == ("bc", "stop")


@pytest.mark.seed("S62", "S78")
def test_batched_sequences_give_the_same_tokens_as_alone() -> None:
    prompts = [[2 + (i * 7 + j) % 19 for j in range(1 + 5 * i)] for i in range(5)]
    with FakeEngine(hashed, slots=3) as engine:
        asked = [engine.ask(prompt, max_tokens=6) for prompt in prompts]
        for prompt, one in zip(prompts, asked, strict=True):
            assert one.answer()[1] == alone(prompt, 6)


@pytest.mark.seed("S2")
def test_no_row_is_computed_twice() -> None:
    with FakeEngine(hashed) as engine:
        engine.ask([2, 3, 4], max_tokens=5).events()
        positions = [position for step in engine.graphs.steps for position, _ in step]
        assert positions == list(range(3 + 5 - 1))


def test_a_cached_prefix_is_not_computed_again() -> None:
    prompt = list(range(2, 20))
    with FakeEngine(hashed) as engine:
        engine.ask(prompt, max_tokens=2).events()
        engine.graphs.steps.clear()
        asked = engine.ask([*prompt, 9, 9], max_tokens=3)
        assert asked.answer()[1] == alone([*prompt, 9, 9], 3)
        assert asked.sequence.cached == len(prompt)
        assert sum(map(len, engine.graphs.steps)) == 2 + 2


def test_running_sequences_share_their_prefix() -> None:
    prompt = list(range(2, 18))
    with FakeEngine(hashed, slots=2, batch=32) as engine:
        first = engine.ask(prompt, max_tokens=12)
        wait_until(lambda: first.sequence.computed >= len(prompt), "the prompt is computed")
        second = engine.ask([*prompt, 5], max_tokens=4)
        assert second.answer()[1] == alone([*prompt, 5], 4)
        assert second.sequence.cached == len(prompt)
        assert first.answer()[1] == alone(prompt, 12)


@pytest.mark.seed("S80")
def test_a_full_context_drops_its_oldest_tokens_and_continues() -> None:
    with FakeEngine(count_up, context=16) as engine:
        text, tokens, reason = engine.ask([2, 3, 4], max_tokens=60, keep=2).answer()
        assert (len(tokens), reason) == (60, "length")
        assert tokens == alone([4], 60, count_up)
        assert len(text) == 60


def test_without_shifting_a_full_context_ends_the_answer() -> None:
    with FakeEngine(hashed, context=16) as engine:
        _, tokens, reason = engine.ask([2, 3, 4], shift=False).answer()
        assert (len(tokens), reason) == (14, "length")


def test_the_rest_of_a_full_context_is_computed_at_its_new_positions() -> None:
    prompt = [2, 3, 4]
    tokens = list(prompt)
    while len(tokens) <= 16:
        tokens.append(hashed(tokens))
    shifted = tokens[:2] + tokens[2 + 7 :]  # half of the 14 that are not kept are dropped
    after = alone(shifted, 4)
    with FakeEngine(hashed, context=16) as engine:
        assert engine.ask(prompt, max_tokens=18, keep=2).answer()[1] == tokens[3:] + after


@pytest.mark.parametrize("length", [15, 16])
def test_a_prompt_as_long_as_the_context_is_answered(length: int) -> None:
    prompt = [2 + i for i in range(length)]
    with FakeEngine(count_up, context=16) as engine:
        assert engine.ask(prompt, max_tokens=3).answer()[1] == alone(prompt, 3, count_up)


def test_nan_logits_end_only_their_own_sequence() -> None:
    def follow(history: list[int]) -> int | None:
        return None if history[0] == 9 and len(history) > 3 else hashed(history)

    with FakeEngine(follow, slots=2) as engine:
        bad, good = engine.ask([9, 2], max_tokens=8), engine.ask([3, 2], max_tokens=8)
        assert good.answer()[1] == alone([3, 2], 8)
        assert "nan" in bad.answer()[2]
        assert engine.ask([3, 2], max_tokens=8).answer()[1] == alone([3, 2], 8)


def test_a_long_prompt_does_not_hold_up_a_running_answer() -> None:
    with FakeEngine(hashed, slots=2, batch=4, context=64) as engine:
        short = engine.ask([2], max_tokens=40)
        wait_until(lambda: short.sequence.generated >= 2, "two tokens are there")
        before = len(engine.graphs.steps)
        engine.ask([3] * 30, max_tokens=1).events()
        mixed = engine.graphs.steps[before:]
        assert all(len(step) <= 4 for step in mixed)
        assert short.answer()[1] == alone([2], 40)


def test_cancelling_at_random_moments_leaks_no_cell() -> None:
    source = random.Random(1)
    with FakeEngine(hashed, slots=4, context=24) as engine:
        for _ in range(60):
            asked = [
                engine.ask([source.randrange(2, 20) for _ in range(source.randrange(1, 20))])
                for _ in range(6)
            ]
            for one in asked:
                time.sleep(source.random() * 0.002)
                engine.runner.cancel(one.sequence)
            assert {one.answer()[2] for one in asked} <= {"cancelled", "stop", "length"}
        engine.wait_until_idle()


def test_close_ends_running_requests_and_refuses_new_ones() -> None:
    engine = FakeEngine(hashed)
    asked = engine.ask([2])
    engine.runner.close()
    assert "ended" in asked.answer()[2]
    with pytest.raises(RunnerDiedError):
        engine.ask([2])
