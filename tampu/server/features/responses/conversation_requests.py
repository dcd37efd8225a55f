"""Requests for conversations, in OpenAI's form."""

from __future__ import annotations

from typing import Any

import msgspec

from tampu.errors import RequestError, require
from tampu.server.openai.items import read_items

_MAX_ITEMS = 20  # OpenAI's


class ConversationRequest(msgspec.Struct, forbid_unknown_fields=True):
    """The body of `POST /v1/conversations`."""

    items: list[dict[str, Any]] | None = None
    metadata: dict[str, str] | None = None


class MetadataRequest(msgspec.Struct, forbid_unknown_fields=True):
    """The body of `POST /v1/conversations/{conversation_id}`."""

    metadata: dict[str, str] | None


class ItemsRequest(msgspec.Struct, forbid_unknown_fields=True):
    """The body of `POST /v1/conversations/{conversation_id}/items`."""

    items: list[dict[str, Any]]
    include: list[str] | None = None


def check_items(items: list[dict[str, Any]]) -> None:
    """Do nothing if a conversation may get these items.

    Raises:
        RequestError: naming the one that is wrong.
    """
    require(len(items) <= _MAX_ITEMS, f"items: at most {_MAX_ITEMS} at once, not {len(items)}")
    if items:
        read_items(items, field="items")
    for index, item in enumerate(items):
        is_text = item.get("id") is None or isinstance(item["id"], str)
        require(is_text, f"items[{index}].id must be a text")


def conversation_id(given: object) -> str | None:
    """Return the id of the conversation that a request for a response names; None: it names none.

    Raises:
        RequestError: if it is neither an id nor an object with one.
    """
    match given:
        case None:
            return None
        case str(id) | {"id": str(id)}:
            return id
        case _:
            raise RequestError("conversation must be an id, or an object with an id")
