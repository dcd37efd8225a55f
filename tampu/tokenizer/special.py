"""Special tokens in a text: the leftmost is found first, and of those that begin there the longest.

This is how Hugging Face's tokenizers and SentencePiece find them. llama.cpp searches for one token
after the other, longest first over the whole text; the two differ only where special tokens overlap
each other.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping

_PREFIX = 2  # characters; enough to make false alarms rare, and few enough for a small pattern


class SpecialMatcher:
    """Splits a text at the special tokens in it."""

    def __init__(self, ids: Mapping[str, int]) -> None:
        self._ids = ids
        lengths: dict[str, set[int]] = {}
        for text in ids:
            lengths.setdefault(text[:_PREFIX], set()).add(len(text))
        self._lengths = {
            prefix: sorted(lengths[prefix] | lengths.get(prefix[:1], set()), reverse=True)
            for prefix in lengths
        }
        # Longer prefixes first: a token of one character is the prefix of others.
        prefixes = sorted(lengths, key=len, reverse=True)
        self._start = re.compile("|".join(map(re.escape, prefixes))) if prefixes else None

    def split(
        self, text: str, counts: Callable[[int, int, int], bool] | None = None
    ) -> Iterator[str | int]:
        """Yield the ids of special tokens and, as they are, the texts between them.

        Args:
            text: the text to search.
            counts: returns whether a token counts from one position to another; None: all count.
        """
        plain = position = 0
        while match := self._start.search(text, position) if self._start else None:
            position = match.start()
            token = self._longest(text, position, match.group(), counts)
            if token is None:
                position += 1
                continue
            if plain < position:
                yield text[plain:position]
            yield self._ids[token]
            plain = position = position + len(token)
        if plain < len(text):
            yield text[plain:]

    def _longest(
        self,
        text: str,
        position: int,
        prefix: str,
        counts: Callable[[int, int, int], bool] | None,
    ) -> str | None:
        for length in self._lengths[prefix]:
            candidate = text[position : position + length]
            if candidate in self._ids and (
                counts is None or counts(self._ids[candidate], position, position + length)
            ):
                return candidate
        return None
