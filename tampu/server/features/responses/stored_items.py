"""Loads the items that a response continues, and stores its own at its end."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from tampu.errors import NotFoundError, RequestError, TampuError
from tampu.server.features.responses.conversation_requests import conversation_id
from tampu.server.features.responses.conversation_store import ConversationStore
from tampu.server.features.responses.requests import ResponsesRequest
from tampu.server.features.responses.store import Item, ResponseStore, with_ids
from tampu.server.front.caller import Caller

logger = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class KeptItems:
    """The responses and the conversations of a server."""

    responses: ResponseStore
    conversations: ConversationStore

    async def resolve(self, caller: Caller, given: Sequence[Item], field: str) -> list[Item]:
        """Return items with the stored item in place of each reference (`item_reference`).

        Raises:
            NotFoundError: if no stored response or conversation has an item with that id.
        """
        ids = [_reference_id(item, f"{field}[{index}]") for index, item in enumerate(given)]
        wanted = {id for id in ids if id is not None}
        if not wanted:
            return [*given]
        stored = await self.responses.find_items(caller, wanted)
        if wanted > stored.keys():
            stored |= await self.conversations.find_items(caller, wanted - stored.keys())
        for index, id in enumerate(ids):
            if id is not None and id not in stored:
                raise NotFoundError(
                    f"{field}[{index}]: Item with id {id[:100]!r} not found. Only items of stored "
                    "responses and conversations can be referred to (`store` must not be false)"
                )
        return [item if id is None else stored[id] for id, item in zip(ids, given, strict=True)]

    async def whole(self, caller: Caller, body: ResponsesRequest) -> str | list[Item] | None:
        """Return the input of a response, preceded by the items that it continues.

        Raises:
            RequestError: if that is not there, or two things are named.
            NotFoundError: if there is no such conversation.
        """
        earlier: list[Item] = []
        id = conversation_id(body.conversation)
        if id is not None and body.previous_response_id is not None:
            raise RequestError("previous_response_id cannot be combined with conversation")
        if id is not None:
            earlier = await self.conversations.items(caller, id)
        elif body.previous_response_id is not None:
            earlier = await self.responses.conversation(caller, body.previous_response_id)
        else:
            return body.input
        return [*earlier, *with_ids(body.input)] if body.input else earlier

    async def keep(
        self, caller: Caller, body: ResponsesRequest, response: dict[str, Any], *, is_kept: bool
    ) -> bool:
        """Keep a response that has ended, and add its items to its conversation.

        Return whether the response is kept. The log says what is not kept.
        """
        given = with_ids(body.input) if body.input else []
        id = conversation_id(body.conversation)
        if id is not None:
            try:
                earlier = await self.conversations.items(caller, id)
                await self.conversations.append(caller, id, [*given, *response["output"]])
            except TampuError as error:  # it was deleted meanwhile, or the disk is full
                logger.error("conversation %s: items not kept: %s", id[:100], error)
                return False
            given = [*earlier, *given]  # it may be gone on from after the conversation has changed
        return is_kept and await self.responses.add(caller, given, response)


def _reference_id(item: dict[str, Any], where: str) -> str | None:
    """Return the id of a reference to a stored item, None for an item itself.

    OpenAI's clients may leave out the type of a reference.
    """
    if item.get("type") != "item_reference" and (item.get("type"), *item) != (None, "id"):
        return None
    id = item.get("id")
    if not isinstance(id, str):
        raise RequestError(f"{where}: item_reference needs an id")
    return id
