"""What the API families share: finding a model and running a request on it."""

from __future__ import annotations

import asyncio
import logging
import secrets
import time
from collections.abc import AsyncGenerator, Awaitable, Callable, Iterator, Sequence
from contextlib import AbstractContextManager, aclosing
from dataclasses import replace
from typing import Protocol, TypeVar

import msgspec
import numpy as np
import numpy.typing as npt

from tampu.chat.output import ToolCallArguments, ToolCallEnd, ToolCallStart
from tampu.engine.prompts import Prompt, TextPrompt
from tampu.errors import ModelNotFoundError, RequestError, RequestNotStartedError
from tampu.ml.vectors import normalize
from tampu.runner import events
from tampu.runner.events import Done, TextDelta, Usage
from tampu.runner.request import GenerateOptions
from tampu.server.admission import Admission
from tampu.server.events import (
    ContentDelta,
    EndReason,
    Event,
    Finished,
    PromptLogprobs,
    ReasoningDelta,
    Started,
    ToolCallDelta,
    ToolCallFinished,
    ToolCallStarted,
)
from tampu.server.generation_request import EmbeddingTask, GenerationRequest, require
from tampu.server.model_defaults import ModelDefaults, model_defaults
from tampu.server.model_manager import ManagedModel, ModelManager
from tampu.store.catalog import Catalog, Entry
from tampu.store.model_info import ModelInfo
from tampu.worker.client import WorkerProcess
from tampu.worker.protocol import (
    Decoded,
    Encoded,
    GenerateEvent,
    PromptProcessed,
    PromptTokenLogprobs,
    TokenDetail,
)

logger = logging.getLogger(__name__)

T = TypeVar("T")


class RequestMetrics(Protocol):
    """Counts what is served."""

    def request(self, model: str) -> AbstractContextManager[Callable[[Event], None]]:
        """Count a request; the function is called with each event of its answer."""
        ...

    def embedded(self, model: str, tokens: int) -> None:
        """Count an embedding's tokens."""
        ...


class Embeddings(msgspec.Struct, frozen=True):
    """Unit vectors, F32 (inputs, width); the number of tokens; when the model was ready.

    `dropped` tokens did not fit the context; `warnings` are as in `Started`.
    """

    vectors: npt.NDArray[np.float32]
    tokens: int
    ready_ns: int
    dropped: int = 0
    warnings: tuple[str, ...] = ()


class _WithModel(Protocol):
    model: str | None


class Serving:
    """The models of a server, and their use."""

    def __init__(
        self,
        models: ModelManager,
        vocabularies: ModelManager,
        catalog: Catalog,
        admission: Admission,
        metrics: RequestMetrics,
        *,
        max_repeated_tokens: int | None = None,
        truncate: bool | None = None,
        default_model: str | None = None,
    ) -> None:
        """Answer from these models, found in this catalog, as many at a time as are admitted.

        An answer without a limit ends when a token repeats more than `max_repeated_tokens` times.
        `truncate` is that of `ModelDefaults`.
        A request of an API that allows it may leave out the model: `default_model`, or the only one
        in memory. Tokens alone come from a model that is loaded, else from one loaded without its
        weights.
        """
        self.models = models
        self._vocabularies = vocabularies
        self.catalog = catalog
        self._defaults: dict[str, tuple[ModelInfo, str, ModelDefaults]] = {}
        self._admission = admission
        self._metrics = metrics
        self._max_repeated_tokens = max_repeated_tokens
        self._truncate = truncate
        self._default_model = default_model

    async def close(self) -> None:
        """Unload all models; requests under way end with an error."""
        await asyncio.gather(self.models.close(), self._vocabularies.close())

    def find(self, name: str | None) -> Entry:
        """Return the model of a name.

        Raises:
            RequestError: without a name.
            ModelNotFoundError: if there is no such model.
        """
        if not name:
            raise RequestError("model is required")
        try:
            return self.catalog.describe(name)
        except ModelNotFoundError as error:
            raise ModelNotFoundError(f"model '{name[:200]}' not found") from error

    def find_for(self, body: _WithModel) -> Entry:
        """Return the model of a request, whose name is filled in if it has none.

        Raises:
            RequestError: without a name, if there is no default and not one model in memory.
            ModelNotFoundError: if there is no such model.
        """
        if not body.model:
            body.model = self._default_model or self._only_loaded()
        return self.find(body.model)

    def _only_loaded(self) -> str:
        loaded = self.models.models()
        if len(loaded) == 1:
            return loaded[0].entry.full_name
        raise RequestError(
            f"model is required: TAMPU_DEFAULT_MODEL is not set, and {len(loaded)} models are in "
            "memory, not one"
        )

    def defaults(self, entry: Entry) -> ModelDefaults:
        """Return the defaults that a model sets.

        Raises:
            StoreError: if a part of it is missing from the store.
        """
        kept = self._defaults.get(entry.name)
        if kept is None or kept[0] is not entry.info or kept[1] != entry.model.id:
            kept = (entry.info, entry.model.id, model_defaults(entry, truncate=self._truncate))
            self._defaults[entry.name] = kept
        return kept[2]

    async def generate(
        self, entry: Entry, request: GenerationRequest
    ) -> AsyncGenerator[Event, None]:
        """Yield the events of a request; closing this cancels it.

        A request may arrive while a process is crashing, before the server knows: if the process
        had not started it, another one gets it, once.

        Raises:
            TampuError: when the model cannot be loaded, or the request fails.
        """
        with self._admission.wait() as leave_queue, self._metrics.request(entry.name) as count:
            request = await self._with_text_bias(entry, request)
            for may_retry in (True, False):
                try:
                    async with (
                        self.models.use(entry, request.overrides, request.keep_alive_s) as model,
                        aclosing(self._events(model, request)) as events,
                    ):
                        async for event in events:
                            may_retry = False
                            count(event)
                            if not isinstance(event, Started):
                                leave_queue()
                            yield event
                    return
                except RequestNotStartedError:
                    if not may_retry:
                        raise

    async def _with_text_bias(self, entry: Entry, request: GenerationRequest) -> GenerationRequest:
        """Return a request whose biases are all of tokens."""
        bias = dict(request.options.logit_bias)
        for text, value in request.text_bias.items():
            encoded = await self.encode(
                entry, TextPrompt(text), add_special=False, parse_special=False
            )
            bias |= dict.fromkeys(encoded.tokens(), value)
        options = msgspec.structs.replace(request.options, logit_bias=bias)
        return replace(request, options=options, text_bias={}) if request.text_bias else request

    def _events(
        self, model: ManagedModel, request: GenerationRequest
    ) -> AsyncGenerator[Event, None]:
        """Return the events of a request to a model that is loaded."""
        ready_ns = time.monotonic_ns()
        if not request.prompts:
            return _loaded(ready_ns)
        options = request.limited(model.runner.ready.context, self._max_repeated_tokens)
        choices = [
            Choice(index, request, ready_ns).events(model.runner, prompt, own)
            for index, (prompt, own) in enumerate(_choices(request, options))
        ]
        return choices[0] if len(choices) == 1 else _merged(choices)

    async def embed(self, entry: Entry, request: EmbeddingTask) -> Embeddings:
        """Return embeddings.

        Raises:
            TampuError: when the model cannot be loaded, or the request fails.
        """
        with self._admission.wait():
            return await _with_retry(lambda: self._embedded(entry, request))

    async def _embedded(self, entry: Entry, request: EmbeddingTask) -> Embeddings:
        async with self.models.use(entry, request.overrides, request.keep_alive_s) as model:
            ready_ns = time.monotonic_ns()
            if not request.inputs:
                return Embeddings(np.empty((0, 0), np.float32), 0, ready_ns)
            found = await model.runner.embed(request.inputs, truncate=request.truncate)
            self._metrics.embedded(entry.name, found.tokens)
        vectors = np.frombuffer(found.vectors, "<f4").reshape(-1, found.width)
        warnings = (*request.warnings, *dropped_warnings(found.dropped))
        shortened = _shortened(vectors, request.dimensions)
        return Embeddings(shortened, found.tokens, ready_ns, found.dropped, warnings)

    async def encode(
        self,
        entry: Entry,
        prompt: Prompt,
        *,
        add_special: bool = True,
        parse_special: bool = True,
        detail: TokenDetail = "tokens",
    ) -> Encoded:
        """Return the tokens of a prompt; the model's weights need not be loaded.

        Raises:
            TampuError: when the file is damaged, or its template fails.
        """
        return await self._with_vocabulary(
            entry,
            lambda runner: runner.encode(
                prompt, add_special=add_special, parse_special=parse_special, detail=detail
            ),
        )

    async def count_tokens(self, entry: Entry, prompt: Prompt) -> int:
        """Return the number of tokens of a prompt; otherwise as `encode`."""
        return (await self.encode(entry, prompt, detail="count")).count

    async def decode(self, entry: Entry, tokens: Sequence[int]) -> Decoded:
        """Return the text of tokens; the model's weights need not be loaded.

        Raises:
            TampuError: when the file is damaged, or a token does not exist.
        """
        return await self._with_vocabulary(entry, lambda runner: runner.decode(tokens))

    async def _with_vocabulary(
        self, entry: Entry, ask: Callable[[WorkerProcess], Awaitable[T]]
    ) -> T:
        """Ask a process that has the model's vocabulary, its weights loaded or not."""

        async def attempt() -> T:
            loaded = self.models.find(entry.name)
            manager = self._vocabularies if loaded is None else self.models
            keep_alive_s = None if loaded is None else loaded.keep_alive_s
            async with manager.use(entry, {}, keep_alive_s) as model:
                return await ask(model.runner)

        return await _with_retry(attempt)


class Choice:
    """One choice of a response: turns a runner's events into those of the API families."""

    def __init__(self, index: int, request: GenerationRequest, ready_ns: int) -> None:
        self._index = index
        self._request = request
        self._ready_ns = ready_ns
        self._calls = 0  # that have begun
        self._complete = 0  # of them
        self._call: ToolCallStarted | None = None  # that is open; None: none, or one too many
        self._arguments: list[str] = []

    async def events(
        self, runner: WorkerProcess, prompt: Prompt, options: GenerateOptions
    ) -> AsyncGenerator[Event, None]:
        """Yield the events of this choice."""
        async with aclosing(runner.generate(prompt, options, self._request.structure)) as given:
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
            case PromptProcessed(tokens=tokens, dropped=dropped):
                # The choices of one prompt drop the same.
                warnings = dropped_warnings(0 if self._index % self._request.choices else dropped)
                return Started(tokens, self._ready_ns, self._index, warnings)
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
        return Finished(reason, done.usage, self._ready_ns, done.stop, self._index)


def dropped_warnings(dropped: int) -> tuple[str, ...]:
    """Return, and log, the warning of tokens that did not fit the context; none of none."""
    if not dropped:
        return ()
    warning = f"{dropped} tokens of the prompt were dropped: they did not fit the context (num_ctx)"
    logger.warning("%s", warning)
    return (warning,)


async def _loaded(ready_ns: int) -> AsyncGenerator[Event, None]:
    """Yield the event of a request that only loads the model."""
    yield Finished("load", Usage(), ready_ns)


async def _with_retry(attempt: Callable[[], Awaitable[T]]) -> T:
    """Return the attempt's result; retry once if the worker died before it accepted the request."""
    try:
        return await attempt()
    except RequestNotStartedError:
        return await attempt()


def _choices(
    request: GenerationRequest, options: GenerateOptions
) -> Iterator[tuple[Prompt, GenerateOptions]]:
    """Yield the prompt and the options of each choice; each has its own seed if one is given."""
    for prompt in request.prompts:
        for number in range(request.choices):
            seed = None if options.seed is None else options.seed + number
            yield prompt, msgspec.structs.replace(options, seed=seed)


async def _merged(choices: Sequence[AsyncGenerator[Event, None]]) -> AsyncGenerator[Event, None]:
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


def _shortened(vectors: npt.NDArray[np.float32], dimensions: int | None) -> npt.NDArray[np.float32]:
    """Return vectors cut to their first dimensions and normalized again."""
    if dimensions is None:
        return vectors
    width = vectors.shape[1]
    require(
        0 < dimensions <= width, f"dimensions must be 1 to {width} for this model, not {dimensions}"
    )
    return normalize(vectors[:, :dimensions])
