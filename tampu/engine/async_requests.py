"""The requests of an engine for `asyncio`, which do not block the event loop."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import AsyncGenerator, Mapping, Sequence

from tampu.engine.arguments import checked
from tampu.engine.backend import ReplySink, Running
from tampu.engine.completion import ChatCompletion, ChatEvent, Completion, aiter_events, completion
from tampu.engine.input_processor import Prompt
from tampu.engine.python_requests import Message


class AsyncRequests(ABC):
    """The methods of `Engine` for `asyncio`."""

    @checked
    def astream(self, prompt: Prompt, **options: object) -> AsyncGenerator[ChatEvent, None]:
        """Return an async iterator like `stream`; closing it cancels the request."""
        return aiter_events(lambda sink: self._begin(prompt, options, sink))

    @checked
    def astream_chat(
        self, messages: Sequence[Message], **options: object
    ) -> AsyncGenerator[ChatEvent, None]:
        """Return an async iterator like `stream_chat`; closing it cancels the request."""
        return aiter_events(lambda sink: self._begin_chat(messages, options, sink))

    async def agenerate(self, prompt: Prompt, **options: object) -> Completion:
        """Like `generate`, without blocking the event loop."""
        events = [event async for event in self.astream(prompt, **options)]
        return completion(events, options.get("format"))

    async def achat(self, messages: Sequence[Message], **options: object) -> ChatCompletion:
        """Like `chat`, without blocking the event loop."""
        events = [event async for event in self.astream_chat(messages, **options)]
        return completion(events, options.get("format"))

    @abstractmethod
    def _begin(self, prompt: Prompt, given: Mapping[str, object], sink: ReplySink) -> Running:
        """Begin a request; its options replace the model's own defaults."""

    @abstractmethod
    def _begin_chat(
        self, messages: Sequence[Message], given: Mapping[str, object], sink: ReplySink
    ) -> Running:
        """Begin the same for the next message of a conversation."""
