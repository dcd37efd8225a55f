"""Responses from the events of an answer."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Sequence

from tampu.server.front.http_response import EventsResponse, Writer
from tampu.server.serving.events import Event, warnings_of


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
