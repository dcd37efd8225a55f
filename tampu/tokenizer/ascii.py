"""Words of ASCII text by Python's regular expressions, several times as fast as the library's.

The expressions of `tampu.tokenizer.pretokenizers` name Unicode's categories, which Python's lack;
in ASCII each category is a few characters. Most blocks of texts in Latin script are ASCII.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from typing import Self

_LETTERS = {"L": "A-Za-z", "Lu": "A-Z", "Ll": "a-z", "N": "0-9"}
# Escaped one by one: `--`, `&&` and `||` in a class may get a meaning in a later Python.
_SIGNS = {"P": "!\"#%&'()*,-./:;?@[\\]_{}", "S": "$+<=>^`|~"}
_CATEGORIES = _LETTERS | {
    name: "".join(f"\\{sign}" for sign in signs) for name, signs in _SIGNS.items()
}
_NOTHING = "\\x80"  # what stands for the other categories, and is in no ASCII text
_PART = re.compile(r"\\p\{(\w+)\}|\\.|[\[\]]|.", re.DOTALL)


class ASCIISplitter:
    """Splits ASCII texts as a pre-tokenizer does."""

    def __init__(self, stages: Sequence[re.Pattern[str]]) -> None:
        """Take the expressions, each in one group."""
        self._stages = stages

    @classmethod
    def of(cls, stages: Sequence[str]) -> Self | None:
        """Return the splitter for expressions in the library's syntax; None for one with `$`.

        There `$` also matches before every line feed.
        """
        if any(stage.endswith("$") for stage in stages):
            return None
        return cls([re.compile(f"({translated(stage)})", re.ASCII) for stage in stages])

    def split(self, text: str) -> list[str]:
        """Return the words of a text in order: the matches, and what is between them."""
        words = [text] if text else []
        for stage in self._stages:
            words = [part for word in words for part in stage.split(word) if part]
        return words


def translated(stage: str) -> str:
    """Return an expression of the library's in Python's syntax, the same for ASCII texts."""
    return "".join(_parts(stage))


def _parts(stage: str) -> Iterator[str]:
    is_class = False
    for part in _PART.finditer(stage):
        text = part[0]
        if part[1]:
            characters = _CATEGORIES.get(part[1], _NOTHING)
            yield characters if is_class else f"[{characters}]"
            continue
        if text == "[" and is_class:
            yield "\\["
            continue
        if text in "[]":
            is_class = text == "["
        yield text
