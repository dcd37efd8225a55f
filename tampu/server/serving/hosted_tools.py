"""Tools that the server itself calls for a model, such as those of MCP servers."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Callable
from dataclasses import dataclass, field
from typing import Any, Protocol, TypeAlias

from tampu.server.serving.events import Event, MCPToolsListed
from tampu.server.serving.generation_request import GenerationRequest
from tampu.store.catalog import Entry

# Makes a tool of a request in the form of its API: from a name, a description and a schema.
Form: TypeAlias = Callable[[str, str, dict[str, Any]], dict[str, Any]]


@dataclass(frozen=True, slots=True)
class Offer:
    """The tools of a request with those of MCP servers among them.

    Attributes:
        tools: as the request has them, functions in the place of each server.
        listed: the tools of each server, for the response.
        runs: the server and the tool of each function whose calls are run here, by its name.
    """

    tools: list[dict[str, Any]]
    listed: list[MCPToolsListed] = field(default_factory=list)
    runs: dict[str, tuple[str, str]] = field(default_factory=dict)


class HostedTools(Protocol):
    """Offers tools to requests, and generates answers for which it calls them."""

    async def offer(self, tools: list[dict[str, Any]] | None, form: Form) -> Offer:
        """Return the tools of a request, hosted ones in the form of its API."""
        ...

    def generate(
        self, entry: Entry, request: GenerationRequest, offer: Offer
    ) -> AsyncGenerator[Event, None]:
        """Return the events of a request; calls of hosted tools are run."""
        ...

    async def close(self) -> None:
        """End what runs."""
        ...


def chat_form(name: str, description: str, schema: dict[str, Any]) -> dict[str, Any]:
    """Return a function as OpenAI's chats and Ollama's have it."""
    function = {"name": name, "description": description, "parameters": schema}
    return {"type": "function", "function": function}


def message_form(name: str, description: str, schema: dict[str, Any]) -> dict[str, Any]:
    """Return a tool as Anthropic's messages have it."""
    return {"name": name, "description": description, "input_schema": schema}
