"""Requests as a caller sees them: prompts that fit, answers whole or piece by piece, errors."""

from __future__ import annotations

import asyncio
import logging
import queue
from collections.abc import AsyncIterator, Callable, Iterator
from dataclasses import dataclass
from typing import Protocol

from tampu import errors
from tampu.errors import ContextLengthError
from tampu.runner.events import Done, Event, Failed, FinishReason, TextDelta, TokenLogprob, Usage
from tampu.runner.layout import Inputs
from tampu.runner.loop import EngineLoop
from tampu.runner.request import GenerateOptions
from tampu.runner.sequence import Sequence as RunningSequence
from tampu.runner.sequence import Sink

log = logging.getLogger("tampu")


@dataclass(frozen=True, slots=True)
class Completion:
    """A finished answer.

    Attributes:
        text: of the answer.
        tokens: its token ids, without the end token.
        reason: why it ended: `stop`, `length` or `cancelled`.
        usage: counts and durations.
        logprobs: one entry per token, if asked for.
        prompt_logprobs: one entry per token of the prompt but the first, if asked for.
    """

    text: str
    tokens: list[int]
    reason: FinishReason
    usage: Usage
    logprobs: list[TokenLogprob]
    prompt_logprobs: tuple[TokenLogprob, ...] = ()


@dataclass(frozen=True, slots=True)
class Handle:
    """A request under way."""

    _runner: EngineLoop
    _sequence: RunningSequence

    def cancel(self) -> None:
        """End the request before its next token; its sink still receives `Done`."""
        self._runner.cancel(self._sequence)

    @property
    def progress(self) -> tuple[int, int]:
        """How many tokens of the prompt are read, and how many it has."""
        total = self._sequence.prompt_length
        return min(self._sequence.read, total), total


def fit_prompt(inputs: Inputs, context: int, options: GenerateOptions) -> Inputs:
    """Return the prompt, its middle cut out if it must be and may be; no image is cut.

    Raises:
        ContextLengthError: if it is too long and may not be cut, or nothing would be left of it.
    """
    length = len(inputs.tokens)
    if length <= context:
        return inputs
    if not options.truncate:
        raise too_long(length, context)
    keep = context - 1 if options.keep < 0 else min(options.keep, context - 1)
    start = inputs.layout.group_end(keep)
    end = inputs.layout.group_end(start + length - context)
    if end >= length:
        raise too_long(length, context)
    log.warning("the prompt of %d tokens is cut to the context of %d", length, context)
    return inputs.without(start, end)


def too_long(length: int, context: int) -> ContextLengthError:
    """Return the error for a prompt that the context cannot hold."""
    return ContextLengthError(
        f"the prompt has {length} tokens, the context {context}: "
        "shorten the prompt or load the model with a larger context"
    )


def checked(event: Event) -> TextDelta | Done:
    """Return an event, or raise the error that it reports."""
    if isinstance(event, Failed):
        kind = vars(errors).get(event.kind, errors.TampuError)
        error: errors.TampuError = kind(event.message)
        raise error
    return event


class Request(Protocol):
    """A request under way, in whichever engine."""

    @property
    def progress(self) -> tuple[int, int]:
        """How many tokens of the prompt are read, and how many it has."""
        ...

    def cancel(self) -> None:
        """End it before its next token."""
        ...


class Stream(Iterator[TextDelta | Done]):
    """What a request's sink receives, `Done` last; closing it or letting go of it cancels."""

    def __init__(self, events: queue.SimpleQueue[Event], handle: Request) -> None:
        self._events = events
        self._handle = handle
        self._is_over = False

    def __next__(self) -> TextDelta | Done:
        if self._is_over:
            raise StopIteration
        event = self._events.get()
        self._is_over = not isinstance(event, TextDelta)
        return checked(event)

    @property
    def progress(self) -> tuple[int, int]:
        """How many tokens of the prompt are read, and how many it has."""
        return self._handle.progress

    def close(self) -> None:
        """Cancel the request, if it is still under way."""
        if not self._is_over:
            self._is_over = True
            self._handle.cancel()

    def __del__(self) -> None:
        self.close()


def completion(events: Iterator[TextDelta | Done]) -> Completion:
    """Return a whole answer from its pieces."""
    texts: list[TextDelta] = []
    for event in events:
        if isinstance(event, Done):
            tokens = [token for text in texts for token in text.tokens]
            logprobs = [entry for text in texts for entry in text.logprobs]
            answer = "".join(text.text for text in texts)
            return Completion(
                answer, tokens, event.reason, event.usage, logprobs, event.prompt_logprobs
            )
        texts.append(event)
    raise errors.RunnerDiedError("the answer broke off")


async def relayed(begin: Callable[[Sink], Request]) -> AsyncIterator[TextDelta | Done]:
    """Begin a request and yield what its sink receives, `Done` last, to the running event loop.

    Args:
        begin: takes the sink, which may be called on any thread.
    """
    loop = asyncio.get_running_loop()
    events: asyncio.Queue[Event] = asyncio.Queue()

    def sink(event: Event) -> None:
        try:
            loop.call_soon_threadsafe(events.put_nowait, event)
        except RuntimeError:  # the loop has ended, and with it whoever waited
            request.cancel()

    request = begin(sink)
    try:
        while True:
            event = checked(await events.get())
            yield event
            if isinstance(event, Done):
                return
    finally:
        request.cancel()
