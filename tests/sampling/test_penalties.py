from collections import Counter
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tampu.sampling.penalties import TokenCounts


@given(st.one_of(st.none(), st.integers(1, 8)), st.lists(st.integers(0, 9), max_size=300))
def test_the_window_holds_the_last_tokens_and_their_counts(length: Any, tokens: list[Any]) -> None:
    window = TokenCounts(length, 10)
    window.extend(tokens)
    expected = Counter(tokens if length is None else tokens[-length:])
    assert set(window.tokens.tolist()) == set(expected)
    assert window.counts.tolist() == [expected[token] for token in range(10)]


def test_a_window_without_limit_holds_each_token_once() -> None:
    window = TokenCounts(None, 200)
    window.extend(list(range(200)) * 3)
    assert sorted(window.tokens.tolist()) == list(range(200))
    assert set(window.counts.tolist()) == {3}


@pytest.mark.parametrize("length", [1, 3])
def test_tokens_outside_the_window_are_not_counted(length: int) -> None:
    window = TokenCounts(length, 10)
    window.extend([7, *range(length)])
    assert window.counts[7] == 0
