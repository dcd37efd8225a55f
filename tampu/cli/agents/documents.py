"""Settings files of other programs, changed key by key: JSON, and TOML with its comments.

A change is written only if the changed file, read again, differs in what was to be changed alone.
"""

from __future__ import annotations

import copy
import json
import re
import tomllib
from abc import ABC, abstractmethod
from collections.abc import Sequence
from typing import Any, TypeAlias

import msgspec

from tampu.errors import SettingsError

_INDENT = re.compile(r"^([ \t]+)\S", re.M)
_HEADER = re.compile(r"^[ \t]*\[", re.M)
MISSING = msgspec.UNSET


class Item(msgspec.Struct, frozen=True):
    """The object of a list whose key `name` is `value`."""

    name: str
    value: str


Path: TypeAlias = tuple[str | Item, ...]


class Change(msgspec.Struct, frozen=True):
    """The value of a key; `MISSING`: it is not there."""

    path: Path
    value: Any = MISSING


class Document(ABC):
    """The text of a settings file."""

    def __init__(self, text: str, name: str) -> None:
        """Read a text; `name` is for messages.

        Raises:
            SettingsError: if it cannot be read.
        """
        self.text = text
        self._name = name
        self.data = self._read(text)

    def get(self, path: Path) -> Any:
        """Return the value of a key, or `MISSING`."""
        return _get(self.data, path)

    def apply(self, changes: Sequence[Change]) -> None:
        """Change the text.

        Raises:
            SettingsError: if that cannot be done without changing something else too.
        """
        wanted = copy.deepcopy(self.data)
        for change in changes:
            _put(wanted, change, self._name)
        text = self._written(self.text, changes, wanted)
        if self._read(text) != wanted:
            raise self._error("it cannot be changed without changing other settings")
        self.text, self.data = text, wanted

    @abstractmethod
    def _read(self, text: str) -> dict[str, Any]:
        """Return the content of a text."""

    @abstractmethod
    def _written(self, text: str, changes: Sequence[Change], wanted: dict[str, Any]) -> str:
        """Return the text with the changes; `wanted` is its content then."""

    def _error(self, message: str) -> SettingsError:
        return SettingsError(f"{self._name}: {message}")


class JSONDocument(Document):
    """JSON. The order of keys and the indentation stay."""

    def _read(self, text: str) -> dict[str, Any]:
        try:
            found = json.loads(text or "{}")
        except (ValueError, RecursionError) as error:
            raise self._error(f"not JSON without comments: {error}") from error
        if not isinstance(found, dict):
            raise self._error("it is not an object")
        return found

    def _written(self, text: str, changes: Sequence[Change], wanted: dict[str, Any]) -> str:  # noqa: ARG002
        found = _INDENT.search(text)
        written = json.dumps(wanted, indent=found[1] if found else 2, ensure_ascii=False)
        return written + ("\n" if text.endswith("\n") or not text else "")


class TOMLDocument(Document):
    """TOML. Lines that are not changed stay as they are; values are at the top or a whole table."""

    def _read(self, text: str) -> dict[str, Any]:
        try:
            return tomllib.loads(text)
        except tomllib.TOMLDecodeError as error:
            raise self._error(f"not valid TOML: {error}") from error

    def _written(self, text: str, changes: Sequence[Change], wanted: dict[str, Any]) -> str:  # noqa: ARG002
        for change in changes:
            if len(change.path) == 1:
                text = self._with_key(text, str(change.path[0]), change.value)
            else:
                text = self._with_table(text, ".".join(map(str, change.path)), change.value)
        return text

    def _with_key(self, text: str, key: str, value: Any) -> str:
        header = _HEADER.search(text)
        end = header.start() if header else len(text)
        line = "" if value is MISSING else f"{key} = {_toml(value)}\n"
        found = re.compile(rf"^[ \t]*{re.escape(key)}[ \t]*=.*\n?", re.M).search(text, 0, end)
        if found is None:
            return line + text
        return text[: found.start()] + line + text[found.end() :]

    def _with_table(self, text: str, name: str, value: Any) -> str:
        begin = re.compile(rf"^[ \t]*\[{re.escape(name)}\][^\n]*\n?", re.M).search(text)
        lines = ""
        if value is not MISSING:
            rows = "".join(f"{key} = {_toml(each)}\n" for key, each in value.items())
            lines = f"[{name}]\n{rows}"
        if begin is None:
            gap = "" if not text else "\n" if text.endswith("\n") else "\n\n"
            return f"{text}{gap}{lines}" if lines else text
        header = _HEADER.search(text, begin.end())
        end = header.start() if header else len(text)
        rest = text[end:]
        before = text[: begin.start()]
        if not lines and not rest:
            before = before.rstrip("\n") + "\n" if before.strip() else ""
        return before + (f"{lines}\n" if lines and rest else lines) + rest


def _toml(value: object) -> str:
    """Return a text, number or truth value as TOML; JSON writes them the same way."""
    return json.dumps(value, ensure_ascii=False)


def _get(data: Any, path: Path) -> Any:
    for step in path:
        if isinstance(step, Item):
            given = data if isinstance(data, list) else []
            data = next((each for each in given if _is(each, step)), MISSING)
        else:
            data = data.get(step, MISSING) if isinstance(data, dict) else MISSING
        if data is MISSING:
            return MISSING
    return data


def _put(data: Any, change: Change, name: str) -> None:
    """Change a value; objects that it needs are made, and those that become empty go."""
    *holders, last = change.path
    chain: list[tuple[Any, str | Item]] = []
    for step, following in zip(holders, change.path[1:], strict=True):
        below = _get(data, (step,))
        if below is MISSING:
            if change.value is MISSING:
                return
            below = data[step] = [] if isinstance(following, Item) else {}
        if not isinstance(below, list if isinstance(following, Item) else dict):
            raise SettingsError(f"{name}: {step!r} is not what it should be")
        chain.append((data, step))
        data = below
    if isinstance(last, Item):
        data[:] = [each for each in data if not _is(each, last)]
        if change.value is not MISSING:
            data.append(change.value)
    elif change.value is MISSING:
        data.pop(last, None)
    else:
        data[last] = change.value
    for holder, step in reversed(chain):
        if change.value is MISSING and not holder[step]:
            del holder[step]


def _is(each: object, item: Item) -> bool:
    return isinstance(each, dict) and each.get(item.name) == item.value
