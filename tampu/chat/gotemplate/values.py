"""The values of templates, and how Go sees them: truth, order, text, JSON.

Values are None, bool, int, float, str, lists, mappings and records. A record is what a struct is in
Go: it always counts as true, its fields have a fixed order, and a field that it lacks is an error.
"""

from __future__ import annotations

import json
import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from decimal import Decimal
from typing import Any

from tampu.chat.taint import TaintedStr, is_marked, joined
from tampu.errors import RequestError

MAX_DEPTH = 100

_EXPONENT_FROM = 21

# What Go escapes and `json.dumps` does not.
_ESCAPED = str.maketrans({character: f"\\u{ord(character):04x}" for character in "<>&\u2028\u2029"})


@dataclass(frozen=True, slots=True)
class Record:
    """Named fields in their order.

    Attributes:
        fields: by their names in templates.
        data: what it is in JSON; None: the fields.
        is_json: whether it is written as that JSON; else field by field, in braces.
    """

    fields: Mapping[str, Any]
    data: Any = None
    is_json: bool = False


class JsonMap(dict[str, Any]):
    """A map that is written as JSON."""


class JsonList(list[Any]):
    """A list that is written as JSON."""


class GoTemplateError(RequestError):
    """A template that fails on what it was given."""


def fault(reason: str) -> GoTemplateError:
    """Return the error of a template that fails."""
    return GoTemplateError(f"the model's template: {reason}")


def kind_of(value: object) -> str:
    """Return what a value is called in messages."""
    match value:
        case None:
            return "nil"
        case bool():
            return "a truth value"
        case int() | float():
            return "a number"
        case str():
            return "a text"
        case Record():
            return "a record"
        case Mapping():
            return "a map"
    return "a list"


def is_true(value: object) -> bool:
    """Return whether a value counts as true."""
    return True if isinstance(value, Record) else bool(value)


def are_equal(left: object, right: object) -> bool:
    """Return whether two values are equal.

    Raises:
        GoTemplateError: if they are of kinds that are not compared.
    """
    if left is None or right is None:
        return left is right
    for value in (left, right):
        if not isinstance(value, str | bool | int | float):
            raise fault(f"{kind_of(value)} cannot be compared")
    if _basic(left) is not _basic(right):
        raise fault(f"{kind_of(left)} and {kind_of(right)} cannot be compared")
    return left == right


def is_less(left: object, right: object) -> bool:
    """Return whether a value comes before another.

    Raises:
        GoTemplateError: if they have no order.
    """
    if isinstance(left, str) and isinstance(right, str):
        return left.encode("utf-8", "surrogatepass") < right.encode("utf-8", "surrogatepass")
    if _is_number(left) and _is_number(right) and _basic(left) is _basic(right):
        return bool(left < right)  # type: ignore[operator]  # both are numbers
    raise fault(f"{kind_of(left)} and {kind_of(right)} have no order")


def _is_number(value: object) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)


def _basic(value: object) -> type:
    for kind in (bool, str, int, float):
        if isinstance(value, kind):
            return kind
    return object


def text_of(value: object, *, depth: int = 0) -> str:
    """Return what is written for a value, as Go's `%v` has it; text from outside keeps its marks.

    Raises:
        GoTemplateError: for what is nested too deeply.
    """
    if depth > MAX_DEPTH:
        raise fault(f"it writes more than {MAX_DEPTH} levels of nesting")
    if isinstance(value, str):
        return value
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, int):
        return str(value)
    if isinstance(value, float):
        return _float_text(value, lowest=-4)
    if isinstance(value, JsonMap | JsonList) or (isinstance(value, Record) and value.is_json):
        return to_json(value)
    if isinstance(value, Record):
        return _enclosed("{", value.fields.values(), "}", depth)
    if isinstance(value, Mapping):
        pairs = [joined([key, ":", text_of(value[key], depth=depth + 1)]) for key in sorted(value)]
        return _enclosed("map[", pairs, "]", depth)
    if isinstance(value, Sequence):
        return _enclosed("[", value, "]", depth)
    return "<nil>"


def _enclosed(begin: str, values: Any, end: str, depth: int) -> str:
    texts = [text_of(value, depth=depth + 1) for value in values]
    return joined([begin, joined(texts, " "), end])


def to_json(value: object) -> str:
    """Return a value as Go's `json.Marshal` writes it: compact, `<`, `>` and `&` escaped.

    Raises:
        GoTemplateError: for numbers that JSON has not, and what is nested too deeply.
    """
    return joined(_json(value, 0))


def _plain(value: object) -> object:
    if isinstance(value, Record):
        return value.fields if value.data is None else value.data
    return value


def _json(value: object, depth: int) -> Iterator[str]:
    if depth > MAX_DEPTH:
        raise fault(f"it writes JSON with more than {MAX_DEPTH} levels of nesting")
    value = _plain(value)
    if isinstance(value, Mapping):
        yield "{"
        for index, (key, item) in enumerate(value.items()):
            yield "," if index else ""
            yield _quoted(key)
            yield ":"
            yield from _json(item, depth + 1)
        yield "}"
    elif isinstance(value, Sequence) and not isinstance(value, str):
        yield "["
        for index, item in enumerate(value):
            yield "," if index else ""
            yield from _json(item, depth + 1)
        yield "]"
    else:
        yield _atom(value)


def _atom(value: object) -> str:
    if isinstance(value, str):
        return _quoted(value)
    if isinstance(value, bool) or value is None:
        return "null" if value is None else "true" if value else "false"
    if isinstance(value, int):
        return str(value)
    if isinstance(value, float) and math.isfinite(value):
        return _float_text(value, lowest=-6, digits=1)
    raise fault(f"{str(value)[:40]} has no JSON")


def _quoted(text: str) -> str:
    plain = str.__str__(text).encode("utf-8", "replace").decode()  # no halves of characters
    quoted = json.dumps(plain, ensure_ascii=False).translate(_ESCAPED)
    return TaintedStr.of(quoted) if is_marked(text) else quoted


def _float_text(value: float, *, lowest: int, digits: int = 2) -> str:
    """Return a number's shortest text; below 10 to the power `lowest` or from 21 with an exponent.

    Args:
        value: the number.
        lowest: the smallest power of ten without an exponent.
        digits: the least of the exponent.
    """
    if not math.isfinite(value):
        return "NaN" if math.isnan(value) else "+Inf" if value > 0 else "-Inf"
    exact = Decimal(repr(value))
    power = exact.adjusted() if value else 0
    if lowest <= power < _EXPONENT_FROM:
        return f"{exact.normalize():f}"
    sign = "-" if power < 0 else "+"
    return f"{exact.scaleb(-power).normalize():f}e{sign}{abs(power):0{digits}d}"
