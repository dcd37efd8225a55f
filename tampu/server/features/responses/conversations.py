"""OpenAI's API: conversations and their items."""

from __future__ import annotations

from starlette.requests import Request
from starlette.responses import Response

from tampu.server.features.responses.conversation_requests import (
    ConversationRequest,
    ItemsRequest,
    MetadataRequest,
    check_items,
)
from tampu.server.features.responses.store import Item
from tampu.server.features.responses.stored import item_page
from tampu.server.features.responses.stored_items import KeptItems
from tampu.server.fields.media import ImageSource
from tampu.server.front.body import parsed
from tampu.server.front.caller import current_caller
from tampu.server.front.http_response import JSONResponse
from tampu.server.front.pagination import check_metadata, listed
from tampu.server.front.routes import Access, Route, get, post, raw


def conversation_routes(kept: KeptItems, images: ImageSource) -> list[Route]:
    """Return the routes."""
    api = ConversationsAPI(kept, images)
    one = "/v1/conversations/{conversation_id}"
    return [
        post("/v1/conversations", api.create, ConversationRequest),
        get(one, api.conversation),
        post(one, api.update, MetadataRequest),
        raw(("DELETE",), one, api.delete, Access.USE),
        post(f"{one}/items", api.add, ItemsRequest),
        get(f"{one}/items", api.items),
        get(f"{one}/items/{{item_id}}", api.item),
        raw(("DELETE",), f"{one}/items/{{item_id}}", api.delete_item, Access.USE),
    ]


class ConversationsAPI:
    """The handlers."""

    def __init__(self, kept: KeptItems, images: ImageSource) -> None:
        self._kept, self._store = kept, kept.conversations
        self._images = images

    async def create(self, http: Request, body: ConversationRequest) -> Response:
        """`POST /v1/conversations`: a new conversation."""
        metadata = check_metadata(body.metadata)
        items = await self._checked(http, body.items or [])
        return JSONResponse(await self._store.create(current_caller(), items, metadata))

    async def conversation(self, http: Request) -> Response:
        """`GET /v1/conversations/{conversation_id}`: a conversation."""
        return JSONResponse(await self._store.get(current_caller(), _id(http)))

    async def update(self, http: Request, body: MetadataRequest) -> Response:
        """`POST /v1/conversations/{conversation_id}`: other metadata for a conversation."""
        metadata = check_metadata(body.metadata)
        return JSONResponse(await self._store.update(current_caller(), _id(http), metadata))

    async def delete(self, http: Request) -> Response:
        """`DELETE /v1/conversations/{conversation_id}`: delete a conversation."""
        await self._store.delete(current_caller(), _id(http))
        return JSONResponse({"id": _id(http), "object": "conversation.deleted", "deleted": True})

    async def add(self, http: Request, body: ItemsRequest) -> Response:
        """`POST /v1/conversations/{conversation_id}/items`: add items to a conversation."""
        items = await self._checked(http, body.items)
        added = await self._store.append(current_caller(), _id(http), items)
        return JSONResponse(listed(added, has_more=False))

    async def items(self, http: Request) -> Response:
        """`GET /v1/conversations/{conversation_id}/items`: the items of a conversation."""
        return item_page(http, await self._store.items(current_caller(), _id(http)))

    async def item(self, http: Request) -> Response:
        """`GET /v1/conversations/{conversation_id}/items/{item_id}`: one item."""
        found = await self._store.item(current_caller(), _id(http), http.path_params["item_id"])
        return JSONResponse(found)

    async def delete_item(self, http: Request) -> Response:
        """`DELETE /v1/conversations/{conversation_id}/items/{item_id}`: delete one item."""
        item_id = http.path_params["item_id"]
        return JSONResponse(await self._store.delete_item(current_caller(), _id(http), item_id))

    async def _checked(self, http: Request, items: list[Item]) -> list[Item]:
        items = await self._kept.resolve(current_caller(), items, "items")
        await self._images.fill(items)
        await parsed(http, check_items, items)
        return items


def _id(http: Request) -> str:
    return str(http.path_params["conversation_id"])
