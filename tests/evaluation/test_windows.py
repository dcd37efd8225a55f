"""Windows of a text, as llama.cpp's perplexity tool forms them."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tampu.errors import RequestError
from tampu.evaluation.windows import windows


@given(st.integers(8, 40), st.integers(2, 9), st.integers(0, 39), st.sampled_from([None, 7]))
def test_windows_are_consecutive_and_their_second_half_is_scored(
    context: int, count: int, rest: int, bos: int | None
) -> None:
    text = list(range(100, 100 + count * context + min(rest, context - 1)))
    found = windows(text, context, bos)
    assert found.text.reshape(-1).tolist() == text[: count * context]
    starts = text[: count * context : context]
    assert found.tokens[:, 0].tolist() == (starts if bos is None else [bos] * count)
    assert found.tokens[:, 1:].tolist() == found.text[:, 1:].tolist()
    assert found.per_window == context - context // 2 - 1
    assert found.scored.tolist() == [
        token for window in found.text.tolist() for token in window[context // 2 + 1 :]
    ]


def test_only_so_many_windows_are_used() -> None:
    assert windows(range(100), 10, None, 3).tokens.shape == (3, 10)
    assert windows(range(100), 10, None, 30).tokens.shape == (10, 10)


@pytest.mark.parametrize(
    ("tokens", "context", "message"),
    [
        (19, 10, r"too short: it has 19 tokens, and two windows of 10 need 20"),
        (0, 512, r"too short: it has 0 tokens"),
        (100, 7, r"context must be 8 or more, not 7"),
    ],
)
def test_what_is_too_short_is_refused(tokens: int, context: int, message: str) -> None:
    with pytest.raises(RequestError, match=message):
        windows(range(tokens), context, None)
