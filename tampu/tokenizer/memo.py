"""The words that were tokenised already."""

from __future__ import annotations

from collections.abc import Callable

_MAX_WORDS = 65_536  # some 15 MB; a text of 300,000 tokens has about 20,000 different words
_MAX_LENGTH = 64  # characters; longer ones hardly ever come again


class Memo(dict[str, list[int]]):
    """A dictionary that fills itself: `memo[word]` encodes a new word and remembers it.

    Several threads may use it at once: at worst a word is encoded twice. It empties itself when
    it is full.
    """

    def __init__(self, encode: Callable[[str], list[int]]) -> None:
        super().__init__()
        self._encode = encode

    def __missing__(self, word: str) -> list[int]:
        ids = self._encode(word)
        if len(word) <= _MAX_LENGTH:
            if len(self) >= _MAX_WORDS:
                self.clear()
            self[word] = ids
        return ids
