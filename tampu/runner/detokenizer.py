"""Incremental detokenization: from tokens to text, up to a stop string or a line too far left.

Text that may be the start of a stop string is held back; the decoder holds back incomplete
characters. The output does not depend on how the text is split into tokens: stop strings are
matched character by character, and the first complete match ends the text. If two complete with the
same character, the longer one, which started earlier, wins.
"""

from __future__ import annotations

from collections.abc import Sequence

from tampu.errors import RequestError
from tampu.tokenizer import IncrementalDecoder


class Detokenizer:
    """Turns the tokens of one sequence into text, up to the first stop string.

    Attributes:
        matched: the stop string that ended the text, if one has.
        is_cut: whether a line with too little indentation has ended it.
    """

    def __init__(
        self, stop: Sequence[str], decoder: IncrementalDecoder, min_indent: int = 0
    ) -> None:
        """Begin a text; lines after the first must begin with `min_indent` spaces and tabs."""
        if "" in stop:
            raise RequestError("a stop string is empty; it must have at least one character")
        self.matched: str | None = None
        self.is_cut = False
        self._min_indent = min_indent
        self._indent: int | None = None  # of the line that has only an indentation so far
        self._decoder = decoder
        self._matchers = [_Matcher(text) for text in sorted(set(stop), key=len, reverse=True)]
        self._held = ""

    def feed(self, token: int) -> str:
        """Add the next token and return the text that is safe to show now."""
        if self.matched is not None or self.is_cut:
            return ""
        text = self._decoder.feed(token)
        return self._indented(self._match(text) if self._matchers else text)

    def flush(self) -> str:
        """Return the text that was held back, after the last token."""
        if self.matched is not None or self.is_cut:
            return ""
        shown = self._match(self._decoder.flush())
        held, self._held = self._held, ""
        return self._indented(shown + held)

    def _indented(self, text: str) -> str:
        """Return the text up to the first character of a line that is too far left."""
        for index, character in enumerate(text if self._min_indent else ""):
            if self._indent is not None and character in " \t":
                self._indent += 1
            elif self._indent is not None and self._indent < self._min_indent:
                self.is_cut, self.matched = True, None
                return text[:index]
            else:
                self._indent = 0 if character == "\n" else None
        return text

    def _match(self, text: str) -> str:
        for index, character in enumerate(text):
            for matcher in self._matchers:  # all must see the character; the longest is first
                if matcher.completes(character) and self.matched is None:
                    self.matched = matcher.text
            if self.matched is not None:
                shown = self._held + text[: index + 1]
                self._held = ""
                return shown[: -len(self.matched)]
        shown = self._held + text
        pending = max((matcher.length for matcher in self._matchers), default=0)
        self._held = shown[len(shown) - pending :]
        return shown[: len(shown) - pending]


class _Matcher:
    """The longest prefix of a stop string that the text ends with (Knuth, Morris, Pratt 1977)."""

    def __init__(self, text: str) -> None:
        self.text = text
        self.length = 0  # of that prefix
        self._failures = _failures(text)

    def completes(self, character: str) -> bool:
        """Add a character; return whether it completes the stop string."""
        self.length = _extended(self.text, self._failures, self.length, character)
        return self.length == len(self.text)


def _failures(text: str) -> list[int]:
    """Return the failure function: for each prefix length, that of the longest proper border."""
    shorter = [0] * (len(text) + 1)
    for length in range(1, len(text)):
        shorter[length + 1] = _extended(text, shorter, shorter[length], text[length])
    return shorter


def _extended(text: str, shorter: list[int], length: int, character: str) -> int:
    while length and text[length] != character:
        length = shorter[length]
    return length + 1 if text[length] == character else 0
