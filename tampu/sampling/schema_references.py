"""Resolves references within a JSON schema."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator, Mapping
from functools import cached_property
from typing import Any
from urllib.parse import unquote, urljoin

_NAMES = ("$id", "id", "$anchor", "$dynamicAnchor")


class Document:
    """A schema in which references are looked up.

    Attributes:
        root: the schema.
    """

    def __init__(self, root: Mapping[str, Any]) -> None:
        self.root = root

    def pointer_of(self, reference: str) -> str | None:
        """Return the JSON pointer of what a reference names; None: it is not in this document."""
        base, _, fragment = reference.partition("#")
        start = self._ids.get(base) if base else ""
        if start is None:
            return None
        if fragment and not fragment.startswith("/"):
            return self._ids.get(f"#{fragment}")
        pointer = start + (fragment if self.has(start + fragment) else unquote(fragment))
        return pointer if self.has(pointer) else None

    def has(self, pointer: str) -> bool:
        """Return whether there is something at a JSON pointer."""
        try:
            self.at(pointer)
        except LookupError:
            return False
        return True

    def at(self, pointer: str) -> Any:
        """Return what is at a JSON pointer.

        Raises:
            LookupError: if there is nothing.
        """
        found: Any = self.root
        for name in pointer.split("/")[1:]:
            name = name.replace("~1", "/").replace("~0", "~")
            if isinstance(found, list | tuple):
                found = found[int(name) if name.isdecimal() else len(found)]
            elif isinstance(found, Mapping):
                found = found[name]
            else:
                raise LookupError(pointer)
        return found

    @cached_property
    def _ids(self) -> dict[str, str]:
        """The pointers of all parts with an identifier or an anchor, which is here `#name`."""
        found: dict[str, str] = {}
        base = self.root.get("$id", "")
        for pointer, part in _parts(self.root):
            for keyword in _NAMES:
                name = part.get(keyword)
                if not isinstance(name, str):
                    continue
                key = f"#{name}" if "nchor" in keyword else name.rstrip("#")
                found.setdefault(key, pointer)
                if isinstance(base, str) and not key.startswith("#"):
                    found.setdefault(urljoin(base, key), pointer)
        return found


def under(pointer: str, *names: str) -> str:
    """Return the JSON pointer of something inside what is at `pointer`."""
    escaped = (name.replace("~", "~0").replace("/", "~1") for name in names)
    return "/".join([pointer, *escaped])


def _parts(root: Any) -> Iterator[tuple[str, Mapping[str, Any]]]:
    """Yield every object in a document with its JSON pointer, the outer ones first."""
    waiting = deque([("", root)])
    while waiting:
        pointer, value = waiting.popleft()
        if isinstance(value, Mapping):
            yield pointer, value
            waiting += [(under(pointer, str(key)), inner) for key, inner in value.items()]
        elif isinstance(value, list | tuple):
            waiting += [(f"{pointer}/{index}", inner) for index, inner in enumerate(value)]
