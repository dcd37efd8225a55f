"""The routes of transcriptions and translations."""

from __future__ import annotations

import asyncio
from contextlib import aclosing

from starlette.requests import Request
from starlette.responses import PlainTextResponse, Response

from tampu.audio.formats import DEFAULT_AUDIO_LIMITS
from tampu.server.core import Core
from tampu.server.feature import Feature
from tampu.server.features.transcriptions.output import TranscriptWriter
from tampu.server.features.transcriptions.requests import (
    ModelField,
    parse_transcription,
    read_form,
)
from tampu.server.front.body import chunks
from tampu.server.front.errors import BodyTooLargeError
from tampu.server.front.http_response import TaskResponse, warning_headers
from tampu.server.front.multipart import FormReader
from tampu.server.front.routes import Access, raw
from tampu.server.serving.event_response import event_response
from tampu.server.serving.serving import Serving


def transcriptions(core: Core) -> Feature:
    """Return the feature: speech as text."""
    api = TranscriptionsAPI(core.serving)
    return Feature(
        routes=[
            raw(("POST",), "/v1/audio/transcriptions", api.transcribe, Access.USE),
            raw(("POST",), "/v1/audio/translations", api.translate, Access.USE),
        ]
    )


class TranscriptionsAPI:
    """The handlers."""

    def __init__(self, serving: Serving) -> None:
        self._serving = serving

    async def transcribe(self, http: Request) -> Response:
        """`POST /v1/audio/transcriptions`: what is said in a sound."""
        return await self._answer(http, translates=False)

    async def translate(self, http: Request) -> Response:
        """`POST /v1/audio/translations`: what is said in a sound, in English."""
        return await self._answer(http, translates=True)

    async def _answer(self, http: Request, *, translates: bool) -> Response:
        file = bytearray()

        async def write(piece: bytes) -> None:
            file.extend(piece)
            if len(file) > (limit := DEFAULT_AUDIO_LIMITS.size_bytes):
                raise BodyTooLargeError(f"file: larger than {limit} bytes")

        reader = FormReader(http.headers.get("content-type", ""), write)
        await reader.read(chunks(http, "form"))
        field = ModelField(reader.fields.get("model"))
        entry = self._serving.find_for(field, "audio")
        form = await asyncio.to_thread(
            read_form,
            reader.fields,
            None if reader.filename is None else bytes(file),
            field.model or "",
            translates=translates,
        )
        request = parse_transcription(form, self._serving.defaults(entry))
        writer = TranscriptWriter(http.url.path)
        events = self._serving.generate(entry, request)
        if form.stream or form.response_format == "json":
            return event_response(events, writer, request.warnings, is_streaming=form.stream)

        async def work() -> Response:
            async with aclosing(events):
                whole = writer.whole([event async for event in events])
            return PlainTextResponse(whole["text"], headers=warning_headers(request.warnings))

        return TaskResponse(work())
