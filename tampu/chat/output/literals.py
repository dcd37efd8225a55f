"""Values as models write them: JSON, Python, and Gemma's JSON with quotes that are tokens."""

from __future__ import annotations

import json
import re
from decimal import Decimal
from typing import Any, NoReturn

import msgspec

_MAX_DEPTH = 64
_NAME = re.compile(r"[A-Za-z_][\w.\-]*")
_NUMBER = re.compile(r"[-+]?(?:\d+\.?\d*|\.\d+)(?:[eE][-+]?\d+)?")
_SPACE = re.compile(r"\s*")
_STRING = re.compile(r'"(?:[^"\\]|\\.)*"', re.DOTALL)
_CONTROL = re.compile(r"[\x00-\x1f]")
_ESCAPE = re.compile(r"\\(?:x([0-9a-fA-F]{2})|u([0-9a-fA-F]{4})|(.))", re.DOTALL)
_ESCAPED = {"n": "\n", "t": "\t", "r": "\r", "b": "\b", "f": "\f", "0": "\0", "\n": ""}
CONSTANTS = {"true": True, "false": False, "null": None, "True": True, "False": False,
             "None": None}  # fmt: skip
_EXACT = msgspec.json.Decoder(float_hook=Decimal)
_ENCODER = msgspec.json.Encoder(decimal_format="number")
_MEMBERS = msgspec.json.Decoder(dict[str, msgspec.Raw])
_ITEMS = msgspec.json.Decoder(list[msgspec.Raw])


def decoded_json(text: str) -> Any:
    """Return the value of a JSON text; strings may have line breaks as they are, as code has.

    Raises:
        ValueError: if it is not JSON, or has lone surrogates.
    """
    return _decoded(text)[0]


def exact_json(text: str) -> Any:
    """As `decoded_json`, but fractions and exponents are Decimal, with all their digits."""
    return _EXACT.decode(strict_json(text))


def strict_json(text: str) -> str:
    """Return a JSON text whose strings have no control characters, else as it was written.

    Raises:
        ValueError: as `decoded_json`.
    """
    return _decoded(text)[1]


def encoded_json(value: object) -> str:
    """Return a value as JSON; a Decimal is a number with all its digits."""
    return _ENCODER.encode(value).decode()


def json_members(text: str) -> dict[str, str]:
    """Return the names and the texts of the values of a JSON object.

    Raises:
        ValueError: if it is not one.
    """
    return {name: bytes(value).decode() for name, value in _MEMBERS.decode(text).items()}


def json_items(text: str) -> list[str]:
    """Return the texts of the values of a JSON list."""
    return [bytes(value).decode() for value in _ITEMS.decode(text)]


def _decoded(text: str) -> tuple[Any, str]:
    """Return the value of a JSON text, and the text that was read."""
    try:
        return msgspec.json.decode(text.encode()), text
    except (msgspec.DecodeError, RecursionError) as error:
        escaped = _STRING.sub(lambda match: escaped_controls(match.group()), text)
        if escaped == text:
            raise ValueError(str(error)) from None
    return _decoded(escaped)


def escaped_controls(text: str) -> str:
    """Return text of a JSON string with its control characters as JSON has them."""
    return _CONTROL.sub(lambda match: json.dumps(match.group())[1:-1], text)


def json_object(text: str) -> dict[str, Any]:
    """Return the JSON object in a text.

    Raises:
        ValueError: if it is not one.
    """
    return _object(text)[0]


def object_text(text: str) -> str:
    """Return the text of a JSON object, as `strict_json`.

    Raises:
        ValueError: if it is not one.
    """
    return _object(text)[1]


def _object(text: str) -> tuple[dict[str, Any], str]:
    value, strict = _decoded(text)
    if not isinstance(value, dict):
        raise ValueError("not a JSON object")
    return value, strict


def json_sequence(text: str, separators: str) -> list[str]:
    """Return JSON texts that stand one after the other, with `separators` and space between them.

    They are as `strict_json` returns them.

    Raises:
        ValueError: if any part is not JSON.
    """
    decoder = json.JSONDecoder(strict=False)
    between = re.compile(f"[{re.escape(separators)}\\s]*")
    texts: list[str] = []
    position = _end(between, text, 0)
    while position < len(text):
        start = position
        try:
            _, position = decoder.raw_decode(text, start)
        except RecursionError as error:
            raise ValueError(str(error)) from None
        texts.append(strict_json(text[start:position]))
        position = _end(between, text, position)
    return texts


def _end(pattern: re.Pattern[str], text: str, position: int) -> int:
    match = pattern.match(text, position)
    return match.end() if match else position


class Literals:
    """Reads calls and values from a text.

    Args:
        text: to read.
        quote: the text around strings; None: Python's quotes.

    Every method raises ValueError for other text.
    """

    def __init__(self, text: str, quote: str | None = None) -> None:
        self._text = text
        self._quote = quote
        self._position = 0

    def calls(self) -> list[tuple[str, dict[str, Any]]]:
        """Return `name(key=value, ...)` calls, in a list or one after the other, to the end."""
        in_list = self._skip("[")
        found = [self._call()]
        while not self._at_end() and not self._peek("]"):
            self._skip(",")
            self._skip(";")
            found.append(self._call())
        if in_list:
            self._expect("]")
        if not self._at_end():
            self._fail("the end")
        return found

    def named_object(self) -> tuple[str, dict[str, Any]]:
        """Return `name{key:value,...}`, to the end."""
        name = self._name()
        value = self.value()
        if not isinstance(value, dict) or not self._at_end():
            self._fail("an object")
        return name, value

    def value(self, depth: int = 0) -> Any:
        """Return the next value."""
        if depth > _MAX_DEPTH:
            self._fail("less nesting")
        for begin, end in ("[]", "()"):
            if self._skip(begin):
                return self._items(end, depth)
        if self._skip("{"):
            return self._members(depth)
        if self._peek(self._quote) if self._quote else self._peek('"') or self._peek("'"):
            return self._string()
        if match := _NUMBER.match(self._text, self._position):
            self._position = match.end()
            return exact_json(_json_number(match.group()))
        name = self._name()
        if name not in CONSTANTS:
            self._fail("a value")
        return CONSTANTS[name]

    def _call(self) -> tuple[str, dict[str, Any]]:
        name = self._name()
        self._expect("(")
        arguments: dict[str, Any] = {}
        while not self._skip(")"):
            key = self._name()
            self._expect("=")
            arguments[key] = self.value()
            if not self._skip(",") and not self._peek(")"):
                self._fail(")")
        return name, arguments

    def _items(self, end: str, depth: int) -> list[Any]:
        items: list[Any] = []
        while not self._skip(end):
            items.append(self.value(depth + 1))
            if not self._skip(",") and not self._peek(end):
                self._fail(end)
        return items

    def _members(self, depth: int) -> dict[str, Any]:
        members: dict[str, Any] = {}
        while not self._skip("}"):
            is_quoted = any(self._peek(quote) for quote in (self._quote, '"', "'") if quote)
            key = self._string() if is_quoted else self._name()
            self._expect(":")
            members[key] = self.value(depth + 1)
            if not self._skip(",") and not self._peek("}"):
                self._fail("}")
        return members

    def _string(self) -> str:
        if self._quote and self._skip(self._quote):
            start = self._position
            end = self._text.find(self._quote, start)
            if end < 0:
                self._fail(self._quote)
            self._position = end + len(self._quote)
            return self._text[start:end]
        quotes = (quote for quote in ('"""', "'''", '"', "'") if self._peek(quote))
        return self._python_string(next(quotes, "a string"))

    def _python_string(self, quote: str) -> str:
        self._expect(quote)
        start = end = self._position
        while not self._text.startswith(quote, end):
            end += 2 if self._text.startswith("\\", end) else 1
            if end >= len(self._text):
                self._fail(quote)
        self._position = end + len(quote)
        text = _ESCAPE.sub(_unescaped, self._text[start:end])
        text.encode()
        return text

    def _name(self) -> str:
        self._space()
        match = _NAME.match(self._text, self._position)
        if not match:
            self._fail("a name")
        self._position = match.end()
        return match.group()

    def _space(self) -> None:
        match = _SPACE.match(self._text, self._position)
        self._position = match.end() if match else self._position

    def _at_end(self) -> bool:
        self._space()
        return self._position == len(self._text)

    def _peek(self, text: str) -> bool:
        self._space()
        return self._text.startswith(text, self._position)

    def _skip(self, text: str) -> bool:
        found = self._peek(text)
        self._position += len(text) if found else 0
        return found

    def _expect(self, text: str) -> None:
        if not self._skip(text):
            self._fail(text)

    def _fail(self, expected: str) -> NoReturn:
        raise ValueError(f"{expected!r} expected at {self._position}")


def _unescaped(match: re.Match[str]) -> str:
    code = match[1] or match[2]
    if code:
        return chr(int(code, 16))
    return _ESCAPED.get(match[3], match[3] if match[3] in "\\'\"" else match.group())


def _json_number(text: str) -> str:
    digits = text.removeprefix("+")
    digits = re.sub(r"^(-?)\.", r"\g<1>0.", digits)
    digits = re.sub(r"\.(?=$|[eE])", ".0", digits)
    return re.sub(r"^(-?)0+(?=\d)", r"\1", digits)
