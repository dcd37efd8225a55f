"""From tokens to the text that a caller may see.

Text is held back as long as it may turn out to be the beginning of a stop string; half
characters are held back by the decoder. What comes out does not depend on how the text is split
into tokens: stop strings are matched character by character, and the first to be complete ends
the text. If two are complete with the same character, the longer one, which began earlier, wins.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

from tampu.errors import RequestError


class IncrementalDecoder(Protocol):
    """Turns tokens into text, one by one; knows no stop strings."""

    def feed(self, token: int, /) -> str:
        """Return the text that the token completes; never half a character."""
        ...

    def flush(self) -> str:
        """Return what is left of an incomplete character."""
        ...


@dataclass(frozen=True, slots=True)
class Piece:
    """Text that is safe to show, and whether a stop string came after it."""

    text: str
    stopped: bool


class TextStream:
    """The text of one sequence, without its stop string and all after it.

    Attributes:
        matched: the stop string that ended the text; None while none has.
    """

    def __init__(self, stop: Sequence[str], decoder: IncrementalDecoder) -> None:
        if "" in stop:
            raise RequestError("a stop string is empty; it must have at least one character")
        self.matched: str | None = None
        self._decoder = decoder
        self._matchers = [_Matcher(text) for text in sorted(set(stop), key=len, reverse=True)]
        self._held = ""

    def feed(self, token: int) -> Piece:
        """Take the next token and return the text that is safe to show now."""
        if self.matched is not None:
            return Piece("", stopped=True)
        text = self._decoder.feed(token)
        return self._take(text) if self._matchers else Piece(text, stopped=False)

    def flush(self) -> str:
        """Return the text that was held back, at the end of the tokens."""
        if self.matched is not None:
            return ""
        piece = self._take(self._decoder.flush())
        held, self._held = self._held, ""
        return piece.text if piece.stopped else piece.text + held

    def _take(self, text: str) -> Piece:
        for place, character in enumerate(text):
            for matcher in self._matchers:  # all must see the character; the longest is first
                if matcher.completes(character) and self.matched is None:
                    self.matched = matcher.text
            if self.matched is not None:
                shown = self._held + text[: place + 1]
                self._held = ""
                return Piece(shown[: -len(self.matched)], stopped=True)
        shown = self._held + text
        pending = max((matcher.length for matcher in self._matchers), default=0)
        self._held = shown[len(shown) - pending :]
        return Piece(shown[: len(shown) - pending], stopped=False)


class _Matcher:
    """How much of a stop string the text ends with (Knuth, Morris and Pratt 1977)."""

    def __init__(self, text: str) -> None:
        self.text = text
        self.length = 0  # the longest beginning of `text` that the text so far ends with
        self._shorter = _shorter_matches(text)

    def completes(self, character: str) -> bool:
        """Take the next character; return whether the whole stop string is there now."""
        self.length = _extended(self.text, self._shorter, self.length, character)
        return self.length == len(self.text)


def _shorter_matches(text: str) -> list[int]:
    """Return, for each length, the next shorter beginning of `text` that such a match ends with."""
    shorter = [0] * (len(text) + 1)
    for length in range(1, len(text)):
        shorter[length + 1] = _extended(text, shorter, shorter[length], text[length])
    return shorter


def _extended(text: str, shorter: list[int], length: int, character: str) -> int:
    while length and text[length] != character:
        length = shorter[length]
    return length + 1 if text[length] == character else 0
