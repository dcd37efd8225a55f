"""Anthropic's API: from the events of a request to blocks, streamed or whole."""

from __future__ import annotations

import secrets
from collections.abc import Iterator, Sequence
from typing import Any

import msgspec

from tampu.engine.events import Started, ToolCallDelta, ToolCallFinished, ToolCallStarted
from tampu.errors import TampuError
from tampu.runner.events import Done, ReasoningDelta, TextDelta, Usage
from tampu.server.front.errors import anthropic_error, public_message, status_of
from tampu.server.front.http_response import SSE, named_event
from tampu.server.serving.events import (
    Event,
    MCPCallDelta,
    MCPCallFinished,
    MCPCallStarted,
    MCPCallWritten,
    without_broken_calls,
)

# Reasoning is not signed, but some clients return only blocks with a signature.
_SIGNATURE = "tampu"
_REASONS = {"length": "max_tokens", "tool_calls": "tool_use"}


class MessageWriter:
    """The response to `POST /v1/messages`.

    A stream is the start of a message, its blocks one after the other, and the end of the message:

        message_start  (content_block_start  content_block_delta*  content_block_stop)*
        message_delta  message_stop
    """

    media_type = SSE

    def __init__(self, model: str, *, hides_reasoning: bool = False) -> None:
        """Respond under the model name from the request; reasoning may be sent as empty blocks."""
        self._hides_reasoning = hides_reasoning
        self._reasoning_tokens = 0
        self._id = f"msg_{secrets.token_hex(12)}"
        self._model = model
        self._index = -1
        self._open = ""

    def write(self, event: Event) -> bytes:
        """Return the server-sent events of an event."""
        return b"".join(map(named_event, self._events(event)))

    def end(self) -> bytes:
        """Return the mark that ends the stream."""
        return named_event({"type": "message_stop"})

    def fail(self, error: TampuError) -> bytes:
        """Return a server-sent event with the error."""
        return named_event(anthropic_error(status_of(error), public_message(error)))

    def whole(self, events: Sequence[Event]) -> dict[str, Any]:
        """Return the message that is not streamed."""
        whole = without_broken_calls(events)
        streamed = [sent for event in whole for sent in self._events(event)]
        inputs = {
            f"toolu_{event.id}": msgspec.json.decode(event.arguments)
            for event in whole
            if isinstance(event, ToolCallFinished) and event.state == "complete"
        }
        inputs |= {
            f"mcptoolu_{event.id}": _input_of(event)
            for event in whole
            if isinstance(event, MCPCallFinished)
        }
        blocks: list[dict[str, Any]] = []
        for sent in streamed:
            delta = sent.get("delta", {})
            if "content_block" in sent:
                blocks.append(sent["content_block"])
            elif "partial_json" in delta:
                blocks[-1]["input"] = inputs.get(blocks[-1]["id"], {})
            elif sent["type"] == "content_block_delta":
                [name] = delta.keys() - {"type"}
                blocks[-1][name] += delta[name]
        end = streamed[-1]
        return {**self._message(blocks, end["usage"]), **end["delta"]}

    def _events(self, event: Event) -> Iterator[dict[str, Any]]:
        match event:
            case Started(tokens=tokens):
                usage = usage_object(Usage(prompt_tokens=len(tokens)))
                yield {"type": "message_start", "message": self._message([], usage)}
            case ReasoningDelta(text=text):
                self._reasoning_tokens += len(event.tokens)
                if text:
                    start = {"type": "thinking", "thinking": "", "signature": ""}
                    yield from self._switch("thinking", start)
                if text and not self._hides_reasoning:
                    yield self._delta({"type": "thinking_delta", "thinking": text})
            case TextDelta(text=text) if text:
                yield from self._switch("text", {"type": "text", "text": ""})
                yield self._delta({"type": "text_delta", "text": text})
            case ToolCallStarted() | ToolCallDelta() | ToolCallFinished():
                yield from self._call_events(event)
            case MCPCallStarted() | MCPCallDelta() | MCPCallWritten() | MCPCallFinished():
                yield from self._mcp_events(event)
            case Done():
                if self._index < 0:
                    yield from self._switch("text", {"type": "text", "text": ""})
                yield from self._close()
                usage = usage_object(event.usage, self._reasoning_tokens)
                yield {"type": "message_delta", "delta": _end(event), "usage": usage}

    def _call_events(
        self, event: ToolCallStarted | ToolCallDelta | ToolCallFinished
    ) -> Iterator[dict[str, Any]]:
        match event:
            case ToolCallStarted(id=id, name=name):
                start = {"type": "tool_use", "id": f"toolu_{id}", "name": name, "input": {}}
                yield from self._switch("tool_use", start, is_new=True)
            case ToolCallDelta(text=text):
                yield self._delta({"type": "input_json_delta", "partial_json": text})
            case ToolCallFinished():
                yield from self._close()

    def _mcp_events(
        self, event: MCPCallStarted | MCPCallDelta | MCPCallWritten | MCPCallFinished
    ) -> Iterator[dict[str, Any]]:
        match event:
            case MCPCallStarted(id=id, tool=tool, server=server):
                kind = "mcp_tool_use"
                start = {"type": kind, "id": f"mcptoolu_{id}", "name": tool, "server_name": server}
                yield from self._switch(kind, start | {"input": {}}, is_new=True)
            case MCPCallDelta(text=text):
                yield self._delta({"type": "input_json_delta", "partial_json": text})
            case MCPCallWritten():
                yield from self._close()
            case MCPCallFinished(id=id, output=output, error=error):
                kind = "mcp_tool_result"
                result = {
                    "type": kind,
                    "tool_use_id": f"mcptoolu_{id}",
                    "is_error": output is None,
                    "content": [{"type": "text", "text": error if output is None else output}],
                }
                yield from self._switch(kind, result, is_new=True)
                yield from self._close()

    def _switch(
        self, kind: str, block: dict[str, Any], *, is_new: bool = False
    ) -> Iterator[dict[str, Any]]:
        """End the open block and start another, unless the open one continues."""
        if self._open == kind and not is_new:
            return
        yield from self._close()
        self._index += 1
        self._open = kind
        yield {"type": "content_block_start", "index": self._index, "content_block": block}

    def _close(self) -> Iterator[dict[str, Any]]:
        if self._open == "thinking":
            yield self._delta({"type": "signature_delta", "signature": _SIGNATURE})
        if self._open:
            self._open = ""
            yield {"type": "content_block_stop", "index": self._index}

    def _delta(self, delta: dict[str, Any]) -> dict[str, Any]:
        return {"type": "content_block_delta", "index": self._index, "delta": delta}

    def _message(self, content: Sequence[object], usage: dict[str, Any]) -> dict[str, Any]:
        return {
            "id": self._id,
            "type": "message",
            "role": "assistant",
            "model": self._model,
            "content": content,
            "stop_reason": None,
            "stop_sequence": None,
            "usage": usage,
        }


def usage_object(usage: Usage, reasoning_tokens: int = 0) -> dict[str, Any]:
    """Return the usage of an answer in Anthropic's format: cached tokens are separate."""
    return {
        "input_tokens": usage.prompt_tokens - usage.cached_tokens,
        "cache_creation_input_tokens": 0,
        "cache_read_input_tokens": usage.cached_tokens,
        "output_tokens": usage.generated_tokens,
        "output_tokens_details": {"thinking_tokens": reasoning_tokens},
    }


def _input_of(event: MCPCallFinished) -> dict[str, Any]:
    try:
        return msgspec.json.decode(event.arguments or "{}", type=dict[str, Any])
    except msgspec.DecodeError:
        return {}


def _end(event: Done) -> dict[str, Any]:
    reason = "stop_sequence" if event.stop is not None else "end_turn"
    return {"stop_reason": _REASONS.get(event.reason, reason), "stop_sequence": event.stop}
