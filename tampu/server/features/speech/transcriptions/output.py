"""Transcripts in OpenAI's form: an object, plain text, subtitles, or the events of a stream."""

from __future__ import annotations

import zlib
from collections.abc import Iterator, Sequence
from math import ceil
from typing import Any

import msgspec

from tampu.audio.subtitles import Cue, to_srt, to_vtt
from tampu.engine.sounds import SoundPieces
from tampu.errors import TampuError
from tampu.runner.events import Done, TextDelta, TokenLogprob
from tampu.server.features.speech.transcript_text import TranscriptText
from tampu.server.features.speech.transcription import SpeechForm
from tampu.server.features.speech.transcriptions.requests import TranscriptionForm
from tampu.server.front.errors import error_body, public_message, status_of
from tampu.server.front.http_response import SSE
from tampu.server.serving.events import Event, total_usage

_UNSPACED = range(0x2E80, 0xAC00)  # the scripts of Chinese and Japanese put no space there
_FRAMES_A_SECOND = 100  # the unit of `seek`, as Whisper's


class TranscriptWriter:
    """The response to a transcription or a translation; the choices of its events are pieces."""

    media_type = SSE

    def __init__(
        self, path: str, form: TranscriptionForm, speech: SpeechForm, cut: SoundPieces
    ) -> None:
        """Write for a route and a form."""
        self._path, self._form = path, form
        self._is_verbose = form.response_format == "verbose_json"
        self._cut = cut
        count = len(cut.pieces)
        self._pieces = [TranscriptText(says_language=speech.says_language) for _ in range(count)]
        self._waiting: list[list[TextDelta]] = [[] for _ in range(count)]
        self._done: dict[int, Done] = {}
        self._current = 0  # the first piece that has not ended
        self._segments: list[dict[str, Any]] = []
        self._text = ""

    def write(self, event: Event) -> bytes:
        """Return the bytes of an event; they may be empty."""
        return b"".join(map(_line, self._take(event)))

    def end(self) -> bytes:
        """Return the end of a complete stream."""
        return _line({"type": "transcript.text.done", **self._object()})

    def fail(self, error: TampuError) -> bytes:
        """Return the end of a stream that failed."""
        return _line(error_body(self._path, status_of(error), public_message(error)))

    def whole(self, events: Sequence[Event]) -> dict[str, Any]:
        """Return all events as one object."""
        self._take_all(events)
        return self._object()

    def whole_text(self, events: Sequence[Event]) -> str:
        """Return all events as `text`, `srt` or `vtt`."""
        self._take_all(events)
        cues = [
            Cue(part.start, part.end, piece.text.strip())
            for part, piece in zip(self._cut.pieces, self._pieces, strict=True)
            if piece.text.strip()
        ]
        match self._form.response_format:
            case "srt":
                return to_srt(cues)
            case "vtt":
                return to_vtt(cues)
        return self._text.rstrip()

    def _take_all(self, events: Sequence[Event]) -> None:
        for event in events:
            for _ in self._take(event):
                pass

    def _take(self, event: Event) -> Iterator[dict[str, Any]]:
        """Yield the events of a stream, those of later pieces when the ones before have ended."""
        if isinstance(event, TextDelta):
            self._waiting[event.choice].append(event)
        elif isinstance(event, Done):
            self._done[event.choice] = event
        while self._current < len(self._pieces):
            piece = self._pieces[self._current]
            for delta in self._waiting[self._current]:
                before = len(piece.logprobs)
                yield from self._delta(piece.push(delta), piece.logprobs[before:])
            self._waiting[self._current].clear()
            if self._current not in self._done:
                return
            yield from self._delta(piece.end(), ())
            if self._is_verbose and piece.text.strip():
                segment = self._segment(self._current)
                self._segments.append(segment)
                yield {"type": "transcript.text.segment", **segment, "id": f"seg_{segment['id']}"}
            self._current += 1

    def _delta(self, text: str, logprobs: Sequence[TokenLogprob]) -> Iterator[dict[str, Any]]:
        """Yield what a piece adds; between two pieces is a space."""
        if not text:
            return
        is_first = self._pieces[self._current].text == text
        if is_first and self._text and not self._text[-1].isspace():
            are_words = ord(self._text[-1]) not in _UNSPACED and ord(text[0]) not in _UNSPACED
            text = f" {text}" if are_words else text
        self._text += text
        more = {"logprobs": [*map(_logprob, logprobs)]} if self._form.with_logprobs else {}
        yield {"type": "transcript.text.delta", "delta": text, **more}

    def _object(self) -> dict[str, Any]:
        found: dict[str, Any] = {"text": self._text.rstrip()}
        if self._form.with_logprobs:
            found["logprobs"] = [
                _logprob(each) for piece in self._pieces for each in piece.logprobs
            ]
        if self._is_verbose:
            task = "translate" if self._form.task.translates else "transcribe"
            seconds = round(self._cut.seconds, 3)
            found |= {"task": task, "language": self._spoken(), "duration": seconds}
            found["segments"] = self._segments
            found["usage"] = {"type": "duration", "seconds": ceil(seconds)}
            return found
        total = total_usage([*self._done.values()], 1)
        asked, given = total.prompt_tokens, total.generated_tokens
        usage = {"input_tokens": asked, "output_tokens": given, "total_tokens": asked + given}
        return found | {"usage": {"type": "tokens", **usage}}

    def _spoken(self) -> str | None:
        """Return the language: as it was given, else as the model says of the longest text."""
        named = [piece for piece in self._pieces if piece.language]
        longest = max(named, key=lambda piece: len(piece.text), default=None)
        given = self._form.task.language_name
        found = given or (longest.language if longest else "")
        return found.lower() or None

    def _segment(self, number: int) -> dict[str, Any]:
        """Return a piece as Whisper's next segment; None stands for what only Whisper computes."""
        piece, part = self._pieces[number], self._cut.pieces[number]
        text = piece.text.strip()
        logprobs = [each.logprob for each in piece.logprobs]
        return {
            "id": len(self._segments),
            "seek": round(part.start * _FRAMES_A_SECOND),
            "start": round(part.start, 3),
            "end": round(part.end, 3),
            "text": text,
            "tokens": [each.token for each in piece.logprobs],
            "temperature": self._form.temperature,
            "avg_logprob": sum(logprobs) / len(logprobs) if logprobs else None,
            "compression_ratio": len(text.encode()) / len(zlib.compress(text.encode())),
            "no_speech_prob": None,
        }


def _logprob(entry: TokenLogprob) -> dict[str, Any]:
    text = entry.token_bytes.decode("utf-8", "replace")
    return {"token": text, "logprob": entry.logprob, "bytes": [*entry.token_bytes]}


def _line(value: dict[str, Any]) -> bytes:
    return b"data: %s\n\n" % msgspec.json.encode(value)
