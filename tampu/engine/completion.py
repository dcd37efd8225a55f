"""Requests as a caller sees them: handles, streams and whole completions."""

from __future__ import annotations

import asyncio
import logging
import queue
from collections import deque
from collections.abc import AsyncGenerator, Callable, Iterable, Iterator
from dataclasses import dataclass, field
from typing import TypeAlias, cast

import numpy as np
import numpy.typing as npt

from tampu.chat.output import ToolCall
from tampu.engine.backend import Handle
from tampu.engine.chat import OutputEvent, OutputParser
from tampu.errors import ContextLengthError, RunnerDiedError
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
from tampu.runner.layout import Inputs
from tampu.runner.loop import EngineLoop
from tampu.runner.request import GenerateOptions
from tampu.runner.sequence import Sequence as RunningSequence
from tampu.runner.sequence import Sink

log = logging.getLogger("tampu")

ChatEvent: TypeAlias = PromptProgress | TextDelta | ReasoningDelta | ToolCall | Done


@dataclass(frozen=True, slots=True)
class Completion:
    """The complete output of a request.

    Attributes:
        text: the output.
        tokens: its token ids, without the end token.
        reason: why it ended: `stop`, `length` or `cancelled`.
        usage: token counts and durations.
        logprobs: one entry per token, if requested.
        prompt_logprobs: one entry per prompt token except the first, if requested.
    """

    text: str
    tokens: list[int]
    reason: FinishReason
    usage: Usage
    logprobs: list[TokenLogprob]
    prompt_logprobs: tuple[TokenLogprob, ...] = ()


@dataclass(frozen=True, slots=True)
class ChatCompletion(Completion):
    """A complete message of a chat; `tokens` and `logprobs` include those of the reasoning.

    Attributes:
        reasoning: the text of the reasoning, without the tags.
        tool_calls: the functions that the model wants called.
    """

    reasoning: str = ""
    tool_calls: list[ToolCall] = field(default_factory=list)


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

    @property
    def keys(self) -> npt.NDArray[np.int32]:
        """The prompt's tokens as the prefix cache compares them, I32, (n,)."""
        return self._sequence.keys[: self._sequence.prompt_length].copy()


def fit_prompt(inputs: Inputs, context: int, options: GenerateOptions) -> Inputs:
    """Return the prompt, with its middle removed if it is too long; images stay whole.

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


def checked(event: OutputEvent) -> ChatEvent:
    """Return an event, or raise the error that it reports."""
    if isinstance(event, Failed):
        raise to_error(event.kind, event.message)
    return cast("ChatEvent", event)  # calls are whole: only the server's are streamed


class Stream(Iterator[ChatEvent]):
    """The events of a request, `Done` last; closing or dropping it cancels the request.

    The output of a plain prompt is `TextDelta` only; a chat also has `ReasoningDelta` and
    `ToolCall`, and `PromptProgress` comes first if it is requested.
    """

    def __init__(
        self, events: queue.SimpleQueue[Event], handle: Handle, output: OutputParser | None = None
    ) -> None:
        """Take the events from the queue that the request's sink fills."""
        self._events = events
        self._handle = handle
        self._output = output or OutputParser()
        self._ready: deque[OutputEvent] = deque()
        self._is_over = False

    def __next__(self) -> ChatEvent:
        while not self._ready:
            if self._is_over:
                raise StopIteration
            event = self._events.get()
            self._is_over = isinstance(event, Done | Failed)
            self._ready += self._output.feed(event)
        return checked(self._ready.popleft())

    @property
    def progress(self) -> tuple[int, int]:
        """How many tokens of the prompt are computed, and how many it has."""
        return self._handle.progress

    def close(self) -> None:
        """Cancel the request, if it is still running."""
        self._ready.clear()
        if not self._is_over:
            self._is_over = True
            self._handle.cancel()

    def __del__(self) -> None:
        self.close()


def completion(events: Iterable[ChatEvent]) -> ChatCompletion:
    """Return the complete output from its events."""
    deltas: list[TextDelta | ReasoningDelta] = []
    calls: list[ToolCall] = []
    for event in events:
        if isinstance(event, ToolCall):
            calls.append(event)
        elif isinstance(event, Done):
            reasoning = (delta.text for delta in deltas if isinstance(delta, ReasoningDelta))
            return ChatCompletion(
                text="".join(delta.text for delta in deltas if isinstance(delta, TextDelta)),
                tokens=[token for delta in deltas for token in delta.tokens],
                reason=event.reason,
                usage=event.usage,
                logprobs=[entry for delta in deltas for entry in delta.logprobs],
                prompt_logprobs=event.prompt_logprobs,
                reasoning="".join(reasoning),
                tool_calls=calls,
            )
        elif not isinstance(event, PromptProgress):
            deltas.append(event)
    raise RunnerDiedError("the output ended early")


async def aiter_events(
    begin: Callable[[Sink], tuple[Handle, OutputParser]],
) -> AsyncGenerator[ChatEvent, None]:
    """Begin a request and yield its events, `Done` last, to the running event loop.

    Args:
        begin: takes the sink, which may be called on any thread.
    """
    loop = asyncio.get_running_loop()
    events: asyncio.Queue[Event] = asyncio.Queue()

    def sink(event: Event) -> None:
        try:
            loop.call_soon_threadsafe(events.put_nowait, event)
        except RuntimeError:  # the event loop is closed
            handle.cancel()

    handle, output = begin(sink)
    try:
        while True:
            for event in map(checked, output.feed(await events.get())):
                yield event
                if isinstance(event, Done):
                    return
    finally:
        handle.cancel()
