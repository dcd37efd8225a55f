"""One session: events come in, the sound is cut into utterances, transcripts go out."""

from __future__ import annotations

import asyncio
import binascii
import secrets
from collections.abc import Awaitable, Callable, Iterator
from typing import Any

from tampu.audio import Samples
from tampu.audio.pcm import decode_pcm, rate_of
from tampu.audio.resampling import Resampler
from tampu.errors import RequestError, TampuError
from tampu.server.features.speech.realtime import events
from tampu.server.features.speech.realtime.input_buffer import (
    PIECE,
    SHORTEST_MS,
    Closed,
    InputBuffer,
    Opened,
)
from tampu.server.features.speech.realtime.settings import SessionSettings, updated, updated_before
from tampu.server.features.speech.realtime.transcriber import (
    Completed,
    Delta,
    Failed,
    Heard,
    Transcriber,
)
from tampu.server.fields.media import decode_base64
from tampu.server.front.body import decode
from tampu.server.front.http_response import log_error

MAX_SOUND_BYTES = 15 << 20
"""OpenAI's limit of the sound in one event."""

_EMPTY = "input_audio_buffer_commit_empty"
_QUICK = 1 << 18  # bytes of an event; longer ones are decoded on a thread
_TYPES = (
    "session.update", "input_audio_buffer.append", "input_audio_buffer.commit",
    "input_audio_buffer.clear", "transcription_session.update",
)  # fmt: skip

Send = Callable[[dict[str, Any]], Awaitable[None]]
Ask = Callable[[SessionSettings, Samples, str, str], Awaitable[Heard]]
"""As `Hear`, by the settings of the session."""

Check = Callable[[SessionSettings], None]
"""Raises TampuError if the model of these settings cannot transcribe."""


class Session:
    """The state of one connection."""

    def __init__(
        self, send: Send, ask: Ask, check: Check, settings: SessionSettings, *, is_old: bool
    ) -> None:
        """Send events by `send`; `is_old`: by the names until 2025."""
        self._send, self._ask, self._check = send, ask, check
        self._settings, self._is_old = settings, is_old
        self._id = f"sess_{secrets.token_hex(12)}"
        self._buffer = InputBuffer(settings.activity)
        self._resampler = Resampler(rate_of(settings.format.type))
        self._transcriber = Transcriber(self._hear, self._report_transcript)
        self._last_item: str | None = None

    async def run(self, receive: Callable[[], Awaitable[str | None]]) -> None:
        """Answer events until there are none.

        Args:
            receive: returns the text of the next one; None: the client has left.
        """
        await self._send_session("created")
        if self._settings.transcription and self._settings.transcription.model:
            try:
                self._check(self._settings)
            except TampuError as error:
                log_error(error)
                await self._send(events.error_event(error, None))
        working = asyncio.create_task(self._transcriber.run())
        receiving = asyncio.create_task(self._receive(receive))
        try:
            await asyncio.wait((working, receiving), return_when=asyncio.FIRST_COMPLETED)
        finally:
            for task in (working, receiving):
                task.cancel()
            found = await asyncio.gather(working, receiving, return_exceptions=True)
        for each in found:
            if isinstance(each, Exception):
                raise each

    async def _receive(self, receive: Callable[[], Awaitable[str | None]]) -> None:
        while (text := await receive()) is not None:
            event: events.ClientEvent | None = None
            try:
                event = await _decoded(text)
                await self._take(event)
            except TampuError as error:
                log_error(error)
                code = _EMPTY if isinstance(error, EmptyBufferError) else None
                event_id = event.event_id if event else None
                await self._send(events.error_event(error, event_id, code))

    async def _take(self, event: events.ClientEvent) -> None:
        match event.type:
            case "input_audio_buffer.append":
                await self._append(event.audio)
            case "input_audio_buffer.commit":
                await self._commit()
            case "input_audio_buffer.clear":
                self._buffer.clear()
                await self._send(events.server_event("input_audio_buffer.cleared"))
            case "session.update":
                await self._update(updated(self._settings, _session(event)))
            case "transcription_session.update":
                self._is_old = True
                await self._update(updated_before(self._settings, _session(event)))
            case _:
                raise RequestError(
                    f"type must be one of {', '.join(_TYPES)}, not {event.type[:100]!r}: "
                    "a session only transcribes"
                )

    async def _append(self, audio: str | None) -> None:
        if audio is None:
            raise RequestError("audio is required: samples in base64")
        try:
            data = decode_base64(audio)
        except (ValueError, binascii.Error) as error:
            raise RequestError("audio is not valid base64") from error
        if len(data) > MAX_SOUND_BYTES:
            raise RequestError(
                f"audio has {len(data)} bytes, the limit is {MAX_SOUND_BYTES}: send it in parts"
            )
        samples = decode_pcm(data, self._settings.format.type)
        second = rate_of(self._settings.format.type)
        for start in range(0, len(samples), second):
            for piece in _pieces(self._resampler.push(samples[start : start + second])):
                for change in self._buffer.push(piece):
                    await self._report(change)
            await asyncio.sleep(0)  # other sessions go on
            if self._settings.transcription is not None:
                await self._transcriber.room()

    async def _commit(self) -> None:
        length = self._buffer.length_ms
        if length < SHORTEST_MS:
            hint = (
                "with turn_detection only speech is in it, and the server commits it"
                if self._settings.turn_detection
                else "send more with input_audio_buffer.append"
            )
            raise EmptyBufferError(
                f"the buffer has {length:.0f} ms of sound, {SHORTEST_MS} ms are needed: {hint}"
            )
        await self._report(self._buffer.commit())

    async def _update(self, settings: SessionSettings) -> None:
        if settings.transcription and settings.transcription.model:
            self._check(settings)
        if settings.format.type != self._settings.format.type:
            self._resampler = Resampler(rate_of(settings.format.type))
        self._settings = settings
        await self._send_session("updated")
        if closed := self._buffer.detect(settings.activity):
            await self._report(closed)

    async def _report(self, change: Opened | Closed) -> None:
        utterance = change.utterance
        if isinstance(change, Opened):
            if change.is_speech:
                await self._send(events.speech_started(change))
            if self._settings.transcription is not None:
                await self._transcriber.add(utterance)
            return
        before, self._last_item = self._last_item, utterance.id
        if change.is_speech:
            await self._send(events.speech_stopped(change))
        await self._send(events.committed(change, before))
        names = ("created",) if self._is_old else ("added", "done")
        for name in names:
            await self._send(events.item(utterance, f"conversation.item.{name}", before))

    async def _hear(self, sound: Samples, begun: str, language: str) -> Heard:
        return await self._ask(self._settings, sound, begun, language)

    async def _report_transcript(self, change: Delta | Completed | Failed) -> None:
        if isinstance(change, Failed):
            log_error(change.error)
        await self._send(events.transcript(change))

    async def _send_session(self, what: str) -> None:
        settings = self._settings
        shown = settings.shown_before(self._id) if self._is_old else settings.shown(self._id)
        kind = "transcription_session" if self._is_old else "session"
        await self._send(events.server_event(f"{kind}.{what}", session=shown))


class EmptyBufferError(RequestError):
    """There is too little to commit."""


async def _decoded(text: str) -> events.ClientEvent:
    data = text.encode()
    if len(data) > _QUICK:
        return await asyncio.to_thread(decode, data, events.ClientEvent)
    return decode(data, events.ClientEvent)


def _session(event: events.ClientEvent) -> dict[str, Any]:
    if event.session is None:
        raise RequestError("session is required: what is to be changed")
    return event.session


def _pieces(samples: Samples) -> Iterator[Samples]:
    for start in range(0, len(samples), PIECE):
        yield samples[start : start + PIECE]
