"""Large request bodies: long texts are not read twice; mistakes around them are found."""

from __future__ import annotations

import json
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tampu.errors import RequestError
from tampu.server.body import decode, without_long_texts

LONG = 200_000
texts = st.text(
    st.sampled_from(['"', "\\", "\n", "a", " ", "é", "😀", "\x7f", ":", ","]), max_size=9
).map(lambda part: part * 9)


class Body(msgspec.Struct):
    """A request."""

    text: str
    more: Any = None


def long(part: str) -> str:
    """Return a long text that is mostly this."""
    return part * (LONG // len(part))


@pytest.mark.parametrize("part", ["x", '"', "\\", '\\"', "\n", "é", "\u2028", '": ', "{[,:"])
@pytest.mark.parametrize("ensures_ascii", [True, False])
def test_long_texts_are_emptied_and_the_rest_stays(part: str, *, ensures_ascii: bool) -> None:
    value = {"a": [long(part), "short", 1], "b": {"c": f'{long(part)}"'}, long("k"): None, "d": ""}
    body = json.dumps(value, ensure_ascii=ensures_ascii, indent=1).encode()
    found = json.loads(without_long_texts(body))
    assert found == {"a": ["", "short", 1], "b": {"c": ""}, long("k"): None, "d": ""}


@given(
    st.recursive(texts | st.integers(), lambda each: st.lists(each) | st.dictionaries(texts, each))
)
def test_json_without_long_texts_stays_as_it_is(value: object) -> None:
    body = json.dumps(value).encode()
    assert without_long_texts(body) == body


@pytest.mark.parametrize(
    "more", ['{"x": 1, "x": 2}', '{"x": "LONG", "x": "LONG"}', '{"LONG": 1, "LONG": 2}']
)
def test_a_duplicate_name_beside_long_texts_is_refused(more: str) -> None:
    body = f'{{"text": "LONG", "more": [{more}, "LONG"]}}'.replace("LONG", long("y")).encode()
    with pytest.raises(RequestError, match="is a duplicate name"):
        decode(body, Body)


def test_a_huge_number_behind_a_long_text_is_refused() -> None:
    body = f'{{"text": "{long("y")}", "more": {"9" * 30}}}'.encode()
    with pytest.raises(RequestError, match="is too large"):
        decode(body, Body)


def test_a_long_text_arrives_whole() -> None:
    text = long('a"\\\n')
    assert decode(json.dumps({"text": text}).encode(), Body).text == text
