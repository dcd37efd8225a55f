"""A cache of computed values that is cleared when it is full."""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeVar

V = TypeVar("V")

_MAX_ITEMS = 65_536  # some 10 MB; a text of 300,000 tokens has about 20,000 different words
_MAX_LENGTH = 64  # characters; longer texts hardly ever come again


class WordCache(dict[str, V]):
    """Results of `compute`: `cache[text]` computes the value of a new text and keeps it.

    Thread-safe: at worst something is computed twice.
    """

    def __init__(self, compute: Callable[[str], V]) -> None:
        super().__init__()
        self._compute = compute

    def __missing__(self, text: str) -> V:
        value = self._compute(text)
        if len(text) <= _MAX_LENGTH:
            if len(self) >= _MAX_ITEMS:
                self.clear()
            self[text] = value
        return value
