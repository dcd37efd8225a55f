"""What the layers make of the token that is being written: `GET /api/live/layers`.

A model is asked twice a second while there is a watcher. Unlike `/api/live` this has texts of
requests: the tokens that each layer would predict.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Callable

import msgspec
from starlette.requests import Request
from starlette.responses import Response

from tampu.engine.layer_watch import WatchLayers
from tampu.errors import NotAllowedError, NotFoundError
from tampu.server.features.page.live import FrameWriter
from tampu.server.front.http_response import SSE, EventsResponse
from tampu.server.front.routes import Access, Route, get
from tampu.server.serving.serving import Serving
from tampu.store.catalog import Entry

LOOK_SECONDS = 0.5


def layer_routes(serving: Serving, max_capture_bytes: int) -> list[Route]:
    """Return the route; without `max_capture_bytes` it is refused, as other captures are."""

    async def layers(request: Request) -> Response:
        """`GET /api/live/layers`: what the layers of `?model=` make of a token."""
        if not max_capture_bytes:
            raise NotAllowedError(
                "this server does not show values inside models: set TAMPU_MAX_CAPTURE_SIZE"
            )
        entry = serving.find(request.query_params.get("model"))

        def is_ending() -> bool:
            return not request.app.state.is_ready

        is_streaming = SSE in request.headers.get("accept", "")
        looks = _looks(serving, entry, is_ending, only_one=not is_streaming)
        return EventsResponse(looks, FrameWriter(), is_streaming=is_streaming)

    return [get("/api/live/layers", layers, Access.MANAGE)]


async def _looks(
    serving: Serving, entry: Entry, is_ending: Callable[[], bool], *, only_one: bool
) -> AsyncGenerator[bytes, None]:
    """Yield looks as JSON until the server ends or the model is unloaded.

    Raises:
        NotFoundError: if the model is not in memory.
        TampuError: if its engine cannot be looked into.
    """
    request = 0
    while not is_ending():
        model = serving.models.find(entry.name)
        if model is None:
            raise NotFoundError(f"model {entry.full_name} is not in memory")
        found = await model.runner.ask(WatchLayers(request))
        request = found.request or request
        yield msgspec.json.encode(found)
        if only_one:
            return
        await asyncio.sleep(LOOK_SECONDS)
