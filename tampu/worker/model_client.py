"""The commands of a loaded model, wherever it runs: in a process of this machine, or on another."""

from __future__ import annotations

import os
from abc import ABC, abstractmethod
from collections.abc import AsyncGenerator, Callable, Sequence
from contextlib import aclosing
from pathlib import Path
from typing import TypeVar

from tampu.engine.estimate import MemoryEstimate
from tampu.engine.load_options import LoadOptions
from tampu.engine.prompts import ChatPrompt, Prompt, StructuredOutput, TextPrompt, TokensPrompt
from tampu.engine.questions import Decisions, Question
from tampu.engine.scoring import NO_LORA, Lora
from tampu.errors import RunnerDiedError
from tampu.runner.events import BatchCounts
from tampu.runner.recorder import RunnerSnapshot
from tampu.runner.request import GenerateOptions
from tampu.worker.protocol import (
    CheckFormat,
    Decide,
    Decided,
    Decode,
    Decoded,
    Embed,
    Embedded,
    Encode,
    Encoded,
    EstimateMemory,
    FormatChecked,
    Generate,
    GenerateEvent,
    MemoryEstimated,
    Observe,
    Observed,
    Ready,
    Request,
    RequestEvent,
    Rerank,
    SingleEvent,
    TokenDetail,
)

Single = TypeVar("Single", bound=SingleEvent)


class ModelClient(ABC):
    """A loaded model, for one event loop.

    Attributes:
        name: of the model in messages.
        computed: called with the batches that were computed since the last call.
    """

    name: str
    computed: Callable[[BatchCounts], None]

    @property
    @abstractmethod
    def ready(self) -> Ready:
        """The report of the loaded model; RunnerDiedError if it is not loaded."""

    @property
    @abstractmethod
    def is_alive(self) -> bool:
        """Whether it accepts requests."""

    @property
    @abstractmethod
    def cause(self) -> str:
        """Why it crashed; empty while it has not, or after `close`."""

    @property
    def pid(self) -> int | None:
        """Its process on this machine; None: it runs elsewhere."""
        return None

    @abstractmethod
    def request(self, command: Callable[[int], Request]) -> AsyncGenerator[RequestEvent, None]:
        """Yield the events of a command; closing the iterator cancels it.

        Args:
            command: makes the command of the number that it gets.

        Raises:
            TampuError: if it fails; RunnerDiedError if the model's process has ended, and
                RequestNotStartedError if it did so before it started the request.
        """

    @abstractmethod
    async def close(self) -> None:
        """End the process, if it is this client's."""

    async def generate(
        self,
        prompt: Prompt,
        options: GenerateOptions,
        structure: StructuredOutput | None = None,
        *,
        is_streamed: bool = True,
    ) -> AsyncGenerator[GenerateEvent, None]:
        """Yield the events of one request; closing the iterator cancels it; raises as `request`.

        Unless it `is_streamed`, they are few.
        """

        def command(number: int) -> Generate:
            return Generate(number, prompt, options, structure, is_streamed=is_streamed)

        async with aclosing(self.request(command)) as events:
            async for event in events:
                if isinstance(event, GenerateEvent):
                    yield event

    async def embed(
        self,
        inputs: Sequence[TextPrompt | TokensPrompt],
        *,
        truncate: bool = True,
        normalize: bool = True,
        late_chunking: bool = False,
        lora: Lora = NO_LORA,
    ) -> Embedded:
        """Return the embeddings of texts; raises as `request`, or ContextLengthError."""

        def command(number: int) -> Embed:
            return Embed(
                number, tuple(inputs), truncate, late_chunking, dict(lora), normalize=normalize
            )

        return await self.ask(command, Embedded)

    async def encode(
        self,
        prompt: Prompt,
        *,
        add_special: bool = True,
        parse_special: bool = True,
        detail: TokenDetail = "tokens",
    ) -> Encoded:
        """Return the tokens of a prompt; raises as `request`."""
        async with aclosing(
            self.request(lambda n: Encode(n, prompt, add_special, parse_special, detail))
        ) as events:
            return Encoded.joined([each async for each in events if isinstance(each, Encoded)])

    async def decode(self, tokens: Sequence[int]) -> Decoded:
        """Return the text of tokens; raises as `request`."""
        return await self.ask(lambda n: Decode(n, tuple(tokens)), Decoded)

    async def check_format(self, wanted: object) -> None:
        """Try an output format; raises as `request`, or GrammarError."""
        await self.ask(lambda n: CheckFormat(n, wanted), FormatChecked)

    async def decide(
        self, prompt: ChatPrompt, questions: tuple[Question, ...], lora: Lora = NO_LORA
    ) -> Decisions:
        """Return the answers to questions about a conversation; raises as `request`."""
        found = await self.ask(lambda n: Decide(n, prompt, questions, dict(lora)), Decided)
        return found.decisions

    async def rerank(
        self, query: str, documents: tuple[str, ...], instruction: str, lora: Lora = NO_LORA
    ) -> Decisions:
        """Return whether each document matches a query; raises as `request`."""
        found = await self.ask(
            lambda n: Rerank(n, query, documents, instruction, dict(lora)), Decided
        )
        return found.decisions

    async def observe(self) -> RunnerSnapshot | None:
        """Return what the model has done since the last call; raises as `request`.

        None if its engine does not tell.
        """
        return (await self.ask(Observe, Observed)).snapshot

    async def estimate_memory(self, path: Path, options: LoadOptions) -> MemoryEstimate:
        """Return what the model of a file would take; raises as `request`."""
        found = await self.ask(
            lambda n: EstimateMemory(n, os.fsencode(path), options), MemoryEstimated
        )
        return found.estimate

    async def ask(self, command: Callable[[int], Request], kind: type[Single]) -> Single:
        """Send a command that has one event, and return this; raises as `request`."""
        async with aclosing(self.request(command)) as events:
            async for event in events:
                if isinstance(event, kind):
                    return event
        raise RunnerDiedError(f"model {self.name!r} ended a request without a {kind.__name__}")
