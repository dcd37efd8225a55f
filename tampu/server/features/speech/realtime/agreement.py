"""Which part of a transcript is final while its sound goes on.

Local agreement (arXiv:2307.14743, whisper_streaming): a sound that grows is transcribed again and
again, and what two successive transcripts begin with together is final. OpenAI's events can only
append text, so nothing else is sent before the end.
"""

from __future__ import annotations

import unicodedata

_WIDE = ("W", "F")  # scripts without spaces between words: each character stands for itself


class LocalAgreement:
    """The transcripts of one sound that grows.

    Attributes:
        agreed: what is final: the next transcript begins with it.
    """

    def __init__(self) -> None:
        self._last = ""
        self.agreed = ""

    def push(self, transcript: str) -> str:
        """Take a transcript that begins with `agreed`; return the text that is final now."""
        before, self._last = self._last, transcript
        common = whole_words(before, transcript)
        return self._extend(common)

    def finish(self, transcript: str) -> str:
        """Take the transcript of the whole sound, which begins with `agreed`; return its rest."""
        return self._extend(transcript.rstrip())

    def _extend(self, text: str) -> str:
        sent = len(self.agreed)
        if len(text) > sent:
            self.agreed = text
        return self.agreed[sent:]


def whole_words(one: str, other: str) -> str:
    """Return the words that two texts begin with together, without space behind the last.

    A word counts once a space follows it in both, since more of it may come.
    """
    differ = (index for index, (a, b) in enumerate(zip(one, other, strict=False)) if a != b)
    common = next(differ, min(len(one), len(other)))
    for end in range(common, 0, -1):
        last = one[end - 1]
        if last.isspace():
            continue
        if unicodedata.east_asian_width(last) in _WIDE and not _is_mark(one, other, end):
            return one[:end]
        if end < len(one) and end < len(other) and one[end].isspace() and other[end].isspace():
            return one[:end]
    return ""


def _is_mark(one: str, other: str, end: int) -> bool:
    """Whether a mark that belongs to the last character follows in one of the texts."""
    return any(unicodedata.combining(text[end : end + 1] or " ") for text in (one, other))
