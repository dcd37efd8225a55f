"""The events of a response, which each API family translates into its own format.

They are those of `tampu.engine.events`, and the calls that this server runs itself.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, TypeAlias

import msgspec

from tampu.engine.events import (
    PromptLogprobs,
    Started,
    ToolCallDelta,
    ToolCallFinished,
    ToolCallStarted,
)
from tampu.runner.events import Done, PromptProgress, ReasoningDelta, TextDelta, Usage


class MCPToolsListed(msgspec.Struct, frozen=True):
    """The tools of an MCP server that the model is offered, as OpenAI's API lists them."""

    server: str
    tools: tuple[dict[str, Any], ...]
    choice: int = 0


class MCPCallStarted(msgspec.Struct, frozen=True):
    """A call begins that this server runs."""

    id: str
    server: str
    tool: str
    choice: int = 0


class MCPCallDelta(msgspec.Struct, frozen=True):
    """The next characters of its arguments."""

    id: str
    text: str
    choice: int = 0


class MCPCallWritten(msgspec.Struct, frozen=True):
    """Its arguments are complete; it is run at the end of the round."""

    id: str
    arguments: str
    choice: int = 0


class MCPCallFinished(msgspec.Struct, frozen=True):
    """It has ended; `error` is None if it has an output."""

    id: str
    server: str
    tool: str
    arguments: str
    output: str | None
    error: str | None
    choice: int = 0


Event: TypeAlias = (
    Started
    | PromptProgress
    | TextDelta
    | ReasoningDelta
    | ToolCallStarted
    | ToolCallDelta
    | ToolCallFinished
    | MCPToolsListed
    | MCPCallStarted
    | MCPCallDelta
    | MCPCallWritten
    | MCPCallFinished
    | PromptLogprobs
    | Done
)


def warnings_of(event: Event) -> tuple[str, ...]:
    """Return what the head of the response says of an event."""
    return event.warnings if isinstance(event, Started) else ()


def without_broken_calls(events: Sequence[Event]) -> Sequence[Event]:
    """Return events in which calls whose arguments are not JSON are text, as they were written."""
    broken = {
        (event.choice, event.index)
        for event in events
        if isinstance(event, ToolCallFinished) and event.state == "broken"
    }
    return [
        TextDelta(event.text, choice=event.choice)
        if isinstance(event, ToolCallFinished) and event.state == "broken"
        else event
        for event in events
        if not isinstance(event, ToolCallStarted | ToolCallDelta)
        or (event.choice, event.index) not in broken
    ]


def total_usage(events: list[Done], choices: int) -> Usage:
    """Return the usage of all choices; each prompt counts once."""
    prompt = cached = prompt_ns = generated = generated_ns = drafted = accepted = 0
    for event in events:
        usage = event.usage
        if event.choice % choices == 0:
            prompt += usage.prompt_tokens
            cached += usage.cached_tokens
            prompt_ns += usage.prompt_ns
        generated += usage.generated_tokens
        drafted += usage.drafted_tokens
        accepted += usage.accepted_tokens
        generated_ns = max(generated_ns, usage.generated_ns)
    return Usage(
        prompt, cached, prompt_ns, generated, generated_ns,
        drafted_tokens=drafted, accepted_tokens=accepted,
    )  # fmt: skip
