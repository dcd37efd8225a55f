"""OpenAI's API: from the events of a request to chunks of a stream, or to one object."""

from __future__ import annotations

import secrets
import time
from abc import ABC, abstractmethod
from collections.abc import Iterator, Sequence
from typing import Any

import msgspec

from tampu.engine.events import (
    PromptLogprobs,
    Started,
    ToolCallDelta,
    ToolCallFinished,
    ToolCallStarted,
)
from tampu.errors import TampuError
from tampu.runner.events import Done, PromptProgress, ReasoningDelta, TextDelta, TokenLogprob, Usage
from tampu.server.fields.captures import captured_field
from tampu.server.fields.telemetry import Telemetry, timings
from tampu.server.fields.tools import executed_tool
from tampu.server.front.errors import openai_error, public_message, status_of
from tampu.server.front.http_response import SSE
from tampu.server.serving.events import Event, MCPCallFinished, total_usage, without_broken_calls

DONE = b"data: [DONE]\n\n"


def to_event(value: object) -> bytes:
    """Return an object as a server-sent event."""
    return b"data: " + msgspec.json.encode(value) + b"\n\n"


class _Writer(ABC):
    """The common part of both responses."""

    media_type = SSE
    _kind = ""
    _chunk_kind = ""

    def __init__(
        self,
        prefix: str,
        model: str,
        *,
        choices: int,
        with_usage: bool,
        telemetry: Telemetry | None,
    ) -> None:
        self._id = f"{prefix}-{secrets.token_hex(12)}"
        self._created = int(time.time())
        self._model = model
        self._choices = choices
        self._with_usage = with_usage
        self._ended: list[Done] = []
        self._reasoning_tokens = 0
        self._telemetry = telemetry or Telemetry()

    def write(self, event: Event) -> bytes:
        """Return the chunks of an event."""
        self._count(event)
        more = self._telemetry.of(event)
        chunks = [self._chunk([choice]) | more for choice in self._deltas(event)]
        if isinstance(event, Done):
            chunks[-1]["timings"] = timings(event.usage)
        return b"".join(map(to_event, chunks))

    def end(self) -> bytes:
        """Return the usage, if requested, and the mark that ends the stream."""
        if not self._with_usage:
            return DONE
        more = {"usage": self._usage(), "timings": timings(self._total())}
        return to_event(self._chunk([]) | more) + DONE

    def fail(self, error: TampuError) -> bytes:
        """Return a chunk with the error."""
        return to_event(openai_error(status_of(error), public_message(error)))

    def whole(self, events: Sequence[Event]) -> dict[str, Any]:
        """Return the one object of a response that is not streamed."""
        events = without_broken_calls(events)
        for event in events:
            self._count(event)
        indices = sorted({event.choice for event in events})
        choices = [
            self._choice(index, [event for event in events if event.choice == index])
            for index in indices
        ]
        more = {"usage": self._usage(), "timings": timings(self._total())}
        return self._object(self._kind, choices) | more

    def _count(self, event: Event) -> None:
        """Record what counts for the usage."""
        if isinstance(event, Done):
            self._ended.append(event)
        elif isinstance(event, ReasoningDelta):
            self._reasoning_tokens += len(event.tokens)

    def _chunk(self, choices: Sequence[object]) -> dict[str, Any]:
        chunk = self._object(self._chunk_kind, choices)
        return chunk | {"usage": None} if self._with_usage else chunk

    def _object(self, kind: str, choices: Sequence[object]) -> dict[str, Any]:
        return {
            "id": self._id,
            "object": kind,
            "created": self._created,
            "model": self._model,
            "system_fingerprint": "fp_tampu",
            "choices": choices,
        }

    def _usage(self) -> dict[str, Any]:
        return usage_object(self._total(), self._reasoning_tokens)

    def _total(self) -> Usage:
        return total_usage(self._ended, self._choices)

    @abstractmethod
    def _deltas(self, event: Event) -> Iterator[dict[str, Any]]:
        """Yield what an event adds to the choices of a stream."""

    @abstractmethod
    def _choice(self, index: int, events: Sequence[Event]) -> dict[str, Any]:
        """Return a whole choice."""


class ChatWriter(_Writer):
    """The response to `POST /v1/chat/completions`."""

    _kind = "chat.completion"
    _chunk_kind = "chat.completion.chunk"

    def __init__(
        self,
        model: str,
        *,
        choices: int = 1,
        with_usage: bool = False,
        telemetry: Telemetry | None = None,
        prompt: str | None = None,
    ) -> None:
        """Respond under the model name from the request; with the prompt's text if it is given."""
        super().__init__(
            "chatcmpl", model, choices=choices, with_usage=with_usage, telemetry=telemetry
        )
        self._prompt = prompt
        self._executed_calls = 0

    def whole(self, events: Sequence[Event]) -> dict[str, Any]:
        """Return the one object of a response that is not streamed."""
        more = {} if self._prompt is None else {"__verbose": {"prompt": self._prompt}}
        return super().whole(events) | more

    def _deltas(self, event: Event) -> Iterator[dict[str, Any]]:
        match event:
            case Started():
                yield _delta(event, {"role": "assistant", "content": None})
            case PromptProgress() if self._telemetry.wants_progress:
                yield _delta(event, {})
            case TextDelta() if event.text or event.logprobs:
                yield _delta(event, {"content": event.text}, event.logprobs)
            case ReasoningDelta() if event.text or event.logprobs:
                yield _delta(event, _reasoning(event.text), event.logprobs)
            case ToolCallStarted():
                yield _delta(event, {"tool_calls": [_call(event, "")]})
            case ToolCallDelta():
                more = {"index": event.index, "function": {"arguments": event.text}}
                yield _delta(event, {"tool_calls": [more]})
            case MCPCallFinished():
                yield _delta(event, {"executed_tools": [self._executed(event)]})
            case Done():
                yield _delta(event, {}) | _end(event)

    def _executed(self, event: MCPCallFinished) -> dict[str, Any]:
        self._executed_calls += 1
        return {"index": self._executed_calls - 1, **executed_tool(event)}

    def _choice(self, index: int, events: Sequence[Event]) -> dict[str, Any]:
        reasoning = "".join(event.text for event in events if isinstance(event, ReasoningDelta))
        text = "".join(event.text for event in events if isinstance(event, TextDelta))
        calls = [
            _call(event, event.arguments) for event in events if isinstance(event, ToolCallFinished)
        ]
        message: dict[str, Any] = {"role": "assistant", "content": text or (None if calls else "")}
        if reasoning:
            message |= _reasoning(reasoning)
        if calls:
            message["tool_calls"] = calls
        executed = [self._executed(event) for event in events if isinstance(event, MCPCallFinished)]
        if executed:
            message["executed_tools"] = executed
        return {
            "index": index,
            "message": message,
            "logprobs": chat_logprobs(logprobs_of(events)),
            **_last_end(events),
        }


class CompletionWriter(_Writer):
    """The response to `POST /v1/completions`."""

    _kind = "text_completion"
    _chunk_kind = "text_completion"

    def __init__(
        self,
        model: str,
        *,
        choices: int = 1,
        with_usage: bool = False,
        telemetry: Telemetry | None = None,
        echoes: Sequence[str] = (),
    ) -> None:
        """Respond for a model; `echoes` are the prompts' texts if answers start with them."""
        super().__init__("cmpl", model, choices=choices, with_usage=with_usage, telemetry=telemetry)
        self._echoes = echoes
        self._offsets: dict[int, int] = {}

    def _deltas(self, event: Event) -> Iterator[dict[str, Any]]:
        match event:
            case Started() if self._echoes:
                yield self._piece(event.choice, self._echo(event.choice))
            case PromptProgress() if self._telemetry.wants_progress:
                yield self._piece(event.choice, "")
            case TextDelta() | ReasoningDelta() if event.text or event.logprobs:
                yield self._piece(event.choice, event.text, event.logprobs)
            case Done():
                yield self._piece(event.choice, "") | _end(event)

    def _choice(self, index: int, events: Sequence[Event]) -> dict[str, Any]:
        texts = [event.text for event in events if isinstance(event, (TextDelta, ReasoningDelta))]
        piece = self._piece(index, self._echo(index) + "".join(texts), logprobs_of(events))
        for event in events:
            if isinstance(event, PromptLogprobs):
                piece["logprobs"] = echo_logprobs(event, logprobs_of(events))
        return piece | _last_end(events)

    def _piece(
        self, choice: int, text: str, logprobs: Sequence[TokenLogprob] = ()
    ) -> dict[str, Any]:
        offset = self._offsets.get(choice, 0)
        self._offsets[choice] = offset + len(text)
        return {
            "text": text,
            "index": choice,
            "logprobs": completion_logprobs(logprobs, offset),
            "finish_reason": None,
        }

    def _echo(self, choice: int) -> str:
        return self._echoes[choice // self._choices] if self._echoes else ""


def usage_object(usage: Usage, reasoning_tokens: int = 0) -> dict[str, Any]:
    """Return the usage of an answer in OpenAI's format."""
    return {
        "prompt_tokens": usage.prompt_tokens,
        "completion_tokens": usage.generated_tokens,
        "total_tokens": usage.prompt_tokens + usage.generated_tokens,
        "prompt_tokens_details": {"cached_tokens": usage.cached_tokens},
        "completion_tokens_details": {
            "reasoning_tokens": reasoning_tokens,
            "accepted_prediction_tokens": usage.accepted_tokens,
            "rejected_prediction_tokens": usage.drafted_tokens - usage.accepted_tokens,
        },
    }


def finish_reason(event: Done) -> str:
    """Return OpenAI's finish_reason."""
    return event.reason if event.reason in ("length", "tool_calls") else "stop"


def logprobs_of(events: Sequence[Event]) -> list[TokenLogprob]:
    """Return the logprobs of all tokens of an answer."""
    return [
        entry
        for event in events
        if isinstance(event, (TextDelta, ReasoningDelta))
        for entry in event.logprobs
    ]


def chat_logprobs(logprobs: Sequence[TokenLogprob]) -> dict[str, Any] | None:
    """Return logprobs in the format of a chat."""
    if not logprobs:
        return None
    content = [
        _entry(entry.token_bytes, entry.logprob)
        | {"top_logprobs": [_entry(token, logprob) for token, logprob in entry.top_by_bytes]}
        for entry in logprobs
    ]
    return {"content": content, "refusal": None}


def completion_logprobs(logprobs: Sequence[TokenLogprob], offset: int) -> dict[str, Any] | None:
    """Return logprobs in the format of a completion whose text starts at `offset`."""
    if not logprobs:
        return None
    tokens = [text_of(entry.token_bytes) for entry in logprobs]
    offsets = [offset + sum(map(len, tokens[:index])) for index in range(len(tokens))]
    return {
        "tokens": tokens,
        "token_logprobs": [entry.logprob for entry in logprobs],
        "top_logprobs": [
            {text_of(token): logprob for token, logprob in entry.top_by_bytes} for entry in logprobs
        ],
        "text_offset": offsets,
    }


def echo_logprobs(prompt: PromptLogprobs, logprobs: Sequence[TokenLogprob]) -> dict[str, Any]:
    """Return log-probabilities of a prompt and its continuation; its first token has none."""
    first = TokenLogprob(0, 0.0, token_bytes=prompt.first)
    shown = completion_logprobs([first, *prompt.logprobs, *logprobs], 0) or {}
    return shown | {
        "token_logprobs": [None, *shown["token_logprobs"][1:]],
        "top_logprobs": [None, *shown["top_logprobs"][1:]],
    }


def _delta(
    event: Event, delta: dict[str, Any], logprobs: Sequence[TokenLogprob] = ()
) -> dict[str, Any]:
    choice = {"index": event.choice, "delta": delta, "finish_reason": None}
    return choice | {"logprobs": chat_logprobs(logprobs)} if logprobs else choice


def _reasoning(text: str) -> dict[str, str]:
    """Return reasoning under the names that Ollama and vLLM, and llama-server, give it."""
    return {"reasoning": text, "reasoning_content": text}


def _call(event: ToolCallStarted | ToolCallFinished, arguments: str) -> dict[str, Any]:
    return {
        "index": event.index,
        "id": event.id,
        "type": "function",
        "function": {"name": event.name, "arguments": arguments},
    }


def _end(event: Done) -> dict[str, Any]:
    """Return what a choice has at its end."""
    return {"finish_reason": finish_reason(event), **captured_field(event.captured)}


def _last_end(events: Sequence[Event]) -> dict[str, Any]:
    ends = [_end(event) for event in events if isinstance(event, Done)]
    return ends[-1] if ends else {"finish_reason": None}


def _entry(token: bytes, logprob: float) -> dict[str, Any]:
    return {"token": text_of(token), "logprob": logprob, "bytes": list(token)}


def text_of(token: bytes) -> str:
    """Return the text of a token's bytes."""
    return token.decode("utf-8", "replace")
