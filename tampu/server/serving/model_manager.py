"""The models in memory: loaded on request, shared by all clients, unloaded when idle for a while.

Everything here runs on one event loop. A model is in one of three states: loading (a task in
`_loading`), loaded (in `_models`), or evicted (in neither; closed when its last request ends). One
model is loaded at a time. If it does not fit beside the others, the least recently used one is
evicted, an idle one if possible; new requests for an evicted model wait until it is loaded again.
No request is ever dropped to make room for another model.
"""

from __future__ import annotations

import asyncio
import functools
import logging
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from contextlib import asynccontextmanager
from typing import Any

from msgspec.structs import replace

from tampu.engine.load_options import LoadOptions
from tampu.errors import (
    LoadCancelledError,
    ModelFileError,
    OutOfMemoryError,
    RequestError,
    TampuError,
)
from tampu.runner.events import BatchCounts
from tampu.server.serving.crash_loop import CrashLoopBackoff
from tampu.server.serving.generation_request import FOREVER
from tampu.server.serving.managed_model import ManagedModel, PendingLoad, fits, next_evicted
from tampu.server.serving.memory_budget import MemoryBudget
from tampu.server.serving.model_defaults import with_model_files
from tampu.store.catalog import Entry
from tampu.worker.model_client import ModelClient

logger = logging.getLogger(__name__)

Start = Callable[[Entry, LoadOptions], Awaitable[ModelClient]]


class ModelManager:
    """Loads, shares and evicts models."""

    def __init__(
        self,
        start: Start,
        *,
        options: LoadOptions,
        keep_alive_s: float,
        max_models: int,
        memory_bytes: int | None = None,
        loaded: Callable[[str, float], None] = lambda _, __: None,
        crashed: Callable[[str], None] = lambda _: None,
        computed: Callable[[BatchCounts], None] = lambda _: None,
        crash_backoff: CrashLoopBackoff | None = None,
        told: tuple[type[TampuError], ...] = (RequestError,),
        may_reload: bool = True,
        clock: Callable[[], float] = time.time,
    ) -> None:
        """Manage models; none is loaded yet.

        Args:
            start: loads a model.
            options: how models are loaded unless their Modelfile or a request says otherwise.
            keep_alive_s: how long a model stays after its last use.
            max_models: the maximum number of loaded models.
            memory_bytes: their maximum memory together; None: the free memory.
            loaded: called with the name and the duration (s) of each load.
            crashed: called with the name of each model whose process has crashed.
            computed: called with the batches of a model since the last call.
            crash_backoff: refuses models that crash too often; None: three times within a minute.
            told: the errors of loading that waiting requests get, so that the log does not warn.
            may_reload: whether requests may have models loaded with other options.
            clock: returns the seconds since 1970, for reported expiry times; models are unloaded by
                the event loop's clock.
        """
        self._start = start
        self._clock = clock
        self._budget = MemoryBudget(memory_bytes)
        self._loaded = loaded
        self._crashed = crashed
        self._computed = computed
        self._crash_backoff = crash_backoff or CrashLoopBackoff()
        self._may_reload = may_reload
        self._told = told
        self._turn = asyncio.Lock()
        self._is_closing = False
        self.options = options
        self._keep_alive_s = keep_alive_s
        self._max_models = max_models
        self._models: dict[str, ManagedModel] = {}
        self._loading: dict[str, PendingLoad] = {}
        self._closing: set[asyncio.Task[None]] = set()

    def models(self) -> list[ManagedModel]:
        """Return the models in memory, the one that expires last first."""
        return sorted(self._models.values(), key=lambda model: -(model.expires_s or FOREVER))

    def loading(self) -> list[PendingLoad]:
        """Return the models that are being loaded."""
        return [*self._loading.values()]

    @asynccontextmanager
    async def use(
        self, entry: Entry, overrides: Mapping[str, Any], keep_alive_s: float | None
    ) -> AsyncIterator[ManagedModel]:
        """Hold a model, loading it if it is not in memory.

        Args:
            entry: the model.
            overrides: load options it must have; loaded with others, it is replaced when idle.
            keep_alive_s: how long it stays afterwards; None: the default.

        Raises:
            TampuError: if it cannot be loaded; RequestError if it may not be loaded with these
                options.
        """
        if overrides and not self._may_reload:  # finding out the defaults takes milliseconds
            _check_loaded_as(self._default_options(entry), overrides)
        model = await self._acquire(entry, overrides, keep_alive_s)
        model.keep_alive_s = self._keep_alive_s if keep_alive_s is None else keep_alive_s
        try:
            yield model
        finally:
            self._release(model)

    def find(self, name: str) -> ManagedModel | None:
        """Return a model if it is in memory."""
        return self._models.get(name)

    async def unload(self, name: str) -> None:
        """Unload a model once its last request is done; not being loaded is fine."""
        if name in self._models:
            self._evict(self._models[name])

    async def close(self) -> None:
        """Unload all models; running requests end with an error."""
        self._is_closing = True
        tasks = [loading.task for loading in self._loading.values()]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        for model in list(self._models.values()):
            self._evict(model)
            self._close_soon(model)
        while self._closing:
            await asyncio.gather(*self._closing, return_exceptions=True)
        self._is_closing = False

    async def _acquire(
        self, entry: Entry, overrides: Mapping[str, Any], keep_alive_s: float | None
    ) -> ManagedModel:
        while True:
            if self._is_closing:
                raise LoadCancelledError("the server is shutting down")
            model = self._models.get(entry.name)
            if model is not None and model.is_usable(entry, overrides):
                model.users += 1
                model.used_s = time.monotonic()
                model.stop_timer()
                return model
            if entry.name not in self._loading:
                task = asyncio.create_task(self._load(entry, overrides))
                keep_s = self._keep_alive_s if keep_alive_s is None else keep_alive_s
                context = overrides.get("context") or self._context(entry)
                pending = PendingLoad(task, entry, context, keep_s)
                task.add_done_callback(functools.partial(_retrieve, pending, self._told))
                self._loading[entry.name] = pending
            model = await self._loading[entry.name].outcome(self._release)
            if model.runner.is_alive and fits(model.options, overrides):
                return model
            self._release(model)

    async def _load(self, entry: Entry, overrides: Mapping[str, Any]) -> ManagedModel:
        try:
            old = self._models.get(entry.name)
            if old is not None:
                await self._evict_and_wait(old)
            self._crash_backoff.check(_file(entry), entry.name)
            async with self._turn:
                options = replace(self._default_options(entry), **overrides)
                while self._models and not self._has_room(entry, options):
                    await self._evict_and_wait(next_evicted(self._models.values()))
                runner = await self._started(entry, options)
            users = self._loading[entry.name].waiting
            model = ManagedModel(entry, options, runner, self._keep_alive_s, users)
            self._budget.loaded(entry, options, runner.facts)
            self._models[entry.name] = model
            if not users:
                self._start_timer(model)
            return model
        finally:
            del self._loading[entry.name]

    async def _started(self, entry: Entry, options: LoadOptions) -> ModelClient:
        """Load a model; while it does not fit, evict others."""
        while True:
            began_s = time.monotonic()
            logger.info("loading %s: context %d", entry.name, options.context)
            try:
                runner = await self._start(entry, options)
            except OutOfMemoryError:
                if not self._models:
                    raise
                await self._evict_and_wait(next_evicted(self._models.values()))
            except ModelFileError as error:
                raise entry.model.damaged(error) from error
            else:
                self._loaded(entry.name, time.monotonic() - began_s)
                runner.computed = self._computed
                return runner

    def size_of(self, entry: Entry) -> tuple[int, int]:
        """Return the context of a model, in tokens, and its number of slots."""
        loaded = self.find(entry.name)
        if loaded is None:
            return self._context(entry), self.options.max_slots
        return loaded.runner.facts.context, loaded.runner.facts.slots

    def options_of(self, entry: Entry, overrides: Mapping[str, Any]) -> LoadOptions | None:
        """Return how a model would be loaded here; None: requests load none."""
        return replace(self._default_options(entry), **overrides) if self._may_reload else None

    def _default_options(self, entry: Entry) -> LoadOptions:
        options = replace(self.options, context=self._context(entry))
        return with_model_files(options, entry)

    def _context(self, entry: Entry) -> int:
        return min(self.options.context, entry.info.context or self.options.context)

    def _has_room(self, entry: Entry, options: LoadOptions) -> bool:
        others = [model.runner.facts for model in self._models.values()]
        return len(others) < self._max_models and self._budget.has_room(entry, options, others)

    async def _evict_and_wait(self, model: ManagedModel) -> None:
        """Evict a model, and wait until it is closed."""
        self._evict(model)
        await model.closed.wait()
        await asyncio.gather(*self._closing)

    def _release(self, model: ManagedModel) -> None:
        model.users -= 1
        model.used_s = time.monotonic()
        if model.users:
            return
        if model.is_evicted:
            self._close_soon(model)
        elif model.keep_alive_s <= 0 or not model.runner.is_alive:
            self._evict(model)
        else:
            self._start_timer(model)

    def _evict(self, model: ManagedModel) -> None:
        """Take a model out of use; it is closed when its last request ends."""
        if model.is_evicted:
            return
        model.is_evicted = True
        if cause := model.runner.cause:
            self._crash_backoff.record(_file(model.entry), cause)
            self._crashed(model.entry.name)
        model.stop_timer()
        del self._models[model.entry.name]
        if model.users == 0:
            self._close_soon(model)

    def _close_soon(self, model: ManagedModel) -> None:
        if model.closed.is_set():
            return
        logger.info("unloading %s", model.entry.name)
        self._budget.closed(model.runner.facts)
        model.closed.set()
        task = asyncio.create_task(model.runner.close())
        self._closing.add(task)
        task.add_done_callback(self._closing.discard)

    def _start_timer(self, model: ManagedModel) -> None:
        if model.keep_alive_s == FOREVER:
            return
        loop = asyncio.get_running_loop()
        model.expires_s = self._clock() + model.keep_alive_s
        model.timer = loop.call_later(model.keep_alive_s, self._evict, model)


def _check_loaded_as(options: LoadOptions, overrides: Mapping[str, Any]) -> None:
    for name, wanted in overrides.items():
        if replace(options, **{name: wanted}) != options:
            own = getattr(options, name)
            message = f"models are loaded with {name}={own!r} here, and no request can change that"
            raise RequestError(message)


def _file(entry: Entry) -> tuple[str, float]:
    """Return a key for a model's file that a later file of the same name does not have."""
    return str(entry.info.path), entry.modified_s


def _retrieve(
    pending: PendingLoad, told: tuple[type[TampuError], ...], task: asyncio.Task[ManagedModel]
) -> None:
    """Retrieve a task's error, so that asyncio does not report it if no request waits."""
    if task.cancelled() or (error := task.exception()) is None:
        return
    is_told = isinstance(error, told) and pending.waiting > 0
    logger.log(logging.INFO if is_told else logging.WARNING, "loading failed: %s", error)
