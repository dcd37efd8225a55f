"""What was measured on this machine, for later starts: each result is in a file of its own.

    <folder>/<name>-<digits>.json

holds the result and all that it depends on.
"""

from __future__ import annotations

import hashlib
import json
import logging
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Generic, TypeVar

from tampu.errors import RequestError
from tampu.ml.atomic_file import atomic_file

log = logging.getLogger("tampu.ml")

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class TuningCache(Generic[T]):
    """The file with one result.

    Attributes:
        name: what was measured.
        path: of the file.
        key: what it depends on; the file has it too.
        parse: returns the result for a word; for any other it raises RequestError, ValueError or
            TypeError.
        word_of: returns the word for a result.
    """

    name: str
    path: Path
    key: Mapping[str, Any]
    parse: Callable[[str], T]
    word_of: Callable[[T], str]

    @classmethod
    def at(
        cls,
        folder: Path,
        name: str,
        key: Mapping[str, Any],
        parse: Callable[[str], T],
        word_of: Callable[[T], str],
    ) -> TuningCache[T]:
        """Return the file in a folder."""
        digits = hashlib.sha256(json.dumps(key).encode()).hexdigest()[:16]
        return cls(name, folder / f"{name}-{digits}.json", key, parse, word_of)

    def read(self) -> T | None:
        """Return the kept result; None without one, or for a damaged file, which is logged."""
        try:
            content = self.path.read_bytes()
        except FileNotFoundError:
            return None
        except OSError as error:
            log.warning("%s: %s cannot be read: %s", self.name, self.path, error.strerror)
            return None
        try:
            stored = json.loads(content)
            if stored["for"] == self.key:
                return self.parse(stored[self.name])
        except (ValueError, TypeError, KeyError, RecursionError, RequestError):
            pass
        log.warning("%s: %s is damaged; measuring again", self.name, self.path)
        return None

    def write(self, result: T) -> None:
        """Keep a result atomically; errors are logged."""
        content = json.dumps({"for": self.key, self.name: self.word_of(result)}, indent=1)
        try:
            self.path.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
            with atomic_file(self.path, mode=0o600, is_durable=False) as file:
                file.write(f"{content}\n".encode())
        except OSError as error:
            log.warning("%s: %s cannot be written: %s", self.name, self.path, error.strerror)
