"""The routes of transcriptions and translations."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator
from contextlib import aclosing

from starlette.requests import Request
from starlette.responses import PlainTextResponse, Response

from tampu.audio.formats import DEFAULT_AUDIO_LIMITS
from tampu.engine.sounds import CutSound, SoundPiece, SoundPieces
from tampu.errors import ContextLengthError
from tampu.server.core import Core
from tampu.server.feature import Feature
from tampu.server.features.speech.transcription import (
    HEARING,
    speech_form,
    transcription_request,
)
from tampu.server.features.speech.transcriptions.output import TranscriptWriter
from tampu.server.features.speech.transcriptions.requests import (
    ModelField,
    TranscriptionForm,
    read_form,
)
from tampu.server.front.body import chunks
from tampu.server.front.errors import BodyTooLargeError
from tampu.server.front.http_response import TaskResponse, warning_headers
from tampu.server.front.multipart import FormReader
from tampu.server.front.routes import Access, raw
from tampu.server.serving.event_response import event_response
from tampu.server.serving.events import Event
from tampu.server.serving.generation_request import ModelCall
from tampu.server.serving.serving import Serving
from tampu.store.catalog import Entry


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
        entry = self._serving.find_for(field, HEARING)
        form = await asyncio.to_thread(
            read_form,
            reader.lists,
            None if reader.filename is None else bytes(file),
            field.model or "",
            translates=translates,
        )
        defaults = self._serving.defaults(entry)
        speech = await asyncio.to_thread(speech_form, form.task, form.model, defaults)
        cut = await self._cut(entry, form)
        request = transcription_request(
            speech,
            [piece.file for piece in cut.pieces],
            form.model,
            defaults,
            temperature=form.temperature,
            is_streamed=form.stream,
            logprobs=form.with_logprobs or form.response_format == "verbose_json",
        )
        writer = TranscriptWriter(http.url.path, form, speech, cut)
        # Without a piece this only loads the model.
        events = _advised(self._serving.generate(entry, request), is_cut=form.cutting is not None)
        if form.stream or form.response_format.endswith("json"):
            return event_response(events, writer, request.warnings, is_streaming=form.stream)

        async def work() -> Response:
            async with aclosing(events):
                text = writer.whole_text([event async for event in events])
            kind = "text/vtt" if form.response_format == "vtt" else "text/plain"
            headers = warning_headers(request.warnings)
            return PlainTextResponse(text, headers=headers, media_type=kind)

        return TaskResponse(work())

    async def _cut(self, entry: Entry, form: TranscriptionForm) -> SoundPieces:
        """Return the pieces of a sound; one heard as a whole is the only piece, without times."""
        if form.cutting is None:
            return SoundPieces(0.0, (SoundPiece(0.0, 0.0, form.file),))
        asked = CutSound(form.file, form.cutting)
        return await self._serving.ask(entry, ModelCall(model=form.model, request=asked))


async def _advised(
    events: AsyncGenerator[Event, None], *, is_cut: bool
) -> AsyncGenerator[Event, None]:
    """Yield events; an error of a sound that is too long says how it can be cut."""
    try:
        async with aclosing(events):
            async for event in events:
                yield event
    except ContextLengthError as error:
        if is_cut:
            raise
        raise ContextLengthError(f"{error}; or set chunking_strategy to auto") from None
