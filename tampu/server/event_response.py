"""Responses from the events of an answer."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Sequence

from tampu.server.events import Event, warnings_of
from tampu.server.http_response import EventsResponse, Writer


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
