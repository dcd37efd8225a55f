"""What the API families share: finding a model and running a request on it."""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Mapping, Sequence
from contextlib import AbstractContextManager, aclosing, asynccontextmanager, nullcontext, suppress
from dataclasses import replace as with_fields
from functools import partial
from typing import Any, Protocol, TypeVar, cast

from msgspec.structs import replace

from tampu.engine.events import Reply, Started, joined
from tampu.engine.load_options import LLAMACPP
from tampu.engine.management import EstimateMemory, MemoryEstimate
from tampu.engine.prompts import TextPrompt
from tampu.engine.request import Lora, Request, Result
from tampu.engine.requests import Encode
from tampu.engine.sent_paths import sent_options, sent_path
from tampu.errors import ModelNameError, ModelNotFoundError, RequestError, RequestNotStartedError
from tampu.runner.events import Done, Usage
from tampu.runner.steering_options import Steering
from tampu.server.front.caller import current_caller
from tampu.server.serving.admission import Admission
from tampu.server.serving.choices import dropped_warnings, merged, worded
from tampu.server.serving.control_vectors import ServedControlVector, ServedControlVectors
from tampu.server.serving.default_model import only_model
from tampu.server.serving.events import Event
from tampu.server.serving.generation_request import GenerationRequest, ModelCall, ModelUse
from tampu.server.serving.managed_model import ManagedModel
from tampu.server.serving.model_defaults import ModelDefaults, model_defaults
from tampu.server.serving.model_manager import ModelManager
from tampu.server.serving.served_adapters import ServedAdapters
from tampu.server.serving.tracing import current_model, model_trace
from tampu.store.catalog import Catalog, Entry
from tampu.store.model_info import ModelInfo
from tampu.store.names import ModelName

logger = logging.getLogger(__name__)

R = TypeVar("R")


class RequestMetrics(Protocol):
    """Counts what is served."""

    def request(self, model: str) -> AbstractContextManager[Callable[[Reply], None]]:
        """Count a request; the function is called with each reply of the model."""
        ...


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
        max_capture_bytes: int = 0,
        default_model: str | None = None,
        adapters: ServedAdapters | None = None,
        control_vectors: Sequence[ServedControlVector] = (),
    ) -> None:
        """Answer from these models, found in this catalog, as many at a time as are admitted.

        An answer without a limit ends when a token repeats more than `max_repeated_tokens` times.
        `truncate` and `max_capture_bytes` are those of `ModelDefaults`.
        A request of an API that allows it may leave out the model (`find_for`): `default_model` is
        taken then. Tokens alone come from a model that is loaded, else from one loaded without its
        weights. `adapters` are those that requests may choose at first; None: there are none.
        `control_vectors` are in all requests that choose none.
        """
        self.models = models
        self.adapters = ServedAdapters() if adapters is None else adapters
        self.control_vectors = ServedControlVectors(control_vectors)
        self._vocabularies = vocabularies
        self.catalog = catalog
        self._defaults: dict[str, tuple[ModelInfo, str, ModelDefaults]] = {}
        self._admission = admission
        self._metrics = metrics
        self._max_repeated_tokens = max_repeated_tokens
        self._read_defaults = partial(
            model_defaults, truncate=truncate, max_capture_bytes=max_capture_bytes
        )
        self._default_model = default_model

    async def close(self) -> None:
        """Unload all models; requests under way end with an error."""
        await asyncio.gather(self.models.close(), self._vocabularies.close())

    @property
    def waiting(self) -> int:
        """The number of requests that wait for a model, a slot, or their first token."""
        return self._admission.waiting

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
            hint = "`tampu list` shows the models"
            with suppress(ModelNameError):
                ModelName.parse(name)
                hint += f", `tampu pull {shown}` downloads one"
            raise ModelNotFoundError(f"model '{shown}' not found; {hint}") from error
        current_caller().check_model(entry.name, entry.full_name)
        return with_fields(entry, adapter=adapter.name) if adapter else entry

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
            kept = (entry.info, entry.model.id, self._read_defaults(entry))
            self._defaults[entry.name] = kept
        return kept[2]

    def is_sleeping(self, entry: Entry) -> bool:
        """Whether nothing of a model is in memory, not even its vocabulary."""
        managers = (self.models, self._vocabularies)
        return all(manager.find(entry.name) is None for manager in managers)

    def generate(self, entry: Entry, request: GenerationRequest) -> AsyncGenerator[Event, None]:
        """Return the events of a request for text; as `run`."""
        return cast("AsyncGenerator[Event, None]", self.run(entry, request))

    async def ask(self, entry: Entry, call: ModelCall[R]) -> R:
        """Return the result of a request; as `run`."""
        async with aclosing(self.run(entry, call)) as replies:
            found: R = joined([reply async for reply in replies])
        return found

    async def run(
        self, entry: Entry, call: GenerationRequest | ModelCall[Any]
    ) -> AsyncGenerator[Reply, None]:
        """Yield what a model replies to a request; closing this cancels it.

        A request may arrive while a process is crashing, before the server knows: if the process
        had not started it, another one gets it, once.

        Raises:
            TampuError: when the model cannot be loaded, or the request fails.
        """
        with (
            model_trace(entry.name, call) as trace,
            self._queued() as leave_queue,
            self._metrics.request(entry.name) as count,
        ):
            is_queued = True
            if isinstance(call, GenerationRequest):
                call = await self.with_text_bias(entry, call)
            lora = self.adapters.choice(entry, call.lora)
            steering = self.control_vectors.steering(entry, call.control_vectors)
            for may_retry in (True, False):
                try:
                    async with self._use(entry, call) as model:
                        if lora:
                            await self.adapters.provide(model, lora)
                        ready_ns = time.monotonic_ns()
                        requests = self._requests(model, call, lora, steering)
                        with _worded(model, call):
                            async with aclosing(_replies(model, requests)) as replies:
                                async for reply in replies:
                                    may_retry = False
                                    if isinstance(reply, Started | Done | Result):
                                        reply = _stamped(reply, call, ready_ns)
                                    if is_queued and not isinstance(reply, Started | Done):
                                        leave_queue()
                                        is_queued = False
                                    count(reply)
                                    if trace is not None:
                                        trace.reply(reply)
                                    yield reply
                    return
                except RequestNotStartedError:
                    if not may_retry:
                        raise

    def _requests(
        self,
        model: ManagedModel,
        call: GenerationRequest | ModelCall[Any],
        lora: Lora,
        steering: tuple[Steering, ...],
    ) -> list[Request[Any]]:
        """Return what a loaded model is asked; nothing: it is only to be loaded."""
        priority = current_caller().priority
        asked = call.requests(model.runner.facts.context, self._max_repeated_tokens)
        return [request.scheduled(lora, priority, steering) for request in asked]

    @asynccontextmanager
    async def _use(self, entry: Entry, request: ModelUse) -> AsyncIterator[ManagedModel]:
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
            asked = Encode(TextPrompt(text), add_special=False, parse_special=False)
            encoded = await self.ask_vocabulary(entry, asked)
            bias |= dict.fromkeys(encoded.tokens(), value)
        options = replace(request.options, logit_bias=bias)
        return with_fields(request, options=options, text_bias={})

    async def estimate_memory(
        self, entry: Entry, overrides: Mapping[str, Any]
    ) -> MemoryEstimate | None:
        """Return what a model would take, None if its engine does not tell.

        Raises:
            TampuError: as `ask_vocabulary`.
        """
        options = self.models.options_of(entry, overrides)
        if options is None or options.engine == LLAMACPP:
            return None
        path = entry.info.path
        request = EstimateMemory(sent_path(path), sent_options(options))
        return await self.ask_vocabulary(entry, request)

    async def ask_vocabulary(self, entry: Entry, request: Request[R]) -> R:
        """Return the result of a request that needs the vocabulary, the weights loaded or not.

        Raises:
            TampuError: when the file is damaged, or the request fails.
        """
        for may_retry in (True, False):
            manager, keep_alive_s = self._vocabularies, None
            loaded = self.models.find(entry.name)
            if loaded is not None and loaded.is_usable(entry, {}):  # not an earlier one of its name
                manager, keep_alive_s = self.models, loaded.keep_alive_s
            try:
                async with manager.use(entry, {}, keep_alive_s) as model:
                    return await model.runner.ask(request)
            except RequestNotStartedError:
                if not may_retry:
                    raise
        raise AssertionError


def _replies(model: ManagedModel, requests: list[Request[Any]]) -> AsyncGenerator[Reply, None]:
    """Return the replies to requests, those of several as they come."""
    if not requests:
        return _loaded()
    running = [model.runner.run(request) for request in requests]
    return running[0] if len(running) == 1 else merged(running)


async def _loaded() -> AsyncGenerator[Reply, None]:
    """Yield the reply to a request that only loads the model."""
    yield Done("load", Usage())


def _stamped(
    reply: Started | Done | Result, call: GenerationRequest | ModelCall[Any], ready_ns: int
) -> Reply:
    """Return a reply with what only the server knows: when the model was ready, and warnings."""
    if isinstance(reply, Result):
        return reply.ready_at(ready_ns)
    if isinstance(reply, Done):
        return replace(reply, ready_ns=ready_ns)
    # The choices of one prompt drop the same.
    choices = call.choices if isinstance(call, GenerationRequest) else 1
    warnings = () if reply.choice % choices else dropped_warnings(reply.dropped)
    return replace(reply, ready_ns=ready_ns, warnings=warnings)


def _worded(
    model: ManagedModel, call: GenerationRequest | ModelCall[Any]
) -> AbstractContextManager[None]:
    """Reword the errors of a model for the client of a request."""
    structure = call.structure if isinstance(call, GenerationRequest) else None
    is_longest = 0 < model.entry.info.context <= model.runner.facts.context
    return worded(structure.field if structure else "", is_longest=is_longest)
