"""What an answer consists of."""

from __future__ import annotations

from typing import Any, TypeAlias

import msgspec


class Thinking(msgspec.Struct, frozen=True, tag="thinking"):
    """What the model says to itself."""

    text: str


class Content(msgspec.Struct, frozen=True, tag="content"):
    """Text for the reader."""

    text: str


class ToolCall(msgspec.Struct, frozen=True, tag="tool_call"):
    """A function that the model wants called; the arguments are in the model's order.

    `id` is the model's own name for the call, in the formats that have one.
    """

    name: str
    arguments: dict[str, Any]
    id: str | None = None


Part: TypeAlias = Thinking | Content | ToolCall
