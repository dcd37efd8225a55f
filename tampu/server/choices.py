"""The choices of a response: a worker's events as those that the API families translate."""

from __future__ import annotations

import asyncio
import logging
import secrets
from collections.abc import AsyncGenerator, Iterator, Sequence
from contextlib import aclosing, contextmanager

import msgspec

from tampu.chat.output import ToolCallArguments, ToolCallEnd, ToolCallStart
from tampu.engine.prompts import Prompt
from tampu.errors import ContextLengthError, GrammarError
from tampu.runner import events
from tampu.runner.events import Done, TextDelta
from tampu.runner.request import GenerateOptions
from tampu.server.events import (
    ContentDelta,
    EndReason,
    Event,
    Finished,
    PromptLogprobs,
    PromptProgress,
    ReasoningDelta,
    Started,
    ToolCallDelta,
    ToolCallFinished,
    ToolCallStarted,
)
from tampu.server.generation_request import GenerationRequest
from tampu.worker.model_client import ModelClient
from tampu.worker.protocol import GenerateEvent, PromptProcessed, PromptTokenLogprobs

logger = logging.getLogger(__name__)


class Choice:
    """One choice of a response: turns a runner's events into those of the API families."""

    def __init__(
        self, index: int, request: GenerationRequest, ready_ns: int, *, is_longest: bool
    ) -> None:
        self._is_longest = is_longest
        self._index = index
        self._request = request
        self._ready_ns = ready_ns
        self._calls = 0  # that have begun
        self._complete = 0  # of them
        self._call: ToolCallStarted | None = None  # that is open; None: none, or one too many
        self._arguments: list[str] = []

    async def events(
        self, runner: ModelClient, prompt: Prompt, options: GenerateOptions
    ) -> AsyncGenerator[Event, None]:
        """Yield the events of this choice."""
        structure = self._request.structure
        with worded(structure.field if structure else "", is_longest=self._is_longest):
            given = runner.generate(
                prompt, options, structure, is_streamed=self._request.is_streamed
            )
            async with aclosing(given):
                async for event in given:
                    own = self._event(event)
                    if own is not None:
                        yield own

    def _event(self, event: GenerateEvent) -> Event | None:
        """Return an event of the worker as one of this choice; None: of a call too many."""
        match event:
            case TextDelta(text=text, tokens=tokens, logprobs=logprobs):
                return ContentDelta(text, tokens, logprobs, self._index)
            case events.ReasoningDelta(text=text, tokens=tokens, logprobs=logprobs):
                return ReasoningDelta(text, tokens, logprobs, self._index)
            case ToolCallStart() | ToolCallArguments() | ToolCallEnd():
                return self._call_event(event)
            case PromptProcessed(tokens=tokens, dropped=dropped, begin=begin):
                # The choices of one prompt drop the same.
                warnings = dropped_warnings(0 if self._index % self._request.choices else dropped)
                return Started(tokens, self._ready_ns, self._index, warnings, begin, dropped)
            case events.PromptProgress():
                given = (event.tokens, event.cached, event.processed, event.elapsed_ns)
                return PromptProgress(*given, self._index)
            case PromptTokenLogprobs(first=first, logprobs=logprobs):
                return PromptLogprobs(first, logprobs, self._index)
            case Done():
                return self._end(event)

    def _call_event(self, event: ToolCallStart | ToolCallArguments | ToolCallEnd) -> Event | None:
        if isinstance(event, ToolCallStart):
            index, self._calls = self._calls, self._calls + 1
            most = self._request.max_calls
            id = f"call_{secrets.token_hex(4)}"
            is_wanted = most is None or index < most
            self._call = ToolCallStarted(id, event.name, index, self._index) if is_wanted else None
            self._arguments = []
            return self._call
        call = self._call
        if call is None:
            return None
        if isinstance(event, ToolCallArguments):
            self._arguments.append(event.text)
            return ToolCallDelta(event.text, call.index, self._index)
        self._complete += event.state == "complete"
        return ToolCallFinished(
            call.id, call.name, "".join(self._arguments), call.index, event.state, event.text,
            self._index,
        )  # fmt: skip

    def _end(self, done: Done) -> Finished:
        reason: EndReason = done.reason
        if self._complete and reason == "stop":
            reason = "tool_calls"
        return Finished(
            reason, done.usage, self._ready_ns, done.stop, self._index, done.batches, done.limit,
            done.end,
        )  # fmt: skip


def dropped_warnings(dropped: int) -> tuple[str, ...]:
    """Return, and log, the warning of tokens that did not fit the context; none of none."""
    if not dropped:
        return ()
    warning = f"{dropped} tokens of the prompt were dropped: they did not fit the context (num_ctx)"
    logger.warning("%s", warning)
    return (warning,)


def each_choice(
    request: GenerationRequest, options: GenerateOptions
) -> Iterator[tuple[Prompt, GenerateOptions]]:
    """Yield the prompt and the options of each choice; each has its own seed if one is given."""
    for prompt in request.prompts:
        for number in range(request.choices):
            if options.seed is None or not number:
                yield prompt, options
            else:
                yield prompt, msgspec.structs.replace(options, seed=options.seed + number)


async def merged(choices: Sequence[AsyncGenerator[Event, None]]) -> AsyncGenerator[Event, None]:
    """Yield the events of all choices as they come; the first error ends them all."""
    events: asyncio.Queue[Event | None] = asyncio.Queue()

    async def forward(choice: AsyncGenerator[Event, None]) -> None:
        try:
            async with aclosing(choice):
                async for event in choice:
                    events.put_nowait(event)
        finally:
            events.put_nowait(None)

    tasks = [asyncio.create_task(forward(choice)) for choice in choices]
    running = len(tasks)
    try:
        while running:
            event = await events.get()
            if event is not None:
                yield event
                continue
            running -= 1
            for task in tasks:
                if task.done():
                    task.result()
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)


@contextmanager
def worded(field: str = "", *, is_longest: bool) -> Iterator[None]:
    """Reword a worker's errors: with the field of the grammar; without advice that cannot help."""
    try:
        yield
    except GrammarError as error:
        raise (error.at(field) if field else error) from None
    except ContextLengthError as error:
        raise (error.without_longer() if is_longest else error) from None
