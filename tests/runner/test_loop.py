import random
import time

import pytest
from support.fake_graphs import EOS, Desk
from support.waiting import wait_until

from tampu.errors import RunnerDiedError
from tampu.runner.events import Done


def count_up(history):
    """The next token is one more than the last, from 2 again after 20."""
    return history[-1] + 1 if history[-1] < 20 else 2


def hashed(history):
    """A token that depends on every token before it."""
    value = 7
    for token in history:
        value = (value * 31 + token) % 1009
    return 2 + value % 20


def alone(prompt, count, follow):
    """What a sequence would generate by itself."""
    tokens = list(prompt)
    for _ in range(count):
        tokens.append(follow(tokens))
    return tokens[len(prompt) :]


def test_text_comes_in_the_order_of_its_tokens():
    with Desk(count_up) as desk:
        assert desk.ask([2], max_tokens=4).answer() == ("bcde", [3, 4, 5, 6], "length")


@pytest.mark.parametrize("count", [0, 1, 2, 10])
def test_exactly_the_tokens_asked_for_are_generated(count):
    with Desk(hashed) as desk:
        *_, done = desk.ask([2, 3], max_tokens=count).events()
        assert isinstance(done, Done)
        assert (done.reason, done.usage.generated_tokens) == ("length", count)


@pytest.mark.seed("S11")
def test_the_end_token_ends_the_answer_and_has_no_text():
    with Desk(lambda history: EOS if history[-1] == 5 else history[-1] + 1) as desk:
        assert desk.ask([2]).answer() == ("bcd", [3, 4, 5], "stop")
        assert desk.ask([2], ignore_eos=True, max_tokens=5).answer()[2] == "length"


def test_a_last_token_without_text_is_still_reported():
    with Desk(lambda history: 0 if len(history) == 4 else 3) as desk:
        assert desk.ask([2], max_tokens=4).answer() == ("bbb", [3, 3, 3, 0], "length")


def test_a_stop_string_over_several_tokens_ends_the_answer():
    with Desk(count_up) as desk:
        assert desk.ask([2], stop=("ef",)).answer()[::2] == ("bcd", "stop")


def test_a_stop_string_wins_over_the_limit():
    with Desk(count_up) as desk:
        assert desk.ask([2], stop=("d",), max_tokens=3).answer()[::2] == ("bc", "stop")


@pytest.mark.seed("S62", "S78")
def test_sequences_together_give_what_each_gives_alone():
    prompts = [[2 + (i * 7 + j) % 19 for j in range(1 + 5 * i)] for i in range(5)]
    with Desk(hashed, slots=3) as desk:
        asked = [desk.ask(prompt, max_tokens=6) for prompt in prompts]
        for prompt, one in zip(prompts, asked, strict=True):
            assert one.answer()[1] == alone(prompt, 6, hashed)


@pytest.mark.seed("S2")
def test_no_row_is_computed_twice():
    with Desk(hashed) as desk:
        desk.ask([2, 3, 4], max_tokens=5).events()
        positions = [position for step in desk.graphs.steps for position, _ in step]
        assert positions == list(range(3 + 5 - 1))


def test_a_beginning_that_was_computed_is_not_computed_again():
    prompt = list(range(2, 20))
    with Desk(hashed) as desk:
        desk.ask(prompt, max_tokens=2).events()
        desk.graphs.steps.clear()
        asked = desk.ask([*prompt, 9, 9], max_tokens=3)
        assert asked.answer()[1] == alone([*prompt, 9, 9], 3, hashed)
        assert asked.sequence.cached == len(prompt)
        assert sum(map(len, desk.graphs.steps)) == 2 + 2


def test_running_sequences_share_their_beginning():
    prompt = list(range(2, 18))
    with Desk(hashed, slots=2, batch=32) as desk:
        first = desk.ask(prompt, max_tokens=12)
        wait_until(lambda: first.sequence.computed >= len(prompt), "the prompt is computed")
        second = desk.ask([*prompt, 5], max_tokens=4)
        assert second.answer()[1] == alone([*prompt, 5], 4, hashed)
        assert second.sequence.cached == len(prompt)
        assert first.answer()[1] == alone(prompt, 12, hashed)


@pytest.mark.seed("S80")
def test_a_full_context_drops_its_oldest_tokens_and_goes_on():
    with Desk(count_up, context=16) as desk:
        text, tokens, reason = desk.ask([2, 3, 4], max_tokens=60, keep=2).answer()
        assert (len(tokens), reason) == (60, "length")
        assert tokens == alone([4], 60, count_up)
        assert len(text) == 60


def test_without_shifting_a_full_context_ends_the_answer():
    with Desk(hashed, context=16) as desk:
        _, tokens, reason = desk.ask([2, 3, 4], shift=False).answer()
        assert (len(tokens), reason) == (14, "length")


def test_what_is_left_of_a_full_context_is_computed_again_at_its_new_positions():
    prompt = [2, 3, 4]
    tokens = list(prompt)
    while len(tokens) <= 16:
        tokens.append(hashed(tokens))
    shifted = tokens[:2] + tokens[2 + 7 :]  # half of the 14 that are not kept are dropped
    after = alone(shifted, 4, hashed)
    with Desk(hashed, context=16) as desk:
        assert desk.ask(prompt, max_tokens=18, keep=2).answer()[1] == tokens[3:] + after


@pytest.mark.parametrize("length", [15, 16])
def test_a_prompt_as_long_as_the_context_is_answered(length):
    prompt = [2 + i for i in range(length)]
    with Desk(count_up, context=16) as desk:
        assert desk.ask(prompt, max_tokens=3).answer()[1] == alone(prompt, 3, count_up)


def test_unusable_logits_end_only_their_own_sequence():
    def follow(history):
        return None if history[0] == 9 and len(history) > 3 else hashed(history)

    with Desk(follow, slots=2) as desk:
        bad, good = desk.ask([9, 2], max_tokens=8), desk.ask([3, 2], max_tokens=8)
        assert good.answer()[1] == alone([3, 2], 8, hashed)
        assert "nan" in bad.answer()[2]
        assert desk.ask([3, 2], max_tokens=8).answer()[1] == alone([3, 2], 8, hashed)


def test_a_long_prompt_does_not_hold_up_a_running_answer():
    with Desk(hashed, slots=2, batch=4, context=64) as desk:
        short = desk.ask([2], max_tokens=40)
        wait_until(lambda: short.sequence.generated >= 2, "two tokens are there")
        before = len(desk.graphs.steps)
        desk.ask([3] * 30, max_tokens=1).events()
        mixed = desk.graphs.steps[before:]
        assert all(len(step) <= 4 for step in mixed)
        assert short.answer()[1] == alone([2], 40, hashed)


def test_cancelling_at_random_moments_leaves_every_cell_accounted_for():
    source = random.Random(1)
    with Desk(hashed, slots=4, context=24) as desk:
        for _ in range(60):
            asked = [
                desk.ask([source.randrange(2, 20) for _ in range(source.randrange(1, 20))])
                for _ in range(6)
            ]
            for one in asked:
                time.sleep(source.random() * 0.002)
                desk.runner.cancel(one.sequence)
            assert {one.answer()[2] for one in asked} <= {"cancelled", "stop", "length"}
        desk.rest()


def test_closing_ends_what_runs_and_refuses_what_comes():
    desk = Desk(hashed)
    asked = desk.ask([2])
    desk.runner.close()
    assert "ended" in asked.answer()[2]
    with pytest.raises(RunnerDiedError):
        desk.ask([2])
