"""JSON with long texts: read and written as by msgspec, in parts."""

from __future__ import annotations

import json
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tampu.long_json import LONG, decode, encode, shortened

SIZE = 3 * LONG
PARTS = [
    "x", '"', "\\", '\\"', "\n", "é", "\u2028", '": ', "{[,:", "😀", "a😀", "中", "\\ud83d", "\x00",
]  # fmt: skip
texts = st.text(
    st.sampled_from(['"', "\\", "\n", "a", " ", "é", "😀", "\x7f", ":", ","]), max_size=9
).map(lambda part: part * 9)
every_part = pytest.mark.parametrize("part", PARTS)
either_way = pytest.mark.parametrize("ensures_ascii", [True, False])


class Inner(msgspec.Struct, frozen=True):
    """A struct that cannot be changed."""

    text: str
    several: tuple[str, ...] = ()


class Outer(msgspec.Struct):
    """A struct with all kinds of values."""

    inner: list[Inner]
    more: dict[str, Any]
    text: str | None = None


def long(part: str) -> str:
    """Return a long text that is mostly this."""
    return part * (SIZE // len(part))


@every_part
@either_way
def test_long_texts_arrive_whole(part: str, *, ensures_ascii: bool) -> None:
    for shift in (0, 1, 2, 5):  # the ends of parts lie elsewhere
        value = {
            "a": ["y" * shift + long(part), "short", 1],
            "b": {"c": f'{long(part)}"'},
            long("k"): None if shift else long(part),
            "d": "",
        }
        body = json.dumps(value, ensure_ascii=ensures_ascii).encode()
        assert decode(body, dict[str, Any]) == value


@every_part
@either_way
def test_long_texts_are_left_out_and_the_rest_stays(part: str, *, ensures_ascii: bool) -> None:
    value = {"a": [long(part), "short"], long("k"): long(part)}
    body = bytearray(json.dumps(value, ensure_ascii=ensures_ascii, indent=1).encode())
    short = shortened(body)
    assert len(short.data) < SIZE + 1000
    found = json.loads(short.data)
    assert [*found] == ["a", long("k")]
    assert [*short.texts] == [found["a"][0], found[long("k")]]
    assert found["a"][1] == "short"


@given(
    st.recursive(texts | st.integers(), lambda each: st.lists(each) | st.dictionaries(texts, each))
)
def test_json_without_long_texts_stays_as_it_is(value: object) -> None:
    body = json.dumps(value).encode()
    assert shortened(body).data == body


def test_structs_of_all_kinds_are_filled() -> None:
    text = long("é")
    value = {
        "inner": [{"text": text, "several": ["x", text]}, {"text": "y"}],
        "more": {"z": [text, {"deep": text}]},
        "text": text,
    }
    found = decode(msgspec.json.encode(value), Outer)
    inner = [Inner(text, ("x", text)), Inner("y")]
    assert found == Outer(inner, {"z": [text, {"deep": text}]}, text)


@every_part
def test_what_is_written_is_what_msgspec_writes(part: str) -> None:
    value = {"a": [long(part), "short", 1.5, True, None], "b": {"c": (long(part), long(part))}}
    assert encode(value) == msgspec.json.encode(value)


def test_a_lone_surrogate_is_not_written() -> None:
    with pytest.raises(UnicodeEncodeError):
        encode([long("x") + "\ud83d"])


@pytest.mark.parametrize(
    "body",
    [
        b'["LONG', b'["LONG\\', b'["LONG\\"]', b'["LONG\\u12"]', b'["LONG\\x"]', b'["LONG\xff"]',
        b'["LONG\\ud83d"]', b'["LONG\n"]', b'["LONG"', b'["LONG" "LONG"]', b'"LONG"LONG', b'LONG"',
        b'{"LONG"}', b'{"LONG": }', b'["LONG",]', b'[1, "LONG"',
    ],
)  # fmt: skip
def test_what_is_no_json_is_refused(body: bytes) -> None:
    for part in ("x", "é", '\\"', "\\ud83d\\ude00"):
        whole = body.replace(b"LONG", (part * (SIZE // len(part))).encode())
        with pytest.raises(ValueError, match=r".") as wanted:
            msgspec.json.decode(whole)
        with pytest.raises(type(wanted.value)):
            decode(whole, object)


@every_part
@either_way
def test_a_call_takes_only_some_of_a_long_text(
    monkeypatch: pytest.MonkeyPatch, part: str, *, ensures_ascii: bool
) -> None:
    sizes: list[int] = []
    read, write = msgspec.json.decode, msgspec.json.encode

    def measured_decode(data: Any, **more: Any) -> Any:
        sizes.append(len(data))
        return read(data, **more)

    def measured_encode(value: Any) -> bytes:
        found = write(value)
        sizes.append(len(found))
        return found

    monkeypatch.setattr(msgspec.json, "decode", measured_decode)
    monkeypatch.setattr(msgspec.json, "encode", measured_encode)
    text = long(part)
    assert decode(json.dumps([text], ensure_ascii=ensures_ascii).encode(), list[str]) == [text]
    encode([text])
    assert len(sizes) > 10
    assert max(sizes) <= 2 * LONG
