"""Transcripts in OpenAI's form: an object, plain text, or the events of a stream."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import msgspec

from tampu.errors import TampuError
from tampu.runner.events import Done, TextDelta, Usage
from tampu.server.front.errors import error_body, public_message, status_of
from tampu.server.front.http_response import SSE
from tampu.server.serving.events import Event


class TranscriptWriter:
    """The response to a transcription or a translation."""

    def __init__(self, path: str) -> None:
        """Write for this route."""
        self._path = path
        self._texts: list[str] = []
        self._usage = Usage()

    @property
    def media_type(self) -> str:
        """The content type of a stream."""
        return SSE

    def write(self, event: Event) -> bytes:
        """Return the bytes of an event; they may be empty."""
        text = self._take(event)
        return _line({"type": "transcript.text.delta", "delta": text}) if text else b""

    def end(self) -> bytes:
        """Return the end of a complete stream."""
        return _line({"type": "transcript.text.done", **self._object()})

    def fail(self, error: TampuError) -> bytes:
        """Return the end of a stream that failed."""
        return _line(error_body(self._path, status_of(error), public_message(error)))

    def whole(self, events: Sequence[Event]) -> dict[str, Any]:
        """Return all events as one object."""
        for event in events:
            self._take(event)
        return self._object()

    def _take(self, event: Event) -> str:
        """Return the text of an event, without space before the first word."""
        if isinstance(event, Done):
            self._usage = event.usage
        if not isinstance(event, TextDelta):
            return ""
        text = event.text if self._texts else event.text.lstrip()
        if text:
            self._texts.append(text)
        return text

    def _object(self) -> dict[str, Any]:
        asked, given = self._usage.prompt_tokens, self._usage.generated_tokens
        usage = {"input_tokens": asked, "output_tokens": given, "total_tokens": asked + given}
        return {"text": "".join(self._texts).rstrip(), "usage": {"type": "tokens", **usage}}


def _line(value: dict[str, Any]) -> bytes:
    return b"data: %s\n\n" % msgspec.json.encode(value)
