"""A text is cut only where no token could reach across."""

from itertools import pairwise
from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from tampu.ml.gguf import StringArray
from tampu.tokenizer.sentencepiece import SafeCuts

letters = "abé▁😀"


@given(st.lists(st.text(letters, max_size=5), max_size=10), st.text(letters, min_size=1))
def test_parts_add_up_to_the_text_and_no_token_spans_two(tokens: list[Any], text: str) -> None:
    parts = SafeCuts(StringArray.of(tokens)).split(text)
    assert "".join(parts) == text
    assert all(parts)
    for left, right in pairwise(parts):
        assert not any(left[-1] + right[0] in token for token in tokens)


def test_text_is_split_into_words_where_no_token_has_an_inner_space() -> None:
    cuts = SafeCuts(StringArray.of(["▁he", "el", "llo", "▁wor", "rld"]))
    assert cuts.split("▁hello▁world▁hello") == ["▁hello", "▁world", "▁hello"]
