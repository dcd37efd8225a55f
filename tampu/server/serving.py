"""What the API families share: finding a model and running a request on it."""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import AsyncGenerator, AsyncIterator, Awaitable, Callable, Mapping, Sequence
from contextlib import AbstractContextManager, aclosing, asynccontextmanager, nullcontext, suppress
from dataclasses import replace
from pathlib import Path
from typing import Any, Protocol, TypeAlias, TypeVar

import msgspec
import numpy as np
import numpy.typing as npt

from tampu.engine.estimate import MemoryEstimate
from tampu.engine.load_options import LLAMACPP
from tampu.engine.prompts import Prompt, TextPrompt
from tampu.engine.questions import Decisions
from tampu.engine.snapshots import SlotAction
from tampu.errors import (
    ModelNameError,
    ModelNotFoundError,
    RequestError,
    RequestNotStartedError,
)
from tampu.runner.events import Usage
from tampu.runner.priority import current_priority
from tampu.server.admission import Admission
from tampu.server.caller import current_caller
from tampu.server.choices import Choice, dropped_warnings, each_choice, merged, worded
from tampu.server.default_model import only_model
from tampu.server.events import (
    Event,
    Finished,
    Started,
)
from tampu.server.generation_request import (
    DecisionTask,
    EmbeddingTask,
    GenerationRequest,
    RerankTask,
    require,
)
from tampu.server.model_defaults import ModelDefaults, model_defaults
from tampu.server.model_manager import ManagedModel, ModelManager
from tampu.server.served_adapters import ServedAdapters
from tampu.server.tracing import attributes_of, current_model, model_trace, operation_of
from tampu.store.catalog import Catalog, Entry
from tampu.store.model_info import ModelInfo
from tampu.store.names import ModelName
from tampu.worker.model_client import ModelClient
from tampu.worker.protocol import (
    ActedOnSlot,
    ActOnSlot,
    Decoded,
    Encoded,
    Ready,
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

    def decided(self, model: str, found: Decisions) -> None:
        """Count the tokens of decisions."""
        ...


class Embeddings(msgspec.Struct, frozen=True):
    """Unit vectors, F32 (inputs, width); the number of tokens; when the model was ready.

    `dropped` tokens did not fit the context; `warnings` are as in `Started`. Of a model without
    pooling: a vector for each token; `lengths` are the numbers of tokens of the inputs.
    """

    vectors: npt.NDArray[np.float32]
    tokens: int
    ready_ns: int
    dropped: int = 0
    warnings: tuple[str, ...] = ()
    lengths: tuple[int, ...] = ()


_ForModel: TypeAlias = GenerationRequest | EmbeddingTask | DecisionTask | RerankTask


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
        adapters: ServedAdapters | None = None,
    ) -> None:
        """Answer from these models, found in this catalog, as many at a time as are admitted.

        An answer without a limit ends when a token repeats more than `max_repeated_tokens` times.
        `truncate` is that of `ModelDefaults`.
        A request of an API that allows it may leave out the model (`find_for`): `default_model` is
        taken then. Tokens alone come from a model that is loaded, else from one loaded without its
        weights. `adapters` are those that requests may choose at first; None: there are none.
        """
        self.models = models
        self.adapters = ServedAdapters() if adapters is None else adapters
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
            NotAllowedError: if the caller's key does not allow it.
        """
        if not name:
            raise RequestError("model is required")
        adapter = self.adapters.find(name)
        try:
            entry = self.catalog.describe(adapter.base if adapter else name)
        except ModelNotFoundError as error:
            shown = name[:200]
            told = "`tampu list` shows the models"
            with suppress(ModelNameError):
                ModelName.parse(name)
                told += f", `tampu pull {shown}` downloads one"
            raise ModelNotFoundError(f"model '{shown}' not found; {told}") from error
        current_caller().check_model(entry.name, entry.full_name)
        return replace(entry, adapter=adapter.name) if adapter else entry

    def find_for(self, body: _WithModel, *can: str) -> Entry:
        """Return the model of a request, whose name is filled in if it has none.

        That is the default model, else the one that `only_model` finds with these capabilities.

        Raises:
            RequestError: without a name, if there is no default and `only_model` finds none.
            ModelNotFoundError: if there is no such model.
        """
        if not body.model:
            body.model = self._default_model or self._only(can)
        return self.find(body.model)

    def _only(self, can: Sequence[str]) -> str:
        loaded = [model.entry for model in self.models.models()]
        return only_model(loaded, self.catalog, can).full_name

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

    def is_sleeping(self, entry: Entry) -> bool:
        """Whether nothing of a model is in memory, not even its vocabulary."""
        managers = (self.models, self._vocabularies)
        return all(manager.find(entry.name) is None for manager in managers)

    async def generate(
        self, entry: Entry, request: GenerationRequest
    ) -> AsyncGenerator[Event, None]:
        """Yield the events of a request; closing this cancels it.

        A request may arrive while a process is crashing, before the server knows: if the process
        had not started it, another one gets it, once.

        Raises:
            TampuError: when the model cannot be loaded, or the request fails.
        """
        operation = operation_of(request)
        with (
            model_trace(operation, entry.name, lambda: attributes_of(request)) as trace,
            self._queued() as leave_queue,
            self._metrics.request(entry.name) as count,
        ):
            request = await self.with_text_bias(entry, request)
            lora = self.adapters.choice(entry, request.options.lora)
            if lora != request.options.lora:
                options = msgspec.structs.replace(request.options, lora=lora)
                request = replace(request, options=options)
            for may_retry in (True, False):
                try:
                    async with self._use(entry, request) as model:
                        await self.adapters.provide(model, lora)
                        async with aclosing(self._events(model, request)) as events:
                            async for event in events:
                                may_retry = False
                                count(event)
                                if trace is not None:
                                    trace.event(event)
                                if not isinstance(event, Started):
                                    leave_queue()
                                yield event
                    return
                except RequestNotStartedError:
                    if not may_retry:
                        raise

    @asynccontextmanager
    async def _use(self, entry: Entry, request: _ForModel) -> AsyncIterator[ManagedModel]:
        """Hold the model of a request, as `ModelManager.use`; trace its loading."""
        before, began_ns = self.models.find(entry.name), time.time_ns()
        async with self.models.use(entry, request.overrides, request.keep_alive_s) as model:
            trace = current_model()
            if trace is not None and model is not before:
                trace.loaded(entry.name, began_ns)
            yield model

    def _queued(self) -> AbstractContextManager[Callable[[], None]]:
        """Queue a request; the rows of batches have a queue of their own."""
        if current_caller().is_row:
            return nullcontext(lambda: None)
        return self._admission.wait()

    async def with_text_bias(self, entry: Entry, request: GenerationRequest) -> GenerationRequest:
        """Return a request whose biases are all of tokens."""
        if not request.text_bias:
            return request
        bias = dict(request.options.logit_bias)
        for text, value in request.text_bias.items():
            encoded = await self.encode(
                entry, TextPrompt(text), add_special=False, parse_special=False
            )
            bias |= dict.fromkeys(encoded.tokens(), value)
        options = msgspec.structs.replace(request.options, logit_bias=bias)
        return replace(request, options=options, text_bias={})

    def _events(
        self, model: ManagedModel, request: GenerationRequest
    ) -> AsyncGenerator[Event, None]:
        """Return the events of a request to a model that is loaded."""
        ready_ns = time.monotonic_ns()
        if not request.prompts:
            return _loaded(ready_ns)
        options = request.limited(model.runner.ready.context, self._max_repeated_tokens)
        if (priority := current_priority()) != options.priority:
            options = msgspec.structs.replace(options, priority=priority)
        is_longest = _has_longest_context(model)
        choices = [
            Choice(index, request, ready_ns, is_longest=is_longest).events(
                model.runner, prompt, own
            )
            for index, (prompt, own) in enumerate(each_choice(request, options))
        ]
        return choices[0] if len(choices) == 1 else merged(choices)

    async def embed(self, entry: Entry, request: EmbeddingTask) -> Embeddings:
        """Return embeddings.

        Raises:
            TampuError: when the model cannot be loaded, or the request fails.
        """
        with self._queued(), model_trace("embeddings", entry.name):
            return await _with_retry(lambda: self._embedded(entry, request))

    async def _embedded(self, entry: Entry, request: EmbeddingTask) -> Embeddings:
        lora = self.adapters.choice(entry, request.lora)
        async with self._use(entry, request) as model:
            ready_ns = time.monotonic_ns()
            await self.adapters.provide(model, lora)
            if not request.inputs:
                return Embeddings(np.empty((0, 0), np.float32), 0, ready_ns)
            _check_pooling(model.runner.ready, request)
            with worded(is_longest=_has_longest_context(model)):
                found = await model.runner.embed(
                    request.inputs,
                    truncate=request.truncate,
                    normalize=request.norm >= 0,
                    late_chunking=request.late_chunking,
                    lora=lora,
                )
            self._metrics.embedded(entry.name, found.tokens)
            if (trace := current_model()) is not None:
                trace.used(Usage(prompt_tokens=found.tokens))
        vectors = np.frombuffer(found.vectors, "<f4").reshape(-1, found.width)
        warnings = (*request.warnings, *dropped_warnings(found.dropped))
        if model.runner.ready.has_pooling:
            vectors = request.sized(vectors)
        told = (found.dropped, warnings, found.lengths)
        return Embeddings(vectors, found.tokens, ready_ns, *told)

    async def decide(self, entry: Entry, task: DecisionTask | RerankTask) -> Decisions:
        """Return the answers to questions, or whether documents match a query.

        Raises:
            TampuError: when the model cannot be loaded, or the request fails.
        """
        lora = self.adapters.choice(entry, task.lora)

        async def attempt() -> Decisions:
            async with self._use(entry, task) as model:
                await self.adapters.provide(model, lora)
                with worded(is_longest=_has_longest_context(model)):
                    if isinstance(task, DecisionTask):
                        return await model.runner.decide(task.prompt, task.questions, lora)
                    return await model.runner.rerank(
                        task.query, task.documents, task.instruction, lora
                    )

        with self._queued(), model_trace("decisions", entry.name) as trace:
            found = await _with_retry(attempt)
            if trace is not None:
                trace.used(Usage(found.input_tokens, found.cached_tokens))
        self._metrics.decided(entry.name, found)
        return found

    async def act_on_slot(
        self, entry: Entry, action: SlotAction, slot: int, path: Path
    ) -> ActedOnSlot:
        """Save, restore or erase the last conversation of a model's slot.

        Raises:
            TampuError: when the model cannot be loaded, or there is nothing to save or restore.
        """
        async with self.models.use(entry, {}, None) as model:
            return await model.runner.ask(
                lambda number: ActOnSlot(number, action, slot, str(path)), ActedOnSlot
            )

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
        return await self.with_vocabulary(
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
        return await self.with_vocabulary(entry, lambda runner: runner.decode(tokens))

    async def estimate_memory(
        self, entry: Entry, overrides: Mapping[str, Any]
    ) -> MemoryEstimate | None:
        """Return what a model would take, None if its engine does not tell; raises as `encode`."""
        options = self.models.options_of(entry, overrides)
        if options is None or options.engine == LLAMACPP:
            return None
        path = entry.info.path
        return await self.with_vocabulary(entry, lambda own: own.estimate_memory(path, options))

    async def with_vocabulary(self, entry: Entry, ask: Callable[[ModelClient], Awaitable[T]]) -> T:
        """Ask a process that has the model's vocabulary, its weights loaded or not."""

        async def attempt() -> T:
            manager, keep_alive_s = self._vocabularies, None
            loaded = self.models.find(entry.name)
            if loaded is not None and loaded.is_usable(entry, {}):  # not an earlier one of its name
                manager, keep_alive_s = self.models, loaded.keep_alive_s
            async with manager.use(entry, {}, keep_alive_s) as model:
                return await ask(model.runner)

        return await _with_retry(attempt)


def _has_longest_context(model: ManagedModel) -> bool:
    return 0 < model.entry.info.context <= model.runner.ready.context


async def _loaded(ready_ns: int) -> AsyncGenerator[Event, None]:
    """Yield the event of a request that only loads the model."""
    yield Finished("load", Usage(), ready_ns)


async def _with_retry(attempt: Callable[[], Awaitable[T]]) -> T:
    """Return the attempt's result; retry once if the worker died before it accepted the request."""
    try:
        return await attempt()
    except RequestNotStartedError:
        return await attempt()


def _check_pooling(ready: Ready, request: EmbeddingTask) -> None:
    """Refuse a request that needs pooling, for a model without."""
    if not ready.has_pooling:
        message = (
            "the model has no pooling, so a text has a vector for each of its tokens: POST "
            "/embeddings has these; or set TAMPU_POOLING to mean, cls or last"
        )
        require(request.may_be_unpooled, message)
        require(request.dimensions is None, "dimensions need pooling, and the model has none")
