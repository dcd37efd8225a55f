"""Ollama's native API: from the events of a request to the lines of its answer."""

from __future__ import annotations

import time
from abc import ABC, abstractmethod
from collections.abc import Iterator, Sequence
from typing import Any, Generic, TypeVar

import msgspec

from tampu.engine.events import Started, ToolCallFinished
from tampu.errors import TampuError
from tampu.runner.events import Done, Limit, ReasoningDelta, TextDelta, TokenLogprob
from tampu.server.fields.captures import captured_text
from tampu.server.fields.telemetry import Telemetry
from tampu.server.fields.tools import executed_tool
from tampu.server.front.errors import public_message
from tampu.server.ollama.requests import Message, ToolCall, ToolFunction, timestamp
from tampu.server.serving.events import Event, MCPCallFinished


class LogprobEntry(msgspec.Struct, kw_only=True, omit_defaults=True):
    """A token, its log-probability, and the likeliest tokens in its place."""

    token: str
    logprob: float
    bytes: list[int] | None = None
    top_logprobs: list[LogprobEntry] | None = None
    entropy: float | None = None


class AnsweringMessage(Message, omit_defaults=True):
    """A message of an answer; `executed_tools` are calls of MCP servers' tools, run here."""

    executed_tools: list[dict[str, Any]] | None = None


class _Line(msgspec.Struct, kw_only=True, omit_defaults=True):
    """The fields of all lines; only the last one has the counts and durations (ns).

    `truncated` and `limit` are tampu's own: how many tokens of the conversation the model did not
    see because its context was full, and what an answer with the reason `length` ended at. So are
    `draft_count` and `draft_accepted_count`: tokens that were guessed, and how many were right.
    So are `captured`, values inside the model if requested, base64 of a safetensors file.
    `timings`, if requested, are llama-server's: the counts so far, for clients that may stop. The
    lines that have them have `truncated`, too: what did not fit of the prompt.
    """

    model: str
    created_at: str
    done: bool
    done_reason: str = ""
    total_duration: int = 0
    load_duration: int = 0
    prompt_eval_count: int = 0
    prompt_eval_cached_count: int = 0
    prompt_eval_duration: int = 0
    eval_count: int = 0
    eval_duration: int = 0
    truncated: int = 0
    draft_count: int = 0
    draft_accepted_count: int = 0
    limit: Limit | None = None
    captured: str = ""
    logprobs: list[LogprobEntry] | None = None
    timings: dict[str, float] | None = None


class GenerateLine(_Line, omit_defaults=True):
    """A line of the response to `POST /api/generate`."""

    response: str
    thinking: str | None = None
    context: list[int] | None = None


class ChatLine(_Line, omit_defaults=True):
    """A line of the response to `POST /api/chat`."""

    message: Message


Line = TypeVar("Line", bound=_Line)


class LineWriter:
    """Writes a response as lines of JSON."""

    media_type = "application/x-ndjson"

    def end(self) -> bytes:
        """Return nothing: the last line is marked as such."""
        return b""

    def fail(self, error: TampuError) -> bytes:
        """Return a last line with the error."""
        return to_line({"error": public_message(error)})


class _Writer(LineWriter, ABC, Generic[Line]):
    """The response to a request for text."""

    def __init__(self, model: str, arrived_ns: int, telemetry: Telemetry | None = None) -> None:
        """Respond under the model name from the request."""
        self._model = model
        self._arrived_ns = arrived_ns
        self._telemetry = telemetry or Telemetry()
        self._dropped = 0  # of the prompt

    def write(self, event: Event) -> bytes:
        """Return the lines of an event."""
        more, lines = self._telemetry.of(event), self.lines(event)
        if isinstance(event, Started):
            self._dropped = event.dropped
        if more:
            more["truncated"] = self._dropped
            lines = (msgspec.structs.replace(line, **more) for line in lines)
        return b"".join(map(to_line, lines))

    def whole(self, events: Sequence[Event]) -> Line:
        """Return the one object of `"stream": false`."""
        lines = [line for event in events for line in self.lines(event)]
        logprobs = [entry for line in lines for entry in line.logprobs or ()]
        return msgspec.structs.replace(self._joined(lines), logprobs=logprobs or None)

    @abstractmethod
    def note(self, reason: str) -> Line:
        """Return a last line without text: the only one of a request that generates nothing."""

    @abstractmethod
    def lines(self, event: Event) -> Iterator[Line]:
        """Yield the lines of an event."""

    @abstractmethod
    def _joined(self, lines: Sequence[Line]) -> Line:
        """Return the text of all lines in the last one."""

    def _last(self, event: Done) -> Line:
        """Return the last line, with its counts and durations."""
        # Ollama has no done_reason for tool calls.
        line = self.note("stop" if event.reason == "tool_calls" else event.reason)
        if event.reason == "load":
            return line
        usage = event.usage
        return msgspec.structs.replace(
            line,
            total_duration=time.monotonic_ns() - self._arrived_ns,
            load_duration=max(event.ready_ns - self._arrived_ns, 1),
            prompt_eval_count=usage.prompt_tokens,
            prompt_eval_cached_count=usage.cached_tokens,
            prompt_eval_duration=usage.prompt_ns,
            eval_count=usage.generated_tokens,
            eval_duration=usage.generated_ns,
            truncated=usage.dropped_tokens,
            draft_count=usage.drafted_tokens,
            draft_accepted_count=usage.accepted_tokens,
            limit=event.limit,
            captured=captured_text(event.captured),
        )


class GenerateWriter(_Writer[GenerateLine]):
    """The response to `POST /api/generate`."""

    def __init__(
        self,
        model: str,
        arrived_ns: int,
        telemetry: Telemetry | None = None,
        *,
        with_context: bool,
    ) -> None:
        """Respond under the model name from the request."""
        super().__init__(model, arrived_ns, telemetry)
        self._context: list[int] | None = [] if with_context else None

    def note(self, reason: str) -> GenerateLine:
        """Return a last line without text: the only one of a request that generates nothing."""
        return GenerateLine(
            model=self._model, created_at=timestamp(), response="", done=True, done_reason=reason
        )

    def lines(self, event: Event) -> Iterator[GenerateLine]:
        """Yield the lines of an event."""
        if self._context is not None and isinstance(event, (Started, TextDelta, ReasoningDelta)):
            self._context.extend(event.tokens)
        if isinstance(event, (TextDelta, ReasoningDelta)) and (event.text or event.logprobs):
            yield GenerateLine(
                model=self._model,
                created_at=timestamp(),
                response=event.text if isinstance(event, TextDelta) else "",
                thinking=event.text if isinstance(event, ReasoningDelta) else None,
                done=False,
                logprobs=_logprobs(event.logprobs),
            )
        if isinstance(event, Done):
            context = None if event.reason == "load" else self._context
            yield msgspec.structs.replace(self._last(event), context=context)

    def _joined(self, lines: Sequence[GenerateLine]) -> GenerateLine:
        return msgspec.structs.replace(
            lines[-1],
            response="".join(line.response for line in lines),
            thinking="".join(line.thinking or "" for line in lines) or None,
        )


class ChatWriter(_Writer[ChatLine]):
    """The response to `POST /api/chat`; tool calls come whole, each in a line of its own."""

    def note(self, reason: str) -> ChatLine:
        """Return a last line without text: the only one of a request that generates nothing."""
        return ChatLine(
            model=self._model,
            created_at=timestamp(),
            message=Message(role="assistant", content=""),
            done=True,
            done_reason=reason,
        )

    def lines(self, event: Event) -> Iterator[ChatLine]:
        """Yield the lines of an event."""
        match event:
            case Done():
                yield self._last(event)
            case TextDelta() | ReasoningDelta() if event.text or event.logprobs:
                yield self._line(_message(event), _logprobs(event.logprobs))
            case ToolCallFinished(state="complete"):
                yield self._line(_message(event))
            case ToolCallFinished(state="broken"):
                yield self._line(Message(role="assistant", content=event.text))
            case MCPCallFinished():
                ran = AnsweringMessage(
                    role="assistant", content="", executed_tools=[executed_tool(event)]
                )
                yield self._line(ran)

    def _line(self, message: Message, logprobs: list[LogprobEntry] | None = None) -> ChatLine:
        return ChatLine(
            model=self._model,
            created_at=timestamp(),
            message=message,
            done=False,
            logprobs=logprobs,
        )

    def _joined(self, lines: Sequence[ChatLine]) -> ChatLine:
        messages = [line.message for line in lines]
        ran = [
            tool
            for each in messages
            if isinstance(each, AnsweringMessage)
            for tool in each.executed_tools or ()
        ]
        message = AnsweringMessage(
            role="assistant",
            content="".join(line.message.content or "" for line in lines),
            thinking="".join(line.message.thinking or "" for line in lines) or None,
            tool_calls=[call for line in lines for call in line.message.tool_calls or ()] or None,
            executed_tools=ran or None,
        )
        return msgspec.structs.replace(lines[-1], message=message)


def to_line(line: object) -> bytes:
    """Return an object as a line of JSON."""
    return msgspec.json.encode(line) + b"\n"


def _message(event: TextDelta | ReasoningDelta | ToolCallFinished) -> Message:
    if isinstance(event, TextDelta):
        return Message(role="assistant", content=event.text)
    if isinstance(event, ReasoningDelta):
        return Message(role="assistant", content="", thinking=event.text)
    arguments = msgspec.json.decode(event.arguments, type=dict[str, Any])
    function = ToolFunction(name=event.name, arguments=arguments, index=event.index)
    return Message(
        role="assistant", content="", tool_calls=[ToolCall(function=function, id=event.id)]
    )


def _logprobs(logprobs: Sequence[TokenLogprob]) -> list[LogprobEntry] | None:
    return [
        msgspec.structs.replace(
            _entry(entry.token_bytes, entry.logprob),
            top_logprobs=[_entry(token, logprob) for token, logprob in entry.top_by_bytes] or None,
            entropy=entry.entropy,
        )
        for entry in logprobs
    ] or None


def _entry(token: bytes, logprob: float) -> LogprobEntry:
    return LogprobEntry(token=token.decode("utf-8", "replace"), logprob=logprob, bytes=list(token))
