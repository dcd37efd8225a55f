"""Large request bodies: long texts are not read twice; mistakes around them are found."""

from __future__ import annotations

import json
from typing import Any

import msgspec
import pytest

from tampu.errors import RequestError
from tampu.server.front.body import decode

LONG = 200_000


class Body(msgspec.Struct):
    """A request."""

    text: str
    more: Any = None


def long(part: str) -> str:
    """Return a long text that is mostly this."""
    return part * (LONG // len(part))


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
