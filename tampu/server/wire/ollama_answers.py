"""Ollama's native API: from the events of a request to the lines of its answer."""

from __future__ import annotations

import secrets
from collections.abc import Iterator, Sequence
from typing import Protocol, TypeVar

import msgspec

from tampu.chat.tools import Content, OutputParser, Part, PlainParser
from tampu.runner.events import Done, Usage
from tampu.runner.protocol import Piece, Prompted, TokenScore
from tampu.server.wire.ollama import Message, ToolCall, ToolFunction, timestamp


class Score(msgspec.Struct, kw_only=True, omit_defaults=True):
    """A token, its log-probability, and the likeliest tokens in its place."""

    token: str
    logprob: float
    bytes: list[int] | None = None
    top_logprobs: list[Score] | None = None


class _Line(msgspec.Struct, kw_only=True, omit_defaults=True):
    """What all lines end with; the counts and durations (ns) are the last line's alone."""

    done: bool
    done_reason: str = ""
    total_duration: int = 0
    load_duration: int = 0
    prompt_eval_count: int = 0
    prompt_eval_cached_count: int = 0
    prompt_eval_duration: int = 0
    eval_count: int = 0
    eval_duration: int = 0
    logprobs: list[Score] | None = None


class GenerateLine(_Line, omit_defaults=True):
    """A line of the answer to `POST /api/generate`."""

    model: str
    created_at: str
    response: str
    context: list[int] | None = None


class ChatLine(_Line, omit_defaults=True):
    """A line of the answer to `POST /api/chat`."""

    model: str
    created_at: str
    message: Message


Line = TypeVar("Line", bound=_Line)
LineOut = TypeVar("LineOut", bound=_Line, covariant=True)


class Timing(msgspec.Struct, frozen=True):
    """When a request came and when its model was ready, on the monotonic clock in ns."""

    arrived_ns: int
    ready_ns: int

    def stamp(self, line: Line, usage: Usage, finished_ns: int) -> Line:
        """Return the last line with its counts and durations."""
        return msgspec.structs.replace(
            line,
            total_duration=finished_ns - self.arrived_ns,
            load_duration=max(self.ready_ns - self.arrived_ns, 1),
            prompt_eval_count=usage.prompt_tokens,
            prompt_eval_cached_count=usage.cached_tokens,
            prompt_eval_duration=usage.prompt_ns,
            eval_count=usage.generated_tokens,
            eval_duration=usage.generated_ns,
        )


class LineWriter(Protocol[LineOut]):
    """Turns events into lines."""

    def lines(self, event: Prompted | Piece | Done, now_ns: int) -> Iterator[LineOut]:
        """Yield the lines that an event gives."""
        ...

    def note(self, reason: str) -> LineOut:
        """Return a last line without text: the only one of a request that generates nothing."""
        ...


class GenerateWriter:
    """The lines of `POST /api/generate`."""

    def __init__(self, model: str, timing: Timing, *, with_context: bool) -> None:
        self._model = model
        self._timing = timing
        self._context: list[int] | None = [] if with_context else None

    def lines(self, event: Prompted | Piece | Done, now_ns: int) -> Iterator[GenerateLine]:
        """Yield the lines that an event gives."""
        if self._context is not None and not isinstance(event, Done):
            self._context.extend(event.tokens)
        if isinstance(event, Piece) and (event.text or event.scores):
            yield GenerateLine(
                model=self._model,
                created_at=timestamp(),
                response=event.text,
                done=False,
                logprobs=_scores(event.scores),
            )
        if isinstance(event, Done):
            last = msgspec.structs.replace(self.note(event.reason), context=self._context)
            yield self._timing.stamp(last, event.usage, now_ns)

    def note(self, reason: str) -> GenerateLine:
        """Return a last line without text: the only one of a request that generates nothing."""
        return GenerateLine(
            model=self._model, created_at=timestamp(), response="", done=True, done_reason=reason
        )


class ChatWriter:
    """The lines of `POST /api/chat`; tool calls come whole, each in a line of its own."""

    def __init__(self, model: str, timing: Timing, parser: OutputParser | None = None) -> None:
        self._model = model
        self._timing = timing
        self._parser = parser or PlainParser()
        self._calls = 0

    def lines(self, event: Prompted | Piece | Done, now_ns: int) -> Iterator[ChatLine]:
        """Yield the lines that an event gives."""
        if isinstance(event, Piece):
            yield from self._parts(self._parser.feed(event.text), event.scores)
        if isinstance(event, Done):
            yield from self._parts(self._parser.finish(), ())
            yield self._timing.stamp(self.note(event.reason), event.usage, now_ns)

    def note(self, reason: str) -> ChatLine:
        """Return a last line without text: the only one of a request that generates nothing."""
        return ChatLine(
            model=self._model,
            created_at=timestamp(),
            message=Message(role="assistant", content=""),
            done=True,
            done_reason=reason,
        )

    def _parts(self, parts: Sequence[Part], scores: Sequence[TokenScore]) -> Iterator[ChatLine]:
        if scores and not parts:
            parts = [Content("")]
        for index, part in enumerate(parts):
            yield ChatLine(
                model=self._model,
                created_at=timestamp(),
                message=self._message(part),
                done=False,
                logprobs=_scores(scores) if index == 0 else None,
            )

    def _message(self, part: Part) -> Message:
        if isinstance(part, Content):
            return Message(role="assistant", content=part.text)
        function = ToolFunction(name=part.name, arguments=part.arguments, index=self._calls)
        self._calls += 1
        call = ToolCall(function=function, id=f"call_{secrets.token_hex(4)}")
        return Message(role="assistant", content="", tool_calls=[call])


def joined_text(lines: Sequence[GenerateLine]) -> GenerateLine:
    """Return the lines of a whole answer as the one object of `"stream": false`."""
    return msgspec.structs.replace(
        lines[-1],
        response="".join(line.response for line in lines),
        logprobs=_joined_scores(lines),
    )


def joined_chat(lines: Sequence[ChatLine]) -> ChatLine:
    """Return the lines of a whole answer as the one object of `"stream": false`."""
    message = Message(
        role="assistant",
        content="".join(line.message.content or "" for line in lines),
        tool_calls=[call for line in lines for call in line.message.tool_calls or ()] or None,
    )
    return msgspec.structs.replace(lines[-1], message=message, logprobs=_joined_scores(lines))


def _joined_scores(lines: Sequence[GenerateLine] | Sequence[ChatLine]) -> list[Score] | None:
    return [score for line in lines for score in line.logprobs or ()] or None


def _scores(scores: Sequence[TokenScore]) -> list[Score] | None:
    return [
        msgspec.structs.replace(
            _score(score.token, score.logprob),
            top_logprobs=[_score(token, logprob) for token, logprob in score.top] or None,
        )
        for score in scores
    ] or None


def _score(token: bytes, logprob: float) -> Score:
    return Score(token=token.decode("utf-8", "replace"), logprob=logprob, bytes=list(token))
