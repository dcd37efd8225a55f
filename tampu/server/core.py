"""What the APIs and the features of a server are built on."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass

import msgspec

from tampu.server.fields.media import ImageSource
from tampu.server.front.caller import Caller
from tampu.server.front.in_process import Answer
from tampu.server.front.keys import Key, unlimited_keys
from tampu.server.front.limiter import Limiter
from tampu.server.front.state import State, Tables
from tampu.server.options import ServerOptions
from tampu.server.serving.admission import Admission
from tampu.server.serving.crash_loop import CrashLoopBackoff
from tampu.server.serving.hosted_tools import HostedTools
from tampu.server.serving.metrics import Metrics
from tampu.server.serving.model_manager import ModelManager, Start
from tampu.server.serving.served_adapters import ServedAdapters
from tampu.server.serving.serving import Serving
from tampu.settings.server_settings import ServerSettings
from tampu.store.catalog import Catalog

_VOCABULARY_SECONDS = 60.0
_MAX_VOCABULARIES = 4


@dataclass(frozen=True, slots=True, kw_only=True)
class Core:
    """The parts of a server.

    Attributes:
        options: of the server.
        metrics: what it counts.
        serving: the models, and their use.
        hosted_tools: tools that it calls itself.
        images: puts images where requests name them by address.
        state: what is kept across restarts.
        keys: of the callers.
        limiter: counts what keys use.
        ask: returns the answer of a POST route, by its path and body.
    """

    options: ServerOptions
    metrics: Metrics
    serving: Serving
    hosted_tools: HostedTools
    images: ImageSource
    state: State
    keys: Sequence[Key]
    limiter: Limiter
    ask: Callable[[str, bytes], Awaitable[Answer]]

    def caller_of(self, name: str) -> Caller:
        """Return the caller with a key of this name, or with no permissions beyond its own."""
        return next((k.caller for k in self.keys if k.caller.name == name), Caller(name=name))

    async def close(self) -> None:
        """End what runs."""
        await self.hosted_tools.close()
        await self.serving.close()
        await self.state.close()


def make_core(
    options: ServerOptions,
    catalog: Catalog,
    start: Start,
    adapters: ServedAdapters | None,
    hosted_tools: Callable[[ServerOptions, Serving], HostedTools],
    images: ImageSource,
    tables: Sequence[Tables],
    ask: Callable[[str, bytes], Awaitable[Answer]],
) -> Core:
    """Return the parts of a server; the arguments are those of `create_app`, and more parts."""
    metrics = Metrics()
    serving = _serving(options, catalog, start, metrics, adapters)
    return Core(
        options=options,
        metrics=metrics,
        serving=serving,
        hosted_tools=hosted_tools(options, serving),
        images=images,
        state=State(options.state, tables),
        keys=[*unlimited_keys(options.use_api_keys, options.api_keys), *options.keys],
        limiter=Limiter(),
        ask=ask,
    )


def _serving(
    options: ServerOptions,
    catalog: Catalog,
    start: Start,
    metrics: Metrics,
    adapters: ServedAdapters | None,
) -> Serving:
    models = ModelManager(
        start,
        options=options.model,
        keep_alive_s=options.keep_alive_s,
        max_models=options.max_loaded_models or ServerSettings.max_loaded_models,
        memory_bytes=options.memory,
        loaded=metrics.loaded,
        crashed=metrics.crashed,
        computed=metrics.computed,
        crash_backoff=CrashLoopBackoff(options.max_crashes),
        may_reload=not options.has_replicas,
    )
    vocabularies = ModelManager(
        start,
        options=msgspec.structs.replace(options.model, vocabulary_only=True),
        keep_alive_s=min(_VOCABULARY_SECONDS, options.keep_alive_s or _VOCABULARY_SECONDS),
        max_models=_MAX_VOCABULARIES,
        crash_backoff=CrashLoopBackoff(options.max_crashes),
    )
    admission = Admission(options.max_queue)
    metrics.gauge("tampu_requests_waiting", "Queued requests.", lambda: admission.waiting)
    metrics.model_gauge(
        "tampu_model_memory_bytes",
        "Memory of the loaded models.",
        lambda: [(m.entry.name, m.runner.facts.memory_bytes) for m in models.models()],
    )
    metrics.model_gauge(
        "tampu_model_requests",
        "Requests that use a model.",
        lambda: [(model.entry.name, model.users) for model in models.models()],
    )
    return Serving(
        models,
        vocabularies,
        catalog,
        admission,
        metrics,
        max_repeated_tokens=options.max_repeated_tokens or None,
        truncate=options.truncate,
        max_capture_bytes=options.max_capture_bytes,
        default_model=options.default_model,
        adapters=ServedAdapters(options.cache) if adapters is None else adapters,
        control_vectors=options.control_vectors,
    )
