"""Responses from the events of an answer, and the warnings of embeddings."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Sequence

from tampu.engine.requests import Embedded
from tampu.server.front.http_response import EventsResponse, Writer, warning_headers
from tampu.server.serving.choices import dropped_warnings
from tampu.server.serving.events import Event, warnings_of
from tampu.server.serving.generation_request import ModelUse


def event_response(
    events: AsyncGenerator[Event, None],
    writer: Writer[Event],
    warnings: Sequence[str],
    *,
    is_streaming: bool,
) -> EventsResponse[Event]:
    """Return the response of a model; its headers have the warnings and those of the events."""
    return EventsResponse(
        events, writer, is_streaming=is_streaming, warnings=warnings, warnings_of=warnings_of
    )


def embedding_warnings(call: ModelUse, found: Embedded) -> dict[str, str]:
    """Return the headers with the warnings of a request, and of tokens that were dropped."""
    return warning_headers((*call.warnings, *dropped_warnings(found.dropped)))
