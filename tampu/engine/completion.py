"""Requests as a caller sees them: handles, streams and whole completions."""

from __future__ import annotations

import asyncio
import logging
import queue
from collections import deque
from collections.abc import AsyncGenerator, Callable, Iterable, Iterator
from dataclasses import dataclass, field
from typing import Any, TypeAlias, cast

import numpy as np
import numpy.typing as npt
from msgspec.structs import replace

from tampu.chat.messages import answer_message
from tampu.chat.output import ToolCall
from tampu.engine.backend import ReplySink, Running
from tampu.engine.captures import Captured
from tampu.engine.events import PromptLogprobs, Reply, Started
from tampu.engine.output import OutputEvent
from tampu.engine.output_model import output_model, parsed_output
from tampu.errors import ContextLengthError, OutputFormatError, RunnerDiedError
from tampu.runner.events import (
    Done,
    Event,
    Failed,
    FinishReason,
    PromptProgress,
    ReasoningDelta,
    TextDelta,
    TokenLogprob,
    Usage,
    to_error,
)
from tampu.runner.generate_options import GenerateOptions
from tampu.runner.layout import Inputs
from tampu.runner.loop import EngineLoop
from tampu.runner.sequence import Sequence as RunningSequence

log = logging.getLogger("tampu")

ChatEvent: TypeAlias = PromptProgress | TextDelta | ReasoningDelta | ToolCall | Done


@dataclass(frozen=True, slots=True)
class Completion:
    """The complete output of a request.

    Attributes:
        text: the output.
        tokens: its token ids, without the end token.
        reason: why it ended: `stop`, `length`, `cancelled`, or of a chat `tool_calls`.
        usage: token counts and durations.
        logprobs: one entry per token, if requested.
        prompt_logprobs: one entry per prompt token except the first, if requested.
        captured: values inside the model, if requested.
    """

    text: str
    tokens: list[int]
    reason: FinishReason
    usage: Usage
    logprobs: list[TokenLogprob]
    prompt_logprobs: tuple[TokenLogprob, ...] = ()
    captured: Captured | None = None
    _parsed: object | OutputFormatError | None = field(default=None, repr=False)

    @property
    def parsed(self) -> Any:
        """The output as an object, if `format` was a class of pydantic; else None.

        None also if the model has called tools instead.

        Raises:
            OutputFormatError: if the output was cut, or the class's own validators refuse it.
        """
        if isinstance(self._parsed, OutputFormatError):
            raise self._parsed
        return self._parsed


@dataclass(frozen=True, slots=True)
class ChatCompletion(Completion):
    """A complete message of a chat; `tokens` and `logprobs` include those of the reasoning.

    Attributes:
        reasoning: the text of the reasoning, without the tags.
        tool_calls: the functions that the model wants called; each has an `id`.
    """

    reasoning: str = ""
    tool_calls: list[ToolCall] = field(default_factory=list)

    @property
    def message(self) -> dict[str, Any]:
        """The message for the next call's `messages`, in the format of Hugging Face's templates."""
        return answer_message(self.text, self.reasoning, self.tool_calls)


@dataclass(frozen=True, slots=True)
class RequestHandle:
    """A running request."""

    _runner: EngineLoop
    _sequence: RunningSequence

    def cancel(self) -> None:
        """End the request before its next token; its sink still receives `Done`."""
        self._runner.cancel(self._sequence)

    @property
    def progress(self) -> tuple[int, int]:
        """How many tokens of the prompt are computed, and how many it has."""
        total = self._sequence.prompt_length
        return min(self._sequence.read, total), total

    def parse(self, event: Event) -> Iterator[Event]:
        """Yield an event as it is: the output is not parsed."""
        yield event

    @property
    def keys(self) -> npt.NDArray[np.int32]:
        """The prompt's tokens as the prefix cache compares them, I32, (n,)."""
        return self._sequence.keys[: self._sequence.prompt_length].copy()


def fit_prompt(inputs: Inputs, context: int, options: GenerateOptions) -> Inputs:
    """Return the prompt, with its middle removed if it is too long; media stay whole.

    Raises:
        ContextLengthError: if it is too long and `truncate` is off, or nothing would be left.
    """
    length = len(inputs.tokens)
    if length <= context:
        return inputs
    if not options.truncate:
        raise ContextLengthError.of(length, context)
    keep = context - 1 if options.keep < 0 else min(options.keep, context - 1)
    start = inputs.layout.group_end(keep)
    end = inputs.layout.group_end(start + length - context)
    if end >= length:
        raise ContextLengthError.of(length, context)
    log.warning("the prompt has %d tokens; truncated to the context of %d", length, context)
    return inputs.without(start, end)


class _Events:
    """The events of a request as Python programs get them."""

    def __init__(self, parse: Callable[[Any], Iterable[OutputEvent]]) -> None:
        self._parse = parse
        self._prompt_logprobs: tuple[TokenLogprob, ...] = ()

    def of(self, reply: Reply) -> Iterator[ChatEvent]:
        """Yield the events of a reply, or raise the error that it reports."""
        for event in self._parse(reply):
            if isinstance(event, Failed):
                raise to_error(event.kind, event.message)
            if isinstance(event, PromptLogprobs):
                self._prompt_logprobs = event.logprobs
            elif isinstance(event, Done) and self._prompt_logprobs:
                yield replace(event, prompt_logprobs=self._prompt_logprobs)
            elif not isinstance(event, Started):
                yield cast("ChatEvent", event)  # calls are whole: only the server's are streamed


class Stream(Iterator[ChatEvent]):
    """The events of a request, `Done` last; closing or dropping it cancels the request.

    The output of a plain prompt is `TextDelta` only; a chat also has `ReasoningDelta` and
    `ToolCall`, and `PromptProgress` comes first if it is requested.
    """

    def __init__(self, replies: queue.SimpleQueue[Any], running: Running | RequestHandle) -> None:
        """Take the replies from the queue that the request's sink fills."""
        self._replies = replies
        self._running = running
        self._events = _Events(running.parse)
        self._ready: deque[ChatEvent] = deque()
        self._is_over = False

    def __next__(self) -> ChatEvent:
        while not self._ready:
            if self._is_over:
                raise StopIteration
            reply = self._replies.get()
            self._is_over = isinstance(reply, Done | Failed)
            self._ready += self._events.of(reply)
        return self._ready.popleft()

    @property
    def progress(self) -> tuple[int, int]:
        """How many tokens of the prompt are computed, and how many it has."""
        return self._running.progress

    def close(self) -> None:
        """Cancel the request, if it is still running."""
        self._ready.clear()
        if not self._is_over:
            self._is_over = True
            self._running.cancel()

    def __del__(self) -> None:
        self.close()


def completion(events: Iterable[ChatEvent], format: object = None) -> ChatCompletion:
    """Return the complete output from its events; `format` is the one that was asked for."""
    deltas: list[TextDelta | ReasoningDelta] = []
    calls: list[ToolCall] = []
    for event in events:
        if isinstance(event, ToolCall):
            calls.append(event)
        elif isinstance(event, Done):
            reasoning = (delta.text for delta in deltas if isinstance(delta, ReasoningDelta))
            text = "".join(delta.text for delta in deltas if isinstance(delta, TextDelta))
            return ChatCompletion(
                text=text,
                tokens=[token for delta in deltas for token in delta.tokens],
                reason=event.reason,
                usage=event.usage,
                logprobs=[entry for delta in deltas for entry in delta.logprobs],
                prompt_logprobs=event.prompt_logprobs,
                captured=Captured.decoded(event.captured) if event.captured else None,
                reasoning="".join(reasoning),
                tool_calls=calls,
                _parsed=parsed_output(output_model(format), text, event.reason),
            )
        elif not isinstance(event, PromptProgress):
            deltas.append(event)
    raise RunnerDiedError("the output ended early")


async def aiter_events(begin: Callable[[ReplySink], Running]) -> AsyncGenerator[ChatEvent, None]:
    """Begin a request and yield its events, `Done` last, to the running event loop.

    Args:
        begin: takes the sink, which may be called on any thread.
    """
    loop = asyncio.get_running_loop()
    replies: asyncio.Queue[Reply] = asyncio.Queue()

    def sink(reply: Reply) -> None:
        try:
            loop.call_soon_threadsafe(replies.put_nowait, reply)
        except RuntimeError:  # the event loop is closed
            running.cancel()

    running = begin(sink)
    events = _Events(running.parse)
    try:
        while True:
            for event in events.of(await replies.get()):
                yield event
                if isinstance(event, Done):
                    return
    finally:
        running.cancel()
