"""Splits the output of a request into content, reasoning and tool calls."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import TypeAlias

from msgspec.structs import replace

from tampu.chat.output import (
    ChatFormat,
    Content,
    MessageParser,
    Part,
    Reasoning,
    ToolCall,
    ToolCallArguments,
    ToolCallEnd,
    ToolCallStart,
)
from tampu.engine.events import Event, ToolCallDelta, ToolCallFinished, ToolCallStarted
from tampu.runner.events import Done, Failed, ReasoningDelta, TextDelta, TokenLogprob

OutputEvent: TypeAlias = Event | ToolCall


class StreamedCalls:
    """Numbers the calls of one output while they are written, and leaves out those too many."""

    def __init__(self, max_calls: int | None, choice: int, new_id: Callable[[], str]) -> None:
        self._max_calls = max_calls
        self._choice = choice
        self._new_id = new_id
        self._begun = 0
        self._open: ToolCallStarted | None = None  # None: no call, or one too many
        self._arguments: list[str] = []
        self.complete = 0

    def events(self, part: ToolCallStart | ToolCallArguments | ToolCallEnd) -> Iterator[Event]:
        """Yield the event of a part of a call."""
        if isinstance(part, ToolCallStart):
            index, self._begun = self._begun, self._begun + 1
            self._arguments = []
            self._open = None
            if self._max_calls is None or index < self._max_calls:
                self._open = ToolCallStarted(self._new_id(), part.name, index, self._choice)
                yield self._open
            return
        call = self._open
        if call is None:
            return
        if isinstance(part, ToolCallArguments):
            self._arguments.append(part.text)
            yield ToolCallDelta(part.text, call.index, self._choice)
            return
        self.complete += part.state == "complete"
        arguments = "".join(self._arguments)
        yield ToolCallFinished(
            call.id, call.name, arguments, call.index, part.state, part.text, self._choice
        )


class OutputParser:
    """Splits the output of one request; not for several threads at once.

    Attributes:
        dropped: tokens of the messages that were dropped from the conversation, for the usage.
    """

    def __init__(
        self,
        parser: MessageParser | None = None,
        dropped: int = 0,
        *,
        max_calls: int | None = None,
        choice: int = 0,
    ) -> None:
        """Start an output; without a parser all text is content.

        `max_calls` and `choice` are as in `Generate`.
        """
        self._parser = parser
        self.dropped = dropped
        self._choice = choice
        self._new_id = (parser.style if parser else ChatFormat(name="plain")).new_call_id
        self._calls = StreamedCalls(max_calls, choice, self._new_id)
        self._held: list[TextDelta] = []  # events whose text the parser holds back

    def feed(self, event: Event) -> Iterator[OutputEvent]:
        """Yield the output's events for one of the backend; no token and no logprob is lost."""
        if isinstance(event, TextDelta) and self._parser is not None:
            self._held.append(event)
            yield from self._deltas(self._parser.feed(event.text))
            return
        if isinstance(event, Done):
            if self._parser is not None:
                parts = self._parser.finish(is_cut=event.reason == "length")
                yield from self._deltas(parts, is_last=True)
                if self._calls.complete and event.reason == "stop":
                    event = replace(event, reason="tool_calls")
            if self.dropped:
                dropped = event.usage.dropped_tokens + self.dropped
                usage = replace(event.usage, dropped_tokens=dropped)
                event = replace(event, usage=usage)
        if self._choice and not isinstance(event, Failed):
            event = replace(event, choice=self._choice)
        yield event

    def _deltas(self, parts: Sequence[Part], *, is_last: bool = False) -> Iterator[OutputEvent]:
        """Yield parts as events; the first text has the tokens that were held back."""
        if not parts and self._held and (is_last or self._held[-1].logprobs):
            parts = [Content("")]
        for part in parts:
            match part:
                case Content(text=text):
                    yield TextDelta(text, *self._taken())
                case Reasoning(text=text):
                    yield ReasoningDelta(text, *self._taken())
                case _:
                    yield from self._call(part)

    def _call(
        self, part: ToolCall | ToolCallStart | ToolCallArguments | ToolCallEnd
    ) -> Iterator[OutputEvent]:
        """Yield a part of a call, after the tokens that were held back before it."""
        is_open = isinstance(part, ToolCallStart | ToolCallArguments)
        if self._held and (not is_open or self._held[-1].logprobs):
            yield TextDelta("", *self._taken())
        if isinstance(part, ToolCall):
            self._calls.complete += 1
            yield part if part.id else replace(part, id=self._new_id())
        else:
            yield from self._calls.events(part)

    def _taken(self) -> tuple[tuple[int, ...], tuple[TokenLogprob, ...], int]:
        """Return and forget the tokens of the held-back text, their logprobs; and the choice."""
        held, self._held = self._held, []
        if len(held) == 1:
            return held[0].tokens, held[0].logprobs, self._choice
        return (
            tuple(token for event in held for token in event.tokens),
            tuple(entry for event in held for entry in event.logprobs),
            self._choice,
        )
