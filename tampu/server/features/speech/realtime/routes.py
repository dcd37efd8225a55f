"""The route of sessions."""

from __future__ import annotations

import asyncio
from contextlib import aclosing, suppress
from dataclasses import replace
from typing import Any

import msgspec
from starlette.websockets import WebSocket, WebSocketDisconnect, WebSocketState

from tampu.audio import Samples
from tampu.audio.wav import wav_file
from tampu.errors import RequestError
from tampu.runner.events import Done, TextDelta, Usage
from tampu.server.core import Core
from tampu.server.feature import Feature
from tampu.server.features.speech.realtime.session import Session
from tampu.server.features.speech.realtime.settings import SessionSettings, Transcription
from tampu.server.features.speech.realtime.transcriber import Heard
from tampu.server.features.speech.transcript_text import TranscriptText
from tampu.server.features.speech.transcription import (
    HEARING,
    speech_form,
    transcription_request,
)
from tampu.server.fields.options import ModelBody
from tampu.server.front.caller import current_caller
from tampu.server.front.errors import BusyError, RateLimitError
from tampu.server.front.limiter import Limiter
from tampu.server.front.routes import Access, socket
from tampu.server.serving.serving import Serving
from tampu.store.catalog import Entry

MAX_SESSIONS = 64
_RETRY_S = 10
_PROTOCOL = "realtime"
_OLD = "realtime=v1"


def realtime(core: Core) -> Feature:
    """Return the feature: live transcription."""
    api = RealtimeAPI(core.serving, core.limiter)
    return Feature(routes=[socket("/v1/realtime", api.connect, Access.USE)])


class RealtimeAPI:
    """The handler."""

    def __init__(self, serving: Serving, limiter: Limiter) -> None:
        self._serving, self._limiter = serving, limiter
        self._sessions = 0

    async def connect(self, connected: WebSocket) -> None:
        """`GET /v1/realtime`: live transcription over a WebSocket."""
        intent = connected.query_params.get("intent", "transcription")
        if intent != "transcription":
            raise RequestError(f"intent must be transcription, not {intent[:50]!r}")
        if self._sessions >= MAX_SESSIONS:
            raise BusyError(f"there are {MAX_SESSIONS} sessions, which is the limit", _RETRY_S)
        self._sessions += 1
        try:
            await self._serve(connected)
        finally:
            self._sessions -= 1

    async def _serve(self, connected: WebSocket) -> None:
        offered = connected.scope["subprotocols"]
        await connected.accept(_PROTOCOL if _PROTOCOL in offered else None)
        sending = asyncio.Lock()  # two tasks send

        async def send(event: dict[str, Any]) -> None:
            async with sending:
                await connected.send_text(msgspec.json.encode(event).decode())

        async def receive() -> str | None:
            message = await connected.receive()
            if message["type"] == "websocket.disconnect":
                return None
            text = message.get("text")
            return text if isinstance(text, str) else message["bytes"].decode("utf-8", "replace")

        settings = SessionSettings(
            transcription=Transcription(model=connected.query_params.get("model"))
        )
        is_old = _OLD in connected.headers.get("openai-beta", "")
        session = Session(send, self._ask, self._check, settings, is_old=is_old)
        with suppress(WebSocketDisconnect):
            await session.run(receive)
        if connected.application_state is WebSocketState.CONNECTED and (
            connected.client_state is WebSocketState.CONNECTED
        ):
            await connected.close()

    def _check(self, settings: SessionSettings) -> None:
        """Raise an error if the model of a session does not hear, or may not be used."""
        entry, name = self._find(settings)
        speech_form(settings.task, name, self._serving.defaults(entry))

    def _find(self, settings: SessionSettings) -> tuple[Entry, str]:
        """Return the model of a session, and its name as the client wrote it."""
        body = ModelBody(model=(settings.transcription or Transcription()).model)
        entry = self._serving.find_for(body, HEARING)
        return entry, body.model or ""

    async def _ask(
        self, settings: SessionSettings, sound: Samples, begun: str, language: str
    ) -> Heard:
        if wait_s := self._limiter.exhausted_s(current_caller()):
            raise RateLimitError("this API key has used its tokens of today", wait_s)
        entry, name = self._find(settings)
        defaults = self._serving.defaults(entry)
        form = speech_form(settings.task, name, defaults)
        if begun and form.says_language and language:
            with suppress(RequestError):  # a language that only the model knows
                form = speech_form(replace(settings.task, language=language), name, defaults)
        file = await asyncio.to_thread(wav_file, sound)
        request = transcription_request(form, [file], name, defaults, begun=begun)
        rest, text, usage = "", TranscriptText(says_language=form.says_language), Usage()
        async with aclosing(self._serving.generate(entry, request)) as replies:
            async for reply in replies:
                if isinstance(reply, TextDelta):
                    rest += reply.text
                    text.push(reply)
                elif isinstance(reply, Done):
                    usage = reply.usage
        text.end()
        return Heard(rest if begun else text.text, usage, text.language)
