"""Text that knows, for each of its characters, whether it came from outside the template.

`TaintedStr` is a `str`: templates compare, search and cut it as any other. Slicing, stripping,
splitting, joining, replacing, adding and formatting keep the mark of each character; the result of
anything else is marked as a whole. So a template cannot unmark a character.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from string import Formatter
from typing import Any, SupportsIndex

from jinja2 import Undefined

from tampu.chat.segments import Prompt, merged

_OUTSIDE = b"\x01"
_TEMPLATE = b"\x00"
_RUN = re.compile(b"\x00+|\x01+")
_PERCENT = re.compile(r"%(?:\((?P<key>[^)]*)\))?[#0\- +]*\d*(?:\.\d+)?[hlL]?(?P<kind>.)", re.DOTALL)
_FORMATTER = Formatter()
_MISSING = object()
_ATOMS = (bool, int, float, type(None), Undefined)  # their text is the template's


class TaintedStr(str):
    """A text with a mark for each character: 1 if it came from outside, 0 if from the template."""

    __slots__ = ("_marks",)
    _marks: bytes

    @classmethod
    def of(cls, text: str, marks: bytes | None = None) -> TaintedStr:
        """Return text with its marks; all from outside if none are given."""
        marked = cls(text)
        marked._marks = _OUTSIDE * len(marked) if marks is None else marks
        return marked

    # -- pieces of it ----------------------------------------------------------------------------

    def __str__(self) -> str:
        return self

    def __getitem__(self, key: SupportsIndex | slice) -> TaintedStr:
        text = str.__getitem__(self, key)
        if isinstance(key, slice):
            return TaintedStr.of(text, self._marks[key])
        index = key.__index__() % len(self)
        return TaintedStr.of(text, self._marks[index : index + 1])

    def __iter__(self) -> Iterator[str]:
        for index in range(len(self)):
            yield self[index]

    def strip(self, characters: str | None = None, /) -> TaintedStr:
        """As in `str`."""
        return self.lstrip(characters).rstrip(characters)

    def lstrip(self, characters: str | None = None, /) -> TaintedStr:
        """As in `str`."""
        return self[len(self) - len(str.lstrip(self, characters)) :]

    def rstrip(self, characters: str | None = None, /) -> TaintedStr:
        """As in `str`."""
        return self[: len(str.rstrip(self, characters))]

    def removeprefix(self, prefix: str, /) -> TaintedStr:
        """As in `str`."""
        return self[len(prefix) :] if prefix and self.startswith(prefix) else self

    def removesuffix(self, suffix: str, /) -> TaintedStr:
        """As in `str`."""
        return self[: -len(suffix)] if suffix and self.endswith(suffix) else self

    def split(self, sep: str | None = None, maxsplit: SupportsIndex = -1) -> list[str]:
        """As in `str`."""
        return self._located(str.split(self, sep, maxsplit), len(sep or ""))

    def rsplit(self, sep: str | None = None, maxsplit: SupportsIndex = -1) -> list[str]:
        """As in `str`."""
        return self._located(str.rsplit(self, sep, maxsplit), len(sep or ""))

    def _located(self, parts: Iterable[str], skipped: int = 0) -> list[str]:
        """Return parts of this text, which stand in it in this order, with their marks."""
        located: list[str] = []
        position = 0
        for part in parts:
            start = self.find(part, position)
            located.append(self[start : start + len(part)])
            position = start + len(part) + skipped
        return located

    # -- together with others --------------------------------------------------------------------

    def __add__(self, other: str, /) -> TaintedStr:
        return TaintedStr.of(str.__add__(self, other), self._marks + marks_of(other))

    def __radd__(self, other: str, /) -> TaintedStr:
        return TaintedStr.of(str.__add__(other, self), marks_of(other) + self._marks)

    def __mul__(self, times: SupportsIndex, /) -> TaintedStr:
        return TaintedStr.of(str.__mul__(self, times), self._marks * times.__index__())

    __rmul__ = __mul__

    def join(self, parts: Iterable[str], /) -> TaintedStr:
        """As in `str`."""
        parts = list(parts)
        return TaintedStr.of(str.join(self, parts), self._marks.join(map(marks_of, parts)))

    def replace(self, old: str, new: str, count: SupportsIndex = -1, /) -> str:
        """As in `str`; the replacement of text from outside counts as from outside."""
        if not old:
            return TaintedStr.of(str.replace(self, old, new, count))
        parts = str.split(self, old, count)
        pieces: list[str] = []
        position = 0
        for part in parts:
            if position:
                replaced = self._marks[position - len(old) : position]
                pieces.append(TaintedStr.of(new) if _OUTSIDE in replaced else new)
            pieces.append(self[position : position + len(part)])
            position += len(part) + len(old)
        return joined(pieces)

    # -- formatting ------------------------------------------------------------------------------

    def __mod__(self, values: object) -> str:
        return percent_formatted(self, values)

    def __rmod__(self, template: str) -> str:
        return percent_formatted(template, self)

    def __format__(self, specification: str) -> str:
        if not specification:
            return self
        return TaintedStr.of(str.__format__(str.__str__(self), specification))

    def format(self, *values: object, **named: object) -> str:
        """As in `str`."""
        return brace_formatted(self, values, named)

    def format_map(self, named: Mapping[str, object], /) -> str:  # type: ignore[override]
        """As in `str`."""
        return brace_formatted(self, (), named)


def _define(name: str, marked: Callable[[TaintedStr, tuple[Any, ...], Any], Any]) -> None:
    """Give `TaintedStr` a method of `str`, whose result `marked` gives marks."""

    def method(self: TaintedStr, *args: Any, **kwargs: Any) -> Any:
        return marked(self, args, getattr(str, name)(self, *args, **kwargs))

    method.__name__, method.__doc__ = name, f"As `str.{name}`."
    setattr(TaintedStr, name, method)


def _mapped(text: TaintedStr, _: tuple[Any, ...], result: str) -> TaintedStr:
    return TaintedStr.of(result, text._marks if len(result) == len(text) else None)


for _name in ("lower", "upper", "capitalize", "title"):
    _define(_name, _mapped)
for _name in ("partition", "rpartition"):
    _define(_name, lambda text, _, parts: tuple(text._located(parts)))
_define("splitlines", lambda text, _, parts: text._located(parts))
# The other methods of strings that return strings. Bytes count as from outside: `is_marked`.
OTHERS = ("casefold", "center", "expandtabs", "ljust", "rjust", "swapcase", "translate", "zfill")
for _name in OTHERS:
    _define(_name, lambda _text, _, result: TaintedStr.of(result))


def marks_of(text: str) -> bytes:
    """Return the marks of a text; one without any is the template's."""
    return text._marks if isinstance(text, TaintedStr) else _TEMPLATE * len(text)


def marked(value: Any) -> Any:
    """Return plain data with every string in it, keys too, marked as from outside."""
    if isinstance(value, str):
        return TaintedStr.of(value)
    if isinstance(value, Mapping):
        return {marked(key): marked(value[key]) for key in value}
    if isinstance(value, Sequence) and not isinstance(value, bytes | bytearray):
        return [marked(item) for item in value]
    return value


def is_marked(value: object) -> bool:
    """Return whether a value is, or holds, text from outside."""
    waiting = [value]
    while waiting:
        item = waiting.pop()
        if isinstance(item, TaintedStr):
            if _OUTSIDE in item._marks:
                return True
        elif isinstance(item, bytes):  # they have no marks, and may be of a text from outside
            return True
        elif isinstance(item, Mapping):
            waiting += [*item.keys(), *item.values()]
        elif isinstance(item, list | tuple | set | frozenset):
            waiting += item
    return False


def shown(value: object) -> str:
    """Return what a template writes for a value; lists and the like are from outside as a whole."""
    if isinstance(value, str):
        return value
    return str(value) if isinstance(value, _ATOMS) else TaintedStr.of(str(value))


def joined(parts: Iterable[str], separator: str = "") -> str:
    """Return the parts as one text with their marks."""
    parts = list(parts)
    if not any(isinstance(part, TaintedStr) for part in (separator, *parts)):
        return separator.join(parts)
    return TaintedStr.of(separator, marks_of(separator)).join(parts)


def percent_formatted(template: str, values: object) -> str:
    """Return `template % values`, each value with its marks."""
    marks = marks_of(template)
    queue = iter(values) if isinstance(values, tuple) else iter((values,))
    parts: list[str] = []
    plain = str.__str__(template)
    position = 0
    for match in _PERCENT.finditer(plain):
        literal = slice(position, match.start())
        parts.append(TaintedStr.of(plain[literal], marks[literal]))
        position = match.end()
        key, conversion = match["key"], match.group()
        if match["kind"] == "%":
            parts.append(conversion % ())
            continue
        if key is not None and isinstance(values, Mapping):
            value = values[key]
            conversion = conversion.replace(f"({key})", "", 1)
        else:
            value = next(queue, _MISSING)
            if value is _MISSING:
                raise TypeError("not enough arguments for format string")
        if conversion == "%s":
            parts.append(shown(value))
        else:
            text = str.__mod__(conversion, (value,))
            is_letter = match["kind"] == "c"  # of a number, which has no mark
            parts.append(TaintedStr.of(text) if is_letter or is_marked(value) else text)
    parts.append(TaintedStr.of(plain[position:], marks[position:]))
    return joined(parts)


def brace_formatted(template: str, values: Sequence[object], named: Mapping[str, object]) -> str:
    """Return `template.format(*values, **named)`; fields may be numbers or names, nothing more.

    Raises:
        ValueError: for a field with an attribute, an index or a field in its specification.
    """
    parts: list[str] = []
    is_outside = _OUTSIDE in marks_of(template)
    following = iter(range(len(values) + 1))
    for literal, field, specification, conversion in _FORMATTER.parse(template):
        parts.append(TaintedStr.of(literal) if is_outside else literal)
        if field is None:
            continue
        if re.search(r"[.\[]", field) or "{" in (specification or ""):
            raise ValueError("a format of a template may name values only")
        name = field or str(next(following))
        value = values[int(name)] if name.isdigit() else named[name]
        if not specification and conversion in {None, "s"}:
            parts.append(shown(value))
        else:
            text = _FORMATTER.format_field(
                _FORMATTER.convert_field(value, conversion), specification or ""
            )
            is_letter = (specification or "").endswith("c")
            parts.append(TaintedStr.of(text) if is_letter or is_marked(value) else text)
    return joined(parts)


def pieces(texts: Iterable[str]) -> Prompt:
    """Return texts as the pieces of a prompt."""

    def runs() -> Iterator[tuple[str, bool]]:
        for text in texts:
            if not isinstance(text, TaintedStr):
                yield text, True
                continue
            plain = str.__str__(text)
            for run in _RUN.finditer(text._marks):
                yield plain[run.start() : run.end()], run.group().startswith(_TEMPLATE)

    return merged(runs())
