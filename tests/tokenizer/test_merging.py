"""Merging: scan, heap and many joins at a time give what the definition gives."""

from collections.abc import Callable
from itertools import pairwise
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tampu.tokenizer import merging
from tampu.tokenizer.merging import NEVER, Merger, WordCache


def by_definition(text: str, rank: Callable[[Any, Any], Any]) -> list[str]:
    symbols = list(text)
    while len(symbols) > 1:
        ranks = [rank(*pair) for pair in pairwise(symbols)]
        best = min(ranks)
        if best == NEVER:
            break
        at = ranks.index(best)
        symbols[at : at + 2] = [symbols[at] + symbols[at + 1]]
    return symbols


def ranked(table: dict[Any, Any]) -> Callable[[Any, Any], Any]:
    return lambda left, right: table.get(left + right, NEVER)


# A rank for each joined text: SentencePiece's; small numbers, so that there are many equal ones.
tables = st.dictionaries(st.text("ab", min_size=2, max_size=6), st.integers(0, 5), max_size=30)
pair_tables = st.dictionaries(
    st.tuples(st.text("ab", min_size=1, max_size=4), st.text("ab", min_size=1, max_size=4)),
    st.integers(0, 50),
    max_size=30,
)
words = st.text("ab", max_size=60)


@given(tables, words)
def test_scan_and_heap_merges_match_the_definition(table: dict[str, int], word: str) -> None:
    merger = Merger(ranked(table))
    expected = by_definition(word, ranked(table))
    assert merger._merge_short(list(word)) == expected
    assert merger._merge_heap(list(word)) == expected


@given(pair_tables, words)
def test_a_rank_may_depend_on_the_position(table: dict[tuple[str, str], int], word: str) -> None:
    def rank(left: str, right: str) -> int:
        return table.get((left, right), NEVER)

    expected = by_definition(word, rank)
    assert Merger(rank)._merge_short(list(word)) == expected
    assert Merger(rank)._merge_heap(list(word)) == expected


@settings(max_examples=300)
@given(tables, st.text("ab", min_size=1, max_size=6), st.integers(1, 12), st.text("ab", max_size=4))
def test_merging_repetitions_together_gives_the_same_word(
    table: dict[str, int], unit: str, count: int, tail: str
) -> None:
    word = unit * count + tail
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(merging, "_LONG", 2)
        patch.setattr(merging, "_SHORT", 0)
        assert Merger(ranked(table)).merge(list(word)) == by_definition(word, ranked(table))


def test_the_leftmost_of_equal_pairs_is_merged_first() -> None:
    assert Merger(ranked({"ab": 1, "ba": 1})).merge(list("aba")) == ["ab", "a"]
    assert Merger(ranked({"aa": 1})).merge(list("aaaaa")) == ["aa", "aa", "a"]


def test_a_new_pair_of_better_rank_is_merged_first() -> None:
    assert Merger(ranked({"ab": 2, "aba": 1})).merge(list("abab")) == ["aba", "b"]


def test_an_empty_text_has_no_tokens() -> None:
    assert Merger(ranked({})).merge([]) == []


def test_a_word_is_kept_when_it_comes_again() -> None:
    computed: list[str] = []
    cache = WordCache(lambda text: computed.append(text) or len(text))
    assert [cache["word"] for _ in range(5)] == [4] * 5
    assert computed == ["word"] * 2
    assert [*cache] == ["word"]


def test_words_that_come_once_are_not_kept() -> None:
    cache = WordCache(len)
    for number in range(100_000):
        assert cache[f"new{number}"] == len(f"new{number}")
    assert not cache


def test_words_are_kept_among_many_that_come_once() -> None:
    cache = WordCache(len)
    usual = [f"usual{number}" for number in range(100)]
    for number in range(50):
        for text in (*usual, *(f"new{number}-{other}" for other in range(500))):
            cache[text]
    assert {*cache} == {*usual}


def test_of_two_words_with_one_place_in_common_both_are_kept() -> None:
    class Hashed(str):
        def __hash__(self) -> int:
            return 7 if self.startswith("a") else 7 + (1 << 32)

    cache = WordCache(len)
    for _ in range(2):
        for text in ("a", "b"):
            cache[Hashed(text)]
    assert [str(text) for text in cache] == ["a", "b"]


def test_a_long_text_is_never_kept() -> None:
    cache = WordCache(len)
    assert [cache["x" * 1_000] for _ in range(3)] == [1_000] * 3
    assert not cache
