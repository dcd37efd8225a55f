"""The events of a response, which each API family translates into its own format.

For each choice one `Started`, any number of `ReasoningDelta`, `ContentDelta` and tool calls, and
one `Finished`. A tool call is one `ToolCallStarted`, any number of `ToolCallDelta`, and one
`ToolCallFinished`; one that this server runs has events of its own (`MCPCallStarted`, ...). Choices
run concurrently, so their events may alternate.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Literal, TypeAlias

import msgspec

from tampu.chat.output.stream_parser import CallState
from tampu.runner.events import BatchNumbers, Limit, TextDelta, TokenLogprob, Usage

EndReason: TypeAlias = Literal["stop", "length", "cancelled", "tool_calls", "load"]


class Started(msgspec.Struct, frozen=True):
    """The prompt is these tokens; the model was ready at `ready_ns` of the monotonic clock.

    `warnings` say where the request is not answered as it asked: for the response's head. `begin`
    and `dropped` are as in `PromptProcessed`.
    """

    tokens: tuple[int, ...]
    ready_ns: int
    choice: int = 0
    warnings: tuple[str, ...] = ()
    begin: str = ""
    dropped: int = 0


class PromptProgress(msgspec.Struct, frozen=True):
    """A part of the prompt is computed, if that is requested; as in `tampu.runner.events`."""

    tokens: int
    cached: int
    processed: int
    elapsed_ns: int
    choice: int = 0


class _Text(msgspec.Struct, frozen=True):
    """A piece of text, the tokens that came with it, and their logprobs if requested."""

    text: str
    tokens: tuple[int, ...] = ()
    logprobs: tuple[TokenLogprob, ...] = ()
    choice: int = 0


class ContentDelta(_Text, frozen=True):
    """Text of the answer."""


class ReasoningDelta(_Text, frozen=True):
    """Text of the reasoning."""


class ToolCallStarted(msgspec.Struct, frozen=True):
    """A tool call begins; `index` counts the calls of the answer."""

    id: str
    name: str
    index: int
    choice: int = 0


class ToolCallDelta(msgspec.Struct, frozen=True):
    """The next characters of a call's arguments, which are JSON."""

    text: str
    index: int
    choice: int = 0


class ToolCallFinished(msgspec.Struct, frozen=True):
    """A tool call with all its arguments; `state` and `text` as in `ToolCallEnd`."""

    id: str
    name: str
    arguments: str
    index: int
    state: CallState = "complete"
    text: str = ""
    choice: int = 0


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


class Finished(msgspec.Struct, frozen=True):
    """The choice is complete; `load`: the request only loaded the model. The rest as in `Done`."""

    reason: EndReason
    usage: Usage
    ready_ns: int
    stop: str | None = None
    choice: int = 0
    batches: BatchNumbers | None = None
    limit: Limit | None = None
    end: TextDelta | None = None


class PromptLogprobs(msgspec.Struct, frozen=True):
    """The prompt's first token, and the logprobs of the others; before `Finished`, if requested."""

    first: bytes
    logprobs: tuple[TokenLogprob, ...]
    choice: int = 0


Event: TypeAlias = (
    Started
    | PromptProgress
    | ContentDelta
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
    | Finished
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
        ContentDelta(event.text, choice=event.choice)
        if isinstance(event, ToolCallFinished) and event.state == "broken"
        else event
        for event in events
        if not isinstance(event, ToolCallStarted | ToolCallDelta)
        or (event.choice, event.index) not in broken
    ]


def total_usage(events: list[Finished], choices: int) -> Usage:
    """Return the usage of all choices; each prompt counts once."""
    by_choice = sorted(events, key=lambda event: event.choice)
    prompts = by_choice[::choices]
    return Usage(
        prompt_tokens=sum(event.usage.prompt_tokens for event in prompts),
        cached_tokens=sum(event.usage.cached_tokens for event in prompts),
        generated_tokens=sum(event.usage.generated_tokens for event in by_choice),
        prompt_ns=sum(event.usage.prompt_ns for event in prompts),
        generated_ns=max((event.usage.generated_ns for event in by_choice), default=0),
    )
