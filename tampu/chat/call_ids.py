"""Ids of tool calls in conversations for models of Mistral, whose templates take no others."""

from __future__ import annotations

import hashlib
import re
from collections.abc import Mapping, Sequence
from typing import Any

_TAKEN = re.compile(r"[a-zA-Z0-9]{9}")


def nine_characters(id: str) -> str:
    """Return an id of nine letters and digits: the same one, or one that is always made of it."""
    if _TAKEN.fullmatch(id):
        return id
    return hashlib.sha256(id.encode("utf-8", "surrogatepass")).hexdigest()[:9]


def with_nine_characters(messages: Sequence[Mapping[str, Any]]) -> list[Mapping[str, Any]]:
    """Return a conversation in which all calls and results have ids of nine characters.

    Ids of other lengths come from clients, or from the model that answered before. A call without
    an id gets one of its place, and results without an id are those of the calls in their order.
    """
    converted: list[Mapping[str, Any]] = []
    waiting: list[str] = []  # calls without a result
    for index, message in enumerate(messages):
        if calls := message.get("tool_calls"):
            named = [
                {**call, "id": nine_characters(str(call.get("id") or f"{index}.{place}"))}
                for place, call in enumerate(calls)
            ]
            waiting = [call["id"] for call in named]
            message = {**message, "tool_calls": named}
        elif message.get("role") == "tool":
            given = message.get("tool_call_id")
            id = nine_characters(str(given)) if given else next(iter(waiting), "")
            if id in waiting:
                waiting.remove(id)
            message = {**message, "tool_call_id": id} if id else message
        converted.append(message)
    return converted
