"""Special tokens in a text: leftmost, then longest."""

from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from tampu.tokenizer.special import SpecialMatcher


def slowly(ids: dict[Any, int], text: str) -> list[Any]:
    parts: list[Any] = [""]
    while text:
        found = max((token for token in ids if text.startswith(token)), key=len, default=None)
        if found:
            parts += [ids[found], ""]
        else:
            parts[-1] += text[0]
        text = text[len(found or " ") :]
    return [part for part in parts if part != ""]


def test_the_leftmost_longest_special_token_is_found() -> None:
    matcher = SpecialMatcher({"<a>": 1, "<a><b>": 2, "b><c>": 3, "<": 4})
    assert list(matcher.split("x<a><b><c>")) == ["x", 2, 4, "c>"]
    assert list(matcher.split("x<a><c>")) == ["x", 1, 4, "c>"]
    assert list(matcher.split("<b><c>")) == [4, 3]


def test_without_special_tokens_a_text_is_one_part() -> None:
    assert list(SpecialMatcher({}).split("x<a>")) == ["x<a>"]
    assert list(SpecialMatcher({"<a>": 1}).split("")) == []


@given(
    st.lists(st.text("ab<>|", min_size=1, max_size=5), max_size=8, unique=True),
    st.text("ab<>|", max_size=40),
)
def test_special_tokens_are_found_as_by_a_slow_search(tokens: list[Any], text: str) -> None:
    ids = {token: index for index, token in enumerate(tokens, start=1)}
    assert list(SpecialMatcher(ids).split(text)) == slowly(ids, text)
