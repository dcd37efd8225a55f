"""Runs an answer in rounds: the model calls tools of MCP servers and reads their results.

The events of all rounds are one answer: one `Started`, one `Done` with the usage of all rounds.
A round that also calls functions of the client, or ends at a limit, is the last.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Awaitable, Callable, Iterator, Mapping, Sequence
from contextlib import aclosing
from dataclasses import dataclass, field, replace
from typing import Any, TypeAlias

import msgspec

from tampu.chat.messages import read_arguments, template_message, tool_call
from tampu.engine.events import Started, ToolCallDelta, ToolCallFinished, ToolCallStarted
from tampu.engine.prompts import ChatPrompt
from tampu.runner.events import Done, ReasoningDelta, TextDelta, Usage
from tampu.server.fields.tools import full_name
from tampu.server.serving.events import (
    Event,
    MCPCallDelta,
    MCPCallFinished,
    MCPCallStarted,
    MCPCallWritten,
    MCPToolsListed,
)
from tampu.server.serving.generation_request import GenerationRequest

_CUT = "not run: the answer ended at its limit"
_BROKEN = "the arguments are not a JSON object"
_LIMIT = "not run: the limit of {} rounds of tool calls is reached; answer with what is known"


@dataclass(frozen=True, slots=True)
class MCPCall:
    """A call of a server's tool; one that is not complete is not run."""

    id: str
    server: str
    tool: str
    arguments: str
    is_complete: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class Result:
    """The result of a call; one of both is None."""

    output: str | None = None
    error: str | None = None

    @property
    def text(self) -> str:
        """What the model reads."""
        return f"Error: {self.error}" if self.output is None else self.output


class MCPToolError(Exception):
    """A call that the server answered with an error; the text is for the model."""


Run: TypeAlias = Callable[[MCPCall], Awaitable[Result]]
Generate: TypeAlias = Callable[[GenerationRequest], AsyncGenerator[Event, None]]


async def with_rounds(
    generate: Generate,
    request: GenerationRequest,
    listed: Sequence[MCPToolsListed],
    runs: Mapping[str, tuple[str, str]],
    run: Run,
    max_rounds: int,
) -> AsyncGenerator[Event, None]:
    """Yield the events of a request with one choice.

    Args:
        generate: returns the events of one round.
        request: of the first round.
        listed: the tools that are offered.
        runs: the server and the tool of each function whose calls are run, by its name.
        run: runs a call.
        max_rounds: in which calls are run; a round follows in which they fail, and that is all.
    """
    usage = Usage()
    client_calls = 0
    for number in range(max_rounds + 2):
        current = _Round(runs, client_calls)
        async with aclosing(generate(request)) as events:
            async for event in events:
                if isinstance(event, Started) and number > 0:
                    continue
                for own in current.events(event):
                    yield own
                if isinstance(event, Started):
                    for each in listed:
                        yield each
        client_calls = current.client_calls
        end = current.end
        if end is None:
            return
        usage = added(usage, end.usage)
        refusal = _LIMIT.format(max_rounds) if number >= max_rounds else _CUT
        may_run = number < max_rounds and not current.is_cut
        results = await _results(current.calls, run if may_run else None, refusal)
        for call, result in zip(current.calls, results, strict=True):
            yield MCPCallFinished(
                call.id, call.server, call.tool, call.arguments, result.output, result.error
            )
        following = _following(request, current, results)
        if following is None or number > max_rounds:
            is_unfinished = current.calls and not current.has_client_calls
            reason = "length" if is_unfinished else end.reason
            yield msgspec.structs.replace(end, usage=usage, reason=reason)
            return
        request = following


async def _results(calls: Sequence[MCPCall], run: Run | None, refusal: str) -> Sequence[Result]:
    """Return the results of calls, run side by side; without `run` they fail with `refusal`."""

    async def result(call: MCPCall) -> Result:
        if run is None:
            return Result(error=refusal)
        return await run(call) if call.is_complete else Result(error=_BROKEN)

    return await asyncio.gather(*map(result, calls))


def _following(
    request: GenerationRequest, current: _Round, results: Sequence[Result]
) -> GenerationRequest | None:
    """Return the request of the next round; None: this one was the last."""
    [prompt] = request.prompts
    if not current.calls or current.has_client_calls or current.is_cut:
        return None
    if not isinstance(prompt, ChatPrompt):
        return None
    options = request.options
    if options.max_tokens is not None:
        # What all rounds together may still generate.
        left = options.max_tokens - (current.end.usage.generated_tokens if current.end else 0)
        if left < 1:
            return None
        options = msgspec.structs.replace(options, max_tokens=left)
    messages = (*prompt.messages, *current.messages(results))
    last, first = prompt.messages[-1], messages[len(prompt.messages)]
    if last["role"] == "assistant":  # whose text the answer continued
        joined = {**last, **first, "content": str(last["content"]) + str(first["content"])}
        messages = (*prompt.messages[:-1], joined, *messages[len(prompt.messages) + 1 :])
    structure = request.structure
    if structure is not None and structure.must_call:
        structure = None  # it has called
    return replace(
        request,
        prompts=(msgspec.structs.replace(prompt, messages=messages),),
        options=options,
        structure=structure,
    )


def added(first: Usage, second: Usage) -> Usage:
    """Return the usage of two rounds together."""
    return Usage(
        **{name: getattr(first, name) + getattr(second, name) for name in Usage.__struct_fields__}
    )


@dataclass(slots=True)
class _Round:
    """One round: what it says, and what it calls.

    Attributes:
        runs: as in `with_rounds`.
        client_calls: calls of the client's functions, with those of earlier rounds.
        has_client_calls: whether there are some in this round.
        calls: those that are run here.
        end: its last event.
    """

    runs: Mapping[str, tuple[str, str]]
    client_calls: int
    has_client_calls: bool = False
    calls: list[MCPCall] = field(default_factory=list)
    end: Done | None = None
    _open: MCPCallStarted | None = None
    _content: list[str] = field(default_factory=list)
    _reasoning: list[str] = field(default_factory=list)

    @property
    def is_cut(self) -> bool:
        """Whether it ended at a limit."""
        return self.end is None or self.end.reason not in ("stop", "tool_calls")

    def events(self, event: Event) -> Iterator[Event]:
        """Yield an event as one of the whole answer."""
        match event:
            case Done():
                self.end = event
                return
            case ToolCallStarted() if event.name in self.runs:
                self._open = MCPCallStarted(event.id, *self.runs[event.name])
                yield self._open
                return
            case ToolCallStarted():
                self._open = None
                yield msgspec.structs.replace(event, index=self.client_calls)
                return
            case ToolCallDelta() if self._open is not None:
                yield MCPCallDelta(self._open.id, event.text)
                return
            case ToolCallDelta():
                yield msgspec.structs.replace(event, index=self.client_calls)
                return
            case ToolCallFinished() if self._open is not None:
                begun = self._open
                is_complete = event.state == "complete"
                call = MCPCall(begun.id, begun.server, begun.tool, event.arguments, is_complete)
                self.calls.append(call)
                self._open = None
                yield MCPCallWritten(call.id, call.arguments)
                return
            case ToolCallFinished():
                yield msgspec.structs.replace(event, index=self.client_calls)
                self.client_calls += 1
                self.has_client_calls = True
                return
            case TextDelta():
                self._content.append(event.text)
            case ReasoningDelta():
                self._reasoning.append(event.text)
        yield event

    def messages(self, results: Sequence[Result]) -> list[dict[str, Any]]:
        """Return what the next round reads of this one."""
        calls = [
            tool_call(call.id, full_name(call.server, call.tool), read_arguments(call.arguments))
            for call in self.calls
        ]
        said = template_message(
            "assistant",
            "".join(self._content),
            reasoning_content="".join(self._reasoning),
            tool_calls=calls,
        )
        answers = [
            template_message(
                "tool",
                result.text,
                tool_call_id=call.id,
                name=full_name(call.server, call.tool),
            )
            for call, result in zip(self.calls, results, strict=True)
        ]
        return [said, *answers]
