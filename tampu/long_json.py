"""JSON with long texts, read and written in parts.

Python's lock is held during a call of msgspec: for a text of 8 MB that is 20 ms or more, in which
neither the event loop nor any other thread runs. So long texts are replaced by short ones, each of
them once, and are read and written some thousand characters at a time.
"""

from __future__ import annotations

import re
import secrets
from collections.abc import Mapping
from typing import Any, TypeVar

import msgspec
from msgspec.structs import force_setattr

T = TypeVar("T")

LONG = 64 * 1024
"""Bytes of JSON or characters of a text; what has fewer is read and written at once."""

_STEP = 16 * 1024  # bytes; a call of `re` or msgspec takes at most this much of a text
# Without possessive quantifiers: those of groups match nothing in Python 3.11.0 to 3.11.4.
_WHOLE_TEXTS = re.compile(rb'(?:[^"]+|"[^"\\]*(?:\\.[^"\\]*)*")*', re.DOTALL)
# No escape is cut, and no pair of escapes for one character.
_UNITS = re.compile(
    rb'(?:[^"\\]+|\\[^u]|\\u[dD][89abAB][^"\\]{2}(?:\\u[^"\\]{4})?|\\u(?![dD][89abAB])[^"\\]{4})*',
    re.DOTALL,
)
_ESCAPE = len(r"\ud83d")
_AFTER_KEY = re.compile(rb"\s*:")


class Shortened:
    """A JSON text in which short texts stand for the long ones.

    Attributes:
        data: the JSON text.
        texts: the long texts, by those that stand for them.
    """

    def __init__(self, data: bytes | bytearray, texts: Mapping[str, str]) -> None:
        self.data = data
        self.texts = texts

    def filled(self, value: T) -> T:
        """Return a value that was read from `data` with its long texts; structs are changed."""
        filled: T = _filled(value, self.texts) if self.texts else value
        return filled


def shortened(data: bytes | bytearray) -> Shortened:
    """Return a JSON text with short texts for its long ones, except for names in objects.

    What is not JSON is not repaired: reading the result fails.
    """
    mark = secrets.token_hex(8)  # no text of the client's is like those that stand for others
    kept: list[bytes | bytearray] = []
    texts: dict[str, str] = {}
    copied = position = 0
    while (position := _passed_texts(data, position)) < len(data):
        begin = position + 1
        end, parts = _read_text(data, begin)
        if end is None:  # it does not end, or is not JSON: msgspec says where
            return Shortened(data, {})
        position = end + 1
        if not _AFTER_KEY.match(data, position):
            name = f"{mark}-{len(texts)}"
            texts[name] = "".join(parts)
            kept += [data[copied:begin], name.encode()]
            copied = end
    return Shortened(b"".join((*kept, data[copied:])), texts)


def decode(data: bytes | bytearray, kind: type[T]) -> T:
    """Return a JSON text as a value of a type, as `msgspec.json.decode` does.

    Raises:
        ValueError: as there.
    """
    if len(data) <= LONG:
        return msgspec.json.decode(data, type=kind)
    short = shortened(data)
    return short.filled(msgspec.json.decode(short.data, type=kind))


def encode(value: object) -> bytes:
    """Return plain data as JSON, as `msgspec.json.encode` does.

    Raises:
        TypeError: for what is not plain data.
        UnicodeEncodeError: for a lone surrogate.
    """
    mark = secrets.token_hex(8)
    texts: list[str] = []
    first, *others = msgspec.json.encode(_emptied(value, texts, mark)).split(mark.encode())
    found = [first]
    for text, rest in zip(texts, others, strict=True):
        for begin in range(0, len(text), _STEP):
            found.append(msgspec.json.encode(text[begin : begin + _STEP])[1:-1])
        found.append(rest)
    return b"".join(found)


def _passed_texts(data: bytes | bytearray, position: int) -> int:
    """Return where the first text begins that is long or does not end; else the end."""
    while position < len(data):
        match = _WHOLE_TEXTS.match(data, position, position + LONG)
        if match is None or match.end() == position:
            return position
        position = match.end()
    return position


def _read_text(data: bytes | bytearray, begin: int) -> tuple[int | None, list[str]]:
    """Return the place of the quote that ends a text, and the text in parts; None: it has none."""
    parts: list[str] = []
    while True:
        match = _UNITS.match(data, begin, begin + _STEP)
        end = match.end() if match else begin
        if end < len(data) and data[end] != ord('"'):
            while end > begin and data[end] & 0xC0 == 0x80:  # within a character
                end -= 1
        if end == begin:
            return (begin if data[begin : begin + 1] == b'"' else None), parts
        part = _part(data, begin, end)
        if part is None:  # it may end with the first of two escapes for a character
            end = max(end - _ESCAPE, begin)
            part = _part(data, begin, end)
        if not part:
            return None, []
        parts.append(part)
        begin = end


def _part(data: bytes | bytearray, begin: int, end: int) -> str | None:
    """Return a part of a text; None if it is not JSON."""
    try:
        return msgspec.json.decode(b'"%b"' % bytes(data[begin:end]), type=str)
    except ValueError:
        return None


def _filled(value: Any, texts: Mapping[str, str]) -> Any:
    """Return a value with its long texts."""
    if isinstance(value, str):
        return texts.get(value, value)
    if isinstance(value, msgspec.Struct):
        for name in value.__struct_fields__:
            before = getattr(value, name)
            after = _filled(before, texts)
            if after is not before:
                force_setattr(value, name, after)
    elif isinstance(value, dict):
        for key in value:
            value[key] = _filled(value[key], texts)
    elif isinstance(value, list):
        value[:] = [_filled(each, texts) for each in value]
    elif isinstance(value, tuple):
        return tuple(_filled(each, texts) for each in value)
    return value


def _emptied(value: Any, texts: list[str], mark: str) -> Any:
    """Return plain data with a mark in place of each long text, which is added to `texts`."""
    if isinstance(value, str):
        if len(value) <= LONG:
            return value
        texts.append(value)
        return mark
    if isinstance(value, Mapping):
        return {key: _emptied(each, texts, mark) for key, each in value.items()}
    if isinstance(value, list | tuple):
        return [_emptied(each, texts, mark) for each in value]
    return value
