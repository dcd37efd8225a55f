"""Reasoning ends when its budget is used up, and only then."""

from __future__ import annotations

import math
from typing import Any, cast

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tampu.runner.generate_options import ReasoningTags
from tampu.runner.reasoning_budget import ReasoningBudget
from tampu.tokenizer.tokenizer import Tokenizer

WORDS = ["a", "b ", "<think>", "</think>", "<", "think>", "\n", "</", "x", "é"]
VOCABULARY = [word.encode() for word in WORDS] + [b"\xc3", b"\xa9"]
HALF, OTHER_HALF = len(WORDS), len(WORDS) + 1
CONTROL = {"<think>": 2, "</think>": 3}
THINK = ReasoningTags(begin="<think>", end="</think>")
OPEN = ReasoningTags(begin="<think>", end="</think>", is_open=True)


class Letters:
    """A vocabulary of a few words."""

    vocabulary_size = len(VOCABULARY)

    def __init__(self, control: dict[str, int] = CONTROL) -> None:
        self.control = control

    def control_tokens(self, texts: Any) -> dict[Any, Any]:
        return {text: self.control[text] for text in texts if text in self.control}

    def decoder(self, **_: object) -> Decoder:
        return Decoder()

    def encode_inside(self, text: str) -> list[Any]:
        assert text == "</think>"
        return [VOCABULARY.index(b"</"), VOCABULARY.index(b"think>")]


class Decoder:
    """Shows a token's text; half a character only once it is whole."""

    def __init__(self) -> None:
        self.held = b""

    def feed(self, token: int) -> str:
        self.held += VOCABULARY[token]
        try:
            text, self.held = self.held.decode(), b""
        except UnicodeDecodeError:
            return ""
        return text


def answer(
    wanted: list[Any],
    budget: int,
    tags: ReasoningTags = THINK,
    control: dict[Any | str, Any] = CONTROL,
) -> list[int]:
    """Return the tokens of an answer, given those that the model would generate."""
    limit = ReasoningBudget(budget, tags, cast("Tokenizer", Letters(control)))
    said = []
    for token in wanted:
        while (mask := limit.mask()) is not None and not mask[0] >> token & 1:
            said.append(int(mask[0]).bit_length() - 1)
            limit.accept(said[-1])
        limit.begin()
        said.append(token)
        limit.accept(token)
        assert not limit.is_complete
    return said


def test_reasoning_ends_when_the_budget_is_used_up() -> None:
    assert answer([2, 0, 1, 0, 1, 8], 2) == [2, 0, 1, 3, 0, 1, 8]
    assert answer([2, 0, 3, 1, 8], 2) == [2, 0, 3, 1, 8]
    assert answer([0, 1, 0, 1], 2, OPEN) == [0, 1, 3, 0, 1]


def test_a_budget_of_zero_ends_reasoning_immediately() -> None:
    assert answer([2, 0], 0) == [2, 3, 0]
    assert answer([0], 0, OPEN) == [3, 0]


def test_all_tokens_of_an_end_tag_are_forced() -> None:
    assert answer([4, 5, 0, 0, 0], 2, control={}) == [4, 5, 0, 0, 7, 5, 0]


def test_all_reasoning_of_an_answer_shares_one_budget() -> None:
    assert answer([2, 0, 3, 6, 2, 0, 0, 8], 2) == [2, 0, 3, 6, 2, 0, 3, 0, 8]


def test_a_tag_inside_the_answer_does_not_begin_reasoning() -> None:
    assert answer([8, 2, 0, 0, 0], 1) == [8, 2, 0, 0, 0]
    anywhere = ReasoningTags(begin="<think>", end="</think>", anywhere=True)
    assert answer([8, 2, 0, 0, 0], 1, anywhere) == [8, 2, 0, 3, 0, 0]


def test_a_character_is_completed_before_reasoning_ends() -> None:
    assert answer([2, HALF, OTHER_HALF, 0], 1) == [2, HALF, OTHER_HALF, 3, 0]


@given(st.lists(st.integers(0, len(VOCABULARY) - 1), max_size=30), st.integers(0, 8), st.booleans())
def test_reasoning_never_exceeds_its_budget(wanted: list[Any], budget: int, is_open: bool) -> None:
    said = answer(wanted, budget, OPEN if is_open else THINK)
    inside, count, text = is_open, 0, b""
    for token in said:
        text += VOCABULARY[token]
        if inside and b"</think>" in text:  # one token, or written in pieces
            break
        if inside:
            count += 1
        elif token != CONTROL["<think>"]:
            break
        inside = True
    assert count <= budget + 4  # needed to complete a character


INNER = np.array([1], np.uint32)


def test_an_end_token_inside_reasoning_ends_it_where_other_text_must_follow() -> None:
    class Inner:
        is_complete = False

        def begin(self) -> None:
            """Nothing is computed."""

        def mask(self) -> Any:
            return INNER

        def forced_tokens(self) -> tuple[int, ...]:
            return (7,)

        def accept(self, token: int) -> None:
            """Anything."""

    tokenizer = cast("Tokenizer", Letters())
    limit = ReasoningBudget(math.inf, OPEN, tokenizer, inner=Inner(), ends=[4])
    assert limit.mask() == [1 | 1 << 4]
    assert limit.forced_tokens() == ()
    assert limit.ends_reasoning()
    assert limit.forced == limit.forced_tokens() == (3,)
    assert limit.mask() == [1 << 3]
    limit.accept(3)
    assert limit.mask() is INNER
    assert limit.forced_tokens() == (7,)
    assert not limit.ends_reasoning()
    assert not ReasoningBudget(math.inf, OPEN, tokenizer, ends=[4]).ends_reasoning()


@pytest.mark.parametrize("budget", [0, 3])
def test_an_inner_constraint_still_holds(budget: int) -> None:
    class Inner:
        is_complete = False
        taken: tuple[int, ...] = ()
        begins = 0

        def begin(self) -> None:
            self.begins += 1

        def mask(self) -> Any:
            return INNER

        def forced_tokens(self) -> tuple[int, ...]:
            return ()

        def accept(self, token: int) -> None:
            self.taken = (*self.taken, token)

    inner = Inner()
    limit = ReasoningBudget(budget, THINK, cast("Tokenizer", Letters()), inner=inner)
    limit.begin()
    assert limit.mask() is INNER
    for token in (2, 0, 0, 0):
        limit.accept(token)
        if limit.forced:
            break
    assert len(inner.taken) == budget + 1
    assert inner.begins == 1
    inner.is_complete = True
    assert limit.is_complete
