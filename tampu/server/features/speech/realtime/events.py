"""The events of a session, by OpenAI's names."""

from __future__ import annotations

import secrets
from typing import Any

import msgspec

from tampu.audio import SAMPLE_RATE
from tampu.errors import RequestError, TampuError
from tampu.runner.events import Usage
from tampu.server.features.speech.realtime.input_buffer import Closed, Opened, Utterance
from tampu.server.features.speech.realtime.transcriber import Completed, Delta, Failed
from tampu.server.front.errors import code_of, openai_error, param_of, public_message, status_of

_TRANSCRIPTION = "conversation.item.input_audio_transcription"
_FIELDS = ("audio", "format", "noise_reduction", "transcription", "turn_detection", "session")


class ClientEvent(msgspec.Struct, frozen=True, kw_only=True):
    """What a client sends.

    Attributes:
        type: its name.
        event_id: the client's, which an error names.
        audio: of `input_audio_buffer.append`, in base64.
        session: of `session.update`.
    """

    type: str
    event_id: str | None = None
    audio: str | None = None
    session: dict[str, Any] | None = None


def server_event(kind: str, **fields: Any) -> dict[str, Any]:
    """Return an event."""
    return {"type": kind, "event_id": f"event_{secrets.token_hex(12)}", **fields}


def error_event(error: TampuError, event_id: str | None, code: str | None = None) -> dict[str, Any]:
    """Return the event of an error.

    Args:
        error: what is wrong.
        event_id: of the client's event.
        code: OpenAI's; None: that of the error's class.
    """
    return server_event("error", error={**_described(error, code), "event_id": event_id})


def speech_started(opened: Opened) -> dict[str, Any]:
    """Return the event of speech that was found."""
    utterance = opened.utterance
    start = _ms(utterance.start)
    kind = "input_audio_buffer.speech_started"
    return server_event(kind, audio_start_ms=start, item_id=utterance.id)


def speech_stopped(closed: Closed) -> dict[str, Any]:
    """Return the event of speech that has ended."""
    kind = "input_audio_buffer.speech_stopped"
    return server_event(kind, audio_end_ms=_ms(closed.end), item_id=closed.utterance.id)


def committed(closed: Closed, before: str | None) -> dict[str, Any]:
    """Return the event of an utterance that is complete; `before` is the item before it."""
    kind = "input_audio_buffer.committed"
    return server_event(kind, item_id=closed.utterance.id, previous_item_id=before)


def item(utterance: Utterance, kind: str, before: str | None) -> dict[str, Any]:
    """Return an event of this kind about the item of an utterance."""
    content = [{"type": "input_audio", "transcript": None}]
    fields = {"type": "message", "status": "completed", "role": "user", "content": content}
    described = {"id": utterance.id, "object": "realtime.item", **fields}
    return server_event(kind, previous_item_id=before, item=described)


def transcript(change: Delta | Completed | Failed) -> dict[str, Any]:
    """Return the event of a transcript, or of a part."""
    place = {"item_id": change.utterance.id, "content_index": 0}
    match change:
        case Delta(text=text):
            return server_event(f"{_TRANSCRIPTION}.delta", **place, delta=text)
        case Completed(text=text, usage=usage):
            kind = f"{_TRANSCRIPTION}.completed"
            return server_event(kind, **place, transcript=text, usage=_usage(usage))
        case Failed(error=error):
            return server_event(f"{_TRANSCRIPTION}.failed", **place, error=_described(error))


def _described(error: TampuError, code: str | None = None) -> dict[str, Any]:
    message, status = public_message(error), status_of(error)
    param = param_of(message, _FIELDS) if isinstance(error, RequestError) else None
    body: Any = openai_error(status, message, code or code_of(error), param)
    found: dict[str, Any] = body["error"]
    return found


def _usage(usage: Usage) -> dict[str, Any]:
    asked, given = usage.prompt_tokens, usage.generated_tokens
    counts = {"input_tokens": asked, "output_tokens": given, "total_tokens": asked + given}
    return {"type": "tokens", **counts}


def _ms(samples: int) -> int:
    return samples * 1000 // SAMPLE_RATE
