"""A transcript from the events of an answer, without what Qwen3-ASR writes before it."""

from __future__ import annotations

from tampu.runner.events import TextDelta, TokenLogprob
from tampu.server.features.speech.transcription import TRANSCRIPT_MARK

_LANGUAGE = "language "
_NO_LANGUAGE = "none"


class TranscriptText:
    """Text without space before its first word, and without the language before the mark.

    Attributes:
        text: so far.
        logprobs: of its tokens, if requested.
        language: in English; "": the model has not said it.
    """

    def __init__(self, *, says_language: bool) -> None:
        """Read an answer that begins with the language, or one without."""
        self._head = ""
        self._in_head = says_language
        self.text = ""
        self.logprobs: list[TokenLogprob] = []
        self.language = ""

    def push(self, delta: TextDelta) -> str:
        """Return what an event adds to the text."""
        if not self._in_head:
            return self._add(delta.text, delta.logprobs)
        self._head += delta.text
        head, mark, rest = self._head.partition(TRANSCRIPT_MARK)
        if not mark:
            return ""
        self._in_head = False
        named = head.strip().removeprefix(_LANGUAGE).strip()
        self.language = "" if named.lower() == _NO_LANGUAGE else named
        marks = [n for n, e in enumerate(delta.logprobs, 1) if e.token_bytes == mark.encode()]
        return self._add(rest, delta.logprobs[marks[0] if marks else 0 :])

    def end(self) -> str:
        """Return the rest at the end of the answer: all of it, if the mark has not come."""
        found = self._add(self._head, ()) if self._in_head else ""
        self._in_head = False
        return found

    def _add(self, text: str, logprobs: tuple[TokenLogprob, ...]) -> str:
        text = text if self.text else text.lstrip()
        self.text += text
        self.logprobs += logprobs
        return text
