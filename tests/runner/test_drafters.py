"""Drafters: what they guess, and that a guess is a text that was seen."""

from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tampu.kvcache.prefix_tree import PrefixTree
from tampu.runner.drafters import (
    MAX_GUESS,
    GrammarDrafter,
    Guess,
    GuessKind,
    NgramDrafter,
    PrefixDrafter,
)


def array(tokens: Sequence[int]) -> Any:
    return np.array(tokens, np.int32)


@pytest.mark.parametrize(
    ("text", "answer", "guess"),
    [
        ([1, 2, 3, 4, 5, 6], [], ()),
        ([1, 2, 3, 4, 5, 6], [1, 2], ()),
        ([1, 2, 3, 4, 5, 6], [1, 2, 3], (4, 5, 6, 1)),
        ([1, 2, 3, 4, 1, 2, 3, 5, 9], [1, 2, 3], (5, 9, 1, 2)),  # the newest place
        ([1, 2, 3, 4, 1, 2, 3, 5, 9], [1, 2, 3, 4], (1, 2, 3, 5)),
        ([1, 2, 3, 4, 1, 2, 3, 5, 9], [1, 2, 3, 8], (9, 1, 2, 3)),  # after an error
        ([7, 7, 7], [7], (7, 7, 7, 7)),
        ([1, 2], [1, 2, 1, 2], (1, 2, 1, 2)),
        ([1], [], ()),
    ],
)
def test_what_followed_the_last_tokens_is_guessed(
    text: list[int], answer: list[int], guess: tuple[int, ...]
) -> None:
    drafter = NgramDrafter(array(text))
    for token in answer:
        drafter.guess(1)
        drafter.feed([token])
    assert tuple(drafter.guess(4).tokens) == guess


def test_the_kind_of_a_guess_tells_how_much_agrees() -> None:
    text = [*range(2, 30)]
    drafter = NgramDrafter(array(text))
    kinds = []
    for token in [*text[:14], 99, 17]:
        drafter.feed([token])
        kinds.append(drafter.guess(1).kind if drafter.guess(1).tokens else None)
    none = [None, None]
    assert kinds[:2] == none
    assert set(kinds[2:11]) == {GuessKind.NGRAM}
    assert kinds[11:14] == [GuessKind.LONG_NGRAM] * 3
    assert kinds[14:] == [GuessKind.AFTER_ERROR] * 2


def test_a_predicted_answer_is_guessed_from_its_first_token_and_no_further_than_its_end() -> None:
    drafter = NgramDrafter(array([1, 2, 3]), predicted=[5, 6, 7])
    assert drafter.guess(9) == Guess([5, 6, 7], GuessKind.NGRAM)
    drafter.feed([5, 6])
    assert drafter.guess(9).tokens == [7]
    drafter.feed([7])
    assert drafter.guess(9).tokens == []


@given(
    st.lists(st.integers(0, 3), max_size=30),
    st.lists(st.lists(st.integers(0, 3), min_size=1, max_size=4), max_size=20),
)
def test_a_guess_repeats_what_follows_the_last_three_tokens_somewhere(
    text: list[int], answer: list[list[int]]
) -> None:
    drafter = NgramDrafter(array(text))
    known = [*text]
    for tokens in answer:
        drafter.feed(tokens)
        known += tokens
        guess = drafter.guess(MAX_GUESS)
        assert len(guess.tokens) in (0, MAX_GUESS)
        if guess.tokens and guess.kind is not GuessKind.AFTER_ERROR:
            four = [*known[-3:], guess.tokens[0]]
            assert any(known[at : at + 4] == four for at in range(len(known) - 3))


def test_an_earlier_text_with_the_same_beginning_is_guessed_until_they_differ() -> None:
    tree = PrefixTree(1)
    for text in ([1, 2, 3, 4, 5], [1, 2, 3, 4, 6, 7], [1, 2, 9]):
        tree.insert(tree.root(), array(text), np.zeros((2, 1, len(text)), np.int32))
    drafter = PrefixDrafter(tree, array([1, 2, 3]), 0)
    assert drafter.guess(9) == Guess([4, 6, 7], GuessKind.PREFIX)
    drafter.feed([4])
    assert drafter.guess(1).tokens == [6]
    drafter.feed([5])
    assert not drafter.guess(9).tokens
    drafter.feed([5])
    assert not drafter.guess(9).tokens
    assert not PrefixDrafter(tree, array([1, 2, 8]), 0).guess(9).tokens
    assert PrefixDrafter(tree, array([1, 2]), 0).guess(9).tokens == [9]


def test_an_image_is_not_guessed() -> None:
    tree = PrefixTree(1)
    tree.insert(tree.root(), array([1, 2, 3, -7, -7]), np.zeros((2, 1, 5), np.int32))
    assert PrefixDrafter(tree, array([1]), 0).guess(9).tokens == [2, 3]


def test_the_keys_of_an_adapter_are_tokens_again() -> None:
    tree = PrefixTree(1)
    tree.insert(tree.root(), array([101, 102, 103]), np.zeros((2, 1, 3), np.int32))
    drafter = PrefixDrafter(tree, array([101]), 100)
    drafter.feed([2])
    assert drafter.guess(9).tokens == [3]


class Forcing:
    def forced_tokens(self) -> list[int]:
        return [4, 5, 6]


def test_a_grammar_s_only_text_is_guessed() -> None:
    assert GrammarDrafter(Forcing()).guess(2) == Guess([4, 5], GuessKind.GRAMMAR)
