"""OpenAI's API: the routes of stored responses."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Awaitable, Callable, Sequence
from typing import Any

from starlette.requests import Request
from starlette.responses import Response

from tampu.errors import RequestError
from tampu.server.features.responses.output import ResponseWriter, named_events
from tampu.server.features.responses.store import Item, ResponseStore
from tampu.server.front.caller import current_caller
from tampu.server.front.http_response import EventsResponse, JSONResponse
from tampu.server.front.pagination import check_page, listed
from tampu.server.front.routes import Access, Route, get, raw
from tampu.server.serving.events import Event, warnings_of

_LIMIT, _MOST = 20, 100  # items of a page
_LAST = ("response.completed", "response.incomplete")


class KeptResponse(EventsResponse[Event]):
    """A response that is kept before its end is sent; `store` says whether that could be done."""

    def __init__(
        self,
        events: AsyncGenerator[Event, None],
        writer: ResponseWriter,
        keep: Callable[[dict[str, Any]], Awaitable[bool]],
        *,
        is_streaming: bool,
        warnings: Sequence[str],
    ) -> None:
        """Respond with these events; `keep` gets the complete response."""
        super().__init__(
            events, writer, is_streaming=is_streaming, warnings=warnings, warnings_of=warnings_of
        )
        self._responses, self._keep = writer, keep

    async def written(self, event: Event) -> bytes:
        """Return the server-sent events of an event."""
        sent = self._responses.sent(event)
        for each in sent:
            if each["type"] in _LAST:
                await self._settle(each["response"])
        return named_events(sent)

    async def whole(self, events: Sequence[Event]) -> object:
        """Return the response that is not streamed."""
        response = self._responses.whole(events)
        await self._settle(response)
        return response

    async def _settle(self, response: dict[str, Any]) -> None:
        kept = {name: value for name, value in response.items() if name != "captured"}
        response["store"] = await self._keep(kept)


def stored_response_routes(store: ResponseStore) -> list[Route]:
    """Return the routes."""

    async def response(http: Request) -> Response:
        """`GET /v1/responses/{response_id}`: a response that was kept."""
        if http.query_params.get("stream") == "true":
            raise RequestError("stream: a response that was kept is returned whole")
        return JSONResponse(await store.get(current_caller(), http.path_params["response_id"]))

    async def delete(http: Request) -> Response:
        """`DELETE /v1/responses/{response_id}`: delete a response."""
        id = http.path_params["response_id"]
        await store.delete(current_caller(), id)
        return JSONResponse({"id": id, "object": "response", "deleted": True})

    async def input_items(http: Request) -> Response:
        """`GET /v1/responses/{response_id}/input_items`: what a response was made from."""
        items = await store.input_items(current_caller(), http.path_params["response_id"])
        return item_page(http, items)

    return [
        get("/v1/responses/{response_id}", response),
        raw(("DELETE",), "/v1/responses/{response_id}", delete, Access.USE),
        get("/v1/responses/{response_id}/input_items", input_items),
    ]


def item_page(http: Request, items: list[Item]) -> Response:
    """Return the part of some items, the first one first, that a request asks for.

    Raises:
        RequestError: naming the parameter that is wrong.
    """
    page = check_page(http.query_params, _LIMIT, most=_MOST)
    found = items if page.is_ascending else items[::-1]
    if page.after is not None:
        places = [index for index, item in enumerate(found) if item["id"] == page.after]
        if not places:
            raise RequestError(f"after: item {page.after[:100]!r} not found")
        found = found[places[0] + 1 :]
    return JSONResponse(listed(found[: page.limit], has_more=len(found) > page.limit))
