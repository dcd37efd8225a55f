"""OpenAI's API of responses: from the events of a request to items, streamed or whole."""

from __future__ import annotations

import secrets
import time
from collections.abc import Iterator, Sequence
from typing import Any

from tampu.engine.events import Started, ToolCallDelta, ToolCallFinished, ToolCallStarted
from tampu.errors import TampuError
from tampu.runner.events import Done, PromptProgress, ReasoningDelta, TextDelta, TokenLogprob
from tampu.server.features.responses.conversation_requests import conversation_id
from tampu.server.features.responses.requests import ResponsesRequest
from tampu.server.features.responses.tools import namespaces
from tampu.server.fields.captures import captured_field
from tampu.server.fields.telemetry import timings
from tampu.server.front.errors import public_message
from tampu.server.front.http_response import SSE, named_event
from tampu.server.openai.output import chat_logprobs
from tampu.server.serving.events import (
    Event,
    MCPCallDelta,
    MCPCallFinished,
    MCPCallStarted,
    MCPCallWritten,
    MCPToolsListed,
    without_broken_calls,
)


class ResponseWriter:
    """The response to `POST /v1/responses`.

    A stream reports each item's start, deltas and end; the last event holds all items.
    """

    media_type = SSE

    def __init__(
        self,
        request: ResponsesRequest,
        *,
        truncates: bool = False,
        is_kept: bool = False,
    ) -> None:
        """Respond to a request; the response repeats many of its fields.

        Args:
            request: is responded to.
            truncates: whether input that is too long is cut, if the request does not say.
            is_kept: whether it is kept, so that later ones can continue it.
        """
        self._request = request
        self._is_kept = is_kept
        self._truncates = truncates
        self._id = f"resp_{secrets.token_hex(12)}"
        self._created = int(time.time())
        self._number = -1
        self._items: list[dict[str, Any]] = []
        self._open = ""
        self._text = ""
        self._logprobs: list[TokenLogprob] = []
        self._reasoning_tokens = 0
        self._namespaces = namespaces(request.tools)
        self._telemetry = request.telemetry()

    def write(self, event: Event) -> bytes:
        """Return the server-sent events of an event."""
        return named_events(self.sent(event))

    def sent(self, event: Event) -> list[dict[str, Any]]:
        """Return the server-sent events of an event as objects; the last one has the response."""
        more = self._telemetry.of(event)
        return [
            self._numbered(sent | more if _has_telemetry(sent) else sent)
            for sent in self._events(event)
        ]

    def end(self) -> bytes:
        """Return nothing: the last event is marked as such."""
        return b""

    def fail(self, error: TampuError) -> bytes:
        """Return a server-sent event with the error."""
        sent = {"type": "error", "code": None, "param": None, "message": public_message(error)}
        return named_event(self._numbered(sent))

    def whole(self, events: Sequence[Event]) -> dict[str, Any]:
        """Return the response that is not streamed."""
        whole = without_broken_calls(events)
        *_, last = (sent for event in whole for sent in self._events(event))
        response: dict[str, Any] = last["response"]
        return response

    def _events(self, event: Event) -> Iterator[dict[str, Any]]:
        match event:
            case Started():
                response = self._response("in_progress")
                yield {"type": "response.created", "response": response}
                yield {"type": "response.in_progress", "response": response}
            case PromptProgress() if self._telemetry.wants_progress:
                response = self._response("in_progress")
                yield {"type": "response.in_progress", "response": response}
            case TextDelta(text=""):
                self._logprobs += event.logprobs
            case ReasoningDelta():
                self._reasoning_tokens += len(event.tokens)
                yield from self._start("reasoning")
                yield from self._grow("reasoning_summary_text", event.text)
            case TextDelta():
                yield from self._start("message")
                self._logprobs += event.logprobs
                yield from self._grow("output_text", event.text)
            case ToolCallStarted() | ToolCallDelta() | ToolCallFinished():
                yield from self._call_events(event)
            case MCPToolsListed():
                yield from self._list_tools(event)
            case MCPCallStarted() | MCPCallDelta() | MCPCallWritten() | MCPCallFinished():
                yield from self._mcp_events(event)
            case Done():
                yield from self._finish(_status(event))
                yield self._end(event)

    def _start(self, kind: str) -> Iterator[dict[str, Any]]:
        """Start an item, unless one of its kind is open."""
        if self._open == kind:
            return
        yield from self._finish()
        self._open = kind
        if kind == "reasoning":
            item = {"type": kind, "id": f"rs_{secrets.token_hex(12)}", "summary": []}
        else:
            item = {
                "type": kind,
                "id": f"msg_{secrets.token_hex(12)}",
                "role": "assistant",
                "status": "in_progress",
                "content": [],
            }
        self._items.append(item)
        yield self._item_event("response.output_item.added", item)
        if kind == "message":
            yield self._part_event("response.content_part.added", {"part": _text_part("", [])})
        else:
            part = {"part": {"type": "summary_text", "text": ""}}
            yield self._part_event("response.reasoning_summary_part.added", part)

    def _grow(self, kind: str, text: str) -> Iterator[dict[str, Any]]:
        if text:
            self._text += text
            extra: dict[str, Any] = {"logprobs": []} if kind == "output_text" else {}
            yield self._part_event(f"response.{kind}.delta", {"delta": text, **extra})

    def _finish(self, status: str = "completed") -> Iterator[dict[str, Any]]:
        """End the item that is open; a message gets this status."""
        if not self._open:
            return
        item, text = self._items[-1], self._text
        if self._open == "reasoning":
            summary = {"type": "summary_text", "text": text}
            item = item | {"summary": [summary]}
            yield self._part_event("response.reasoning_summary_text.done", {"text": text})
            yield self._part_event("response.reasoning_summary_part.done", {"part": summary})
        else:
            part = _text_part(text, self._logprobs)
            item = item | {"status": status, "content": [part]}
            done = {"text": text, "logprobs": part["logprobs"]}
            yield self._part_event("response.output_text.done", done)
            yield self._part_event("response.content_part.done", {"part": part})
        self._items[-1] = item
        self._open, self._text, self._logprobs = "", "", []
        yield self._item_event("response.output_item.done", item)

    def _call_events(
        self, event: ToolCallStarted | ToolCallDelta | ToolCallFinished
    ) -> Iterator[dict[str, Any]]:
        match event:
            case ToolCallStarted():
                yield from self._finish()
                yield self._start_call(event)
            case ToolCallDelta(text=text):
                yield self._call_event("delta", {"delta": text})
            case ToolCallFinished():
                yield from self._finish_call(event)

    def _start_call(self, event: ToolCallStarted) -> dict[str, Any]:
        callee = self._namespaces.get(event.name) or {"name": event.name}
        item = {
            "type": "function_call",
            "id": f"fc_{secrets.token_hex(12)}",
            "call_id": event.id,
            **callee,
            "arguments": "",
            "status": "in_progress",
        }
        self._items.append(item)
        return self._item_event("response.output_item.added", item)

    def _finish_call(self, event: ToolCallFinished) -> Iterator[dict[str, Any]]:
        """End a call; one that is cut off or broken is incomplete."""
        done = {"arguments": event.arguments, "name": self._items[-1]["name"]}
        yield self._call_event("done", done)
        status = "completed" if event.state == "complete" else "incomplete"
        self._items[-1] = item = self._items[-1] | done | {"status": status}
        yield self._item_event("response.output_item.done", item)

    def _call_event(self, kind: str, more: dict[str, Any]) -> dict[str, Any]:
        place = {"item_id": self._items[-1]["id"], "output_index": len(self._items) - 1}
        return {"type": f"response.function_call_arguments.{kind}", **more, **place}

    def _list_tools(self, event: MCPToolsListed) -> Iterator[dict[str, Any]]:
        item = {
            "type": "mcp_list_tools",
            "id": f"mcpl_{secrets.token_hex(12)}",
            "server_label": event.server,
            "tools": event.tools,
            "error": None,
        }
        self._items.append(item)
        place = {"item_id": item["id"], "output_index": len(self._items) - 1}
        yield self._item_event("response.output_item.added", item | {"tools": []})
        yield {"type": "response.mcp_list_tools.in_progress", **place}
        yield {"type": "response.mcp_list_tools.completed", **place}
        yield self._item_event("response.output_item.done", item)

    def _mcp_events(
        self, event: MCPCallStarted | MCPCallDelta | MCPCallWritten | MCPCallFinished
    ) -> Iterator[dict[str, Any]]:
        """Yield the events of a call that this server runs; several may be open."""
        if isinstance(event, MCPCallStarted):
            yield from self._finish()
            self._items.append(_mcp_item(event))
            yield self._item_event("response.output_item.added", self._items[-1])
        id = f"mcp_{event.id}"
        index = next(i for i, item in enumerate(self._items) if item["id"] == id)
        place = {"item_id": id, "output_index": index}
        match event:
            case MCPCallStarted():
                yield {"type": "response.mcp_call.in_progress", **place}
            case MCPCallDelta(text=text):
                yield {"type": "response.mcp_call_arguments.delta", "delta": text, **place}
            case MCPCallWritten(arguments=text):
                self._items[index] = self._items[index] | {"arguments": text}
                yield {"type": "response.mcp_call_arguments.done", "arguments": text, **place}
            case MCPCallFinished():
                status = "failed" if event.output is None else "completed"
                ended = {"status": status, "output": event.output, "error": _mcp_error(event)}
                self._items[index] = self._items[index] | ended
                yield {"type": f"response.mcp_call.{status}", **place}
                done = {"output_index": index, "item": self._items[index]}
                yield {"type": "response.output_item.done", **done}

    def _end(self, event: Done) -> dict[str, Any]:
        status = _status(event)
        details = {"reason": "max_output_tokens"} if event.reason == "length" else None
        usage = event.usage
        response = self._response(status) | {
            "incomplete_details": details,
            "usage": {
                "input_tokens": usage.prompt_tokens,
                "input_tokens_details": {
                    "cached_tokens": usage.cached_tokens,
                    "cache_write_tokens": usage.prompt_tokens - usage.cached_tokens,
                },
                "output_tokens": usage.generated_tokens,
                "output_tokens_details": {"reasoning_tokens": self._reasoning_tokens},
                "total_tokens": usage.prompt_tokens + usage.generated_tokens,
            },
        }
        response |= captured_field(event.captured)
        more = {"timings": timings(event.usage)} if self._telemetry.wants_timings else {}
        return {"type": f"response.{status}", "response": response} | more

    def _item_event(self, kind: str, item: dict[str, Any]) -> dict[str, Any]:
        return {"type": kind, "output_index": len(self._items) - 1, "item": item}

    def _part_event(self, kind: str, more: dict[str, Any]) -> dict[str, Any]:
        index = "content_index" if self._open == "message" else "summary_index"
        place = {"item_id": self._items[-1]["id"], "output_index": len(self._items) - 1}
        return {"type": kind, **place, index: 0, **more}

    def _numbered(self, event: dict[str, Any]) -> dict[str, Any]:
        self._number += 1
        return event | {"sequence_number": self._number}

    def _response(self, status: str) -> dict[str, Any]:
        request = self._request
        return {
            "id": self._id,
            "object": "response",
            "created_at": self._created,
            "status": status,
            "error": None,
            "incomplete_details": None,
            "instructions": request.instructions,
            "max_output_tokens": request.max_output_tokens,
            "metadata": request.metadata or {},
            "model": request.model,
            "output": list(self._items),
            "parallel_tool_calls": request.parallel_tool_calls is not False,
            "previous_response_id": request.previous_response_id,
            "conversation": _conversation(request),
            "reasoning": request.reasoning or {"effort": None, "summary": None},
            "store": self._is_kept,
            "temperature": 1.0 if request.temperature is None else request.temperature,
            "text": request.text or {"format": {"type": "text"}},
            "tool_choice": request.tool_choice or "auto",
            "tools": request.tools or [],
            "top_p": 1.0 if request.top_p is None else request.top_p,
            "truncation": request.truncation or ("auto" if self._truncates else "disabled"),
            "usage": None,
        }


def _conversation(request: ResponsesRequest) -> dict[str, str] | None:
    id = conversation_id(request.conversation)
    return None if id is None else {"id": id}


def named_events(sent: Sequence[dict[str, Any]]) -> bytes:
    """Return objects as server-sent events."""
    return b"".join(map(named_event, sent))


def _has_telemetry(sent: dict[str, Any]) -> bool:
    """Whether an event of a stream tells the progress or the timings, if they are wanted."""
    kind: str = sent["type"]
    return kind.endswith(("in_progress", "text.delta"))


def _status(event: Done) -> str:
    return "incomplete" if event.reason == "length" else "completed"


def _mcp_item(event: MCPCallStarted) -> dict[str, Any]:
    return {
        "type": "mcp_call",
        "id": f"mcp_{event.id}",
        "server_label": event.server,
        "name": event.tool,
        "arguments": "",
        "output": None,
        "error": None,
        "approval_request_id": None,
        "status": "in_progress",
    }


def _mcp_error(event: MCPCallFinished) -> dict[str, Any] | None:
    if event.output is not None:
        return None
    content = [{"type": "text", "text": event.error}]
    return {"type": "mcp_tool_execution_error", "content": content}


def _text_part(text: str, logprobs: Sequence[TokenLogprob]) -> dict[str, Any]:
    found = chat_logprobs(logprobs)
    logprobs = found["content"] if found else []
    return {"type": "output_text", "text": text, "annotations": [], "logprobs": logprobs}
