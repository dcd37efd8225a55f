"""The functions that templates may call: Go's own, and those that Ollama adds."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from datetime import datetime, timedelta
from typing import Any

from tampu.chat.budget import MAX_WIDTH
from tampu.chat.gotemplate.values import (
    Record,
    are_equal,
    fault,
    is_less,
    is_true,
    kind_of,
    text_of,
    to_json,
)
from tampu.chat.taint import TaintedStr, is_marked, joined, marks_of

_VERB = re.compile(r"%(?P<flags>[-+# 0]*)(?P<width>\d*)(?:\.(?P<precision>\d*))?(?P<verb>.?)", re.S)
_TYPES = {"integer": "number", "float": "number", "array": "any[]"}

Arguments = Sequence[Any]


def call(name: str, arguments: Arguments) -> Any:
    """Return what a function of `FUNCTIONS` gives for arguments.

    Raises:
        GoTemplateError: for a wrong number or type of arguments.
    """
    function, least, most = FUNCTIONS[name]
    if not least <= len(arguments) <= most:
        wanted = str(least) if most == least else f"{least} or more" if most == _MANY else "fewer"
        raise fault(f"{name} takes {wanted} arguments, not {len(arguments)}")
    return function(arguments)


def _is_less_or_equal(arguments: Arguments) -> bool:
    return is_less(*arguments) or are_equal(*arguments)


def _len(arguments: Arguments) -> int:
    """A text's length is in bytes, as in Go."""
    value = arguments[0]
    if isinstance(value, str):
        return len(value.encode("utf-8", "surrogatepass"))
    if isinstance(value, Mapping | Sequence):
        return len(value)
    raise fault(f"len of {kind_of(value)}")


def _index(arguments: Arguments) -> Any:
    value = arguments[0]
    for key in arguments[1:]:
        if isinstance(value, Mapping):
            if not isinstance(key, str):
                raise fault(f"index of a map with {kind_of(key)}")
            value = value.get(key)
        elif isinstance(value, str):
            raw = value.encode("utf-8", "surrogatepass")
            value = raw[_place(key, len(raw) - 1)]
        elif isinstance(value, Sequence):
            value = value[_place(key, len(value) - 1)]
        else:
            raise fault(f"index of {kind_of(value)}")
    return value


def _slice(arguments: Arguments) -> Any:
    value = arguments[0]
    if isinstance(value, str):
        return _sliced_text(value, arguments[1:])
    if not isinstance(value, Sequence):
        raise fault(f"slice of {kind_of(value)}")
    first, last = _borders(arguments[1:], len(value))
    return value[first:last]


def _sliced_text(text: str, arguments: Arguments) -> str:
    raw = text.encode("utf-8", "surrogatepass")
    first, last = _borders(arguments, len(raw))
    try:
        begin = len(raw[:first].decode("utf-8", "surrogatepass"))
        size = len(raw[first:last].decode("utf-8", "surrogatepass"))
    except UnicodeDecodeError as error:
        raise fault("slice cuts a character in two") from error
    return text[begin : begin + size]


def _borders(arguments: Arguments, length: int) -> tuple[int, int]:
    first = _place(arguments[0], length) if arguments else 0
    last = _place(arguments[1], length) if len(arguments) > 1 else length
    if first > last:
        raise fault(f"slice from {first} to {last}")
    return first, last


def _place(value: object, largest: int) -> int:
    if isinstance(value, bool) or not isinstance(value, int):
        raise fault(f"{kind_of(value)} is not a valid index")
    if not 0 <= value <= largest:
        raise fault(f"index {value} is out of range")
    return value


def _print(arguments: Arguments) -> str:
    """Between two values of which neither is a text comes a space, as in Go."""
    parts: list[str] = []
    for index, value in enumerate(arguments):
        if index and not isinstance(value, str) and not isinstance(arguments[index - 1], str):
            parts.append(" ")
        parts.append(text_of(value))
    return joined(parts)


def _printf(arguments: Arguments) -> str:
    pattern, *values = arguments
    if not isinstance(pattern, str):
        raise fault(f"printf with {kind_of(pattern)} as its pattern")
    waiting = iter(values)
    parts: list[str] = []
    place = 0
    for match in _VERB.finditer(pattern):
        parts.append(pattern[place : match.start()])
        place = match.end()
        if match["verb"] == "%":
            parts.append("%")
            continue
        try:
            value = next(waiting)
        except StopIteration:
            raise fault("printf has too few values") from None
        parts.append(_formatted(match, value))
    if any(True for _ in waiting):
        raise fault("printf has too many values")
    return joined([*parts, pattern[place:]])


def _formatted(match: re.Match[str], value: object) -> str:
    width = int(match["width"] or 0)
    precision = match["precision"]
    if width > MAX_WIDTH or int(precision or 0) > MAX_WIDTH:
        raise fault(f"printf with a width of more than {MAX_WIDTH}")
    text = _converted(match["verb"], value, None if precision is None else int(precision or 0))
    padding = max(0, width - len(text))
    if not padding:
        return text
    if "-" in match["flags"]:
        return joined([text, " " * padding])
    return joined([("0" if "0" in match["flags"] else " ") * padding, text])


def _converted(verb: str, value: object, precision: int | None) -> str:
    is_number = isinstance(value, int | float) and not isinstance(value, bool)
    match verb:
        case "v":
            return text_of(value)
        case "s" if isinstance(value, str | Record | Mapping | list):
            text = text_of(value)
            return text if precision is None else text[:precision]
        case "q" if isinstance(value, str):
            return _go_quoted(value)
        case "d" if is_number and isinstance(value, int):
            return str(value)
        case "f" if isinstance(value, float):
            return f"{value:.{6 if precision is None else precision}f}"
        case "t" if isinstance(value, bool):
            return text_of(value)
        case "x" | "X" if is_number and isinstance(value, int):
            return f"{value:{verb}}"
    raise fault(f"printf cannot write {kind_of(value)} as %{verb}")


def _go_quoted(text: str) -> str:
    escapes = {'"': '\\"', "\\": "\\\\", "\n": "\\n", "\r": "\\r", "\t": "\\t"}
    parts: list[str] = ['"']
    for character in text:
        found = escapes.get(character)
        if found is None:
            is_shown = character.isprintable()
            found = character if is_shown else f"\\u{ord(character):04x}"
        parts.append(TaintedStr.of(found) if any(marks_of(character)) else found)
    return joined([*parts, '"'])


def _date(days_ago: int) -> str:
    return f"{datetime.now().astimezone() - timedelta(days=days_ago):%Y-%m-%d}"


def _typescript(value: object) -> str:
    """Return the TypeScript type of a tool's property."""
    fields = value.fields if isinstance(value, Record) else {}
    if options := fields.get("AnyOf"):
        return joined(map(_typescript, options), " | ")
    types = fields.get("Type") or []
    names = [types] if isinstance(types, str) else list(types)
    if not names:
        return "any"
    texts = [TaintedStr.of(_TYPES.get(name, name)) if is_marked(name) else name for name in names]
    return joined(texts, " | ")


_MANY = 1 << 31
# Each function with the fewest and the most arguments.
FUNCTIONS: Mapping[str, tuple[Callable[[Arguments], Any], int, int]] = {
    "not": (lambda values: not is_true(values[0]), 1, 1),
    "eq": (lambda values: any(are_equal(values[0], other) for other in values[1:]), 2, _MANY),
    "ne": (lambda values: not are_equal(*values), 2, 2),
    "lt": (lambda values: is_less(*values), 2, 2),
    "le": (_is_less_or_equal, 2, 2),
    "gt": (lambda values: not _is_less_or_equal(values), 2, 2),
    "ge": (lambda values: not is_less(*values), 2, 2),
    "len": (_len, 1, 1),
    "index": (_index, 1, _MANY),
    "slice": (_slice, 1, 4),
    "print": (_print, 0, _MANY),
    "printf": (_printf, 1, _MANY),
    "println": (lambda values: joined([joined(map(text_of, values), " "), "\n"]), 0, _MANY),
    "json": (lambda values: to_json(values[0]), 1, 1),
    "currentDate": (lambda _: _date(0), 0, _MANY),  # a format is ignored, as Ollama does
    "yesterdayDate": (lambda _: _date(1), 0, _MANY),
    "toTypeScriptType": (lambda values: _typescript(values[0]), 1, 1),
}
NAMES = frozenset({*FUNCTIONS, "and", "or"})  # those two stop at what decides
