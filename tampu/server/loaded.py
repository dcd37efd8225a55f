"""The models in memory: loaded when asked for, once however many ask, kept for a while, unloaded.

Everything here runs on one event loop. A model is in one of three states: loading (a task in
`_loading`), loaded (in `_models`), or on its way out (in neither; closed when its last user is
done).
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field

from tampu.catalog import Entry
from tampu.runner.client import Runner
from tampu.runner.protocol import ModelOptions
from tampu.server.errors import BusyError
from tampu.server.job import Overrides

logger = logging.getLogger(__name__)

Start = Callable[[Entry, ModelOptions], Awaitable[Runner]]


@dataclass(slots=True, eq=False)
class LoadedModel:
    """A model in memory.

    Attributes:
        entry: what it is.
        options: how it was loaded.
        runner: what runs it.
        keep_alive_s: how long it stays after its last use.
        users: requests that hold it.
        expires_s: when it goes, in seconds since 1970; None while it is in use or stays for ever.
        is_leaving: whether it takes no more requests.
    """

    entry: Entry
    options: ModelOptions
    runner: Runner
    keep_alive_s: float
    users: int = 0
    expires_s: float | None = None
    is_leaving: bool = False
    timer: asyncio.TimerHandle | None = None
    closed: asyncio.Event = field(default_factory=asyncio.Event)

    def is_usable(self, overrides: Overrides) -> bool:
        """Whether a request with these wishes can have it."""
        return self.runner.is_alive and not self.is_leaving and overrides.fit(self.options)


class LoadedModels:
    """The keeper of the models in memory."""

    def __init__(
        self, start: Start, *, options: ModelOptions, keep_alive_s: float, most: int
    ) -> None:
        """Keep at most `most` models, loaded by `start` with `options` unless a request differs."""
        self._start = start
        self._options = options
        self._keep_alive_s = keep_alive_s
        self._most = most
        self._models: dict[str, LoadedModel] = {}
        self._loading: dict[str, asyncio.Task[None]] = {}
        self._closing: set[asyncio.Task[None]] = set()

    def models(self) -> list[LoadedModel]:
        """Return the models in memory, the one that stays longest first."""
        latest = float("inf")
        return sorted(self._models.values(), key=lambda model: -(model.expires_s or latest))

    @asynccontextmanager
    async def use(
        self, entry: Entry, overrides: Overrides, keep_alive_s: float | None
    ) -> AsyncIterator[LoadedModel]:
        """Hold a model, loading it if it is not there.

        Args:
            entry: which model.
            overrides: how it must be loaded; another load of it is replaced when it is idle.
            keep_alive_s: how long it stays afterwards; None: the default.

        Raises:
            TampuError: when it cannot be loaded; BusyError when there is no room for it.
        """
        model = await self._acquire(entry, overrides)
        model.keep_alive_s = self._keep_alive_s if keep_alive_s is None else keep_alive_s
        try:
            yield model
        finally:
            self._release(model)

    async def unload(self, name: str) -> None:
        """Unload a model once its last request is done; not being loaded is fine."""
        if name in self._models:
            self._dismiss(self._models[name])

    async def close(self) -> None:
        """Unload all models at once; requests under way end with an error."""
        for task in self._loading.values():
            task.cancel()
        await asyncio.gather(*self._loading.values(), return_exceptions=True)
        for model in list(self._models.values()):
            self._dismiss(model)
            self._close_soon(model)
        while self._closing:
            await asyncio.gather(*self._closing, return_exceptions=True)

    async def _acquire(self, entry: Entry, overrides: Overrides) -> LoadedModel:
        while True:
            model = self._models.get(entry.name)
            if model is not None and model.is_usable(overrides):
                model.users += 1
                self._stop_timer(model)
                return model
            if entry.name not in self._loading:
                task = asyncio.create_task(self._load(entry, overrides))
                task.add_done_callback(_retrieve)
                self._loading[entry.name] = task
            await asyncio.shield(self._loading[entry.name])

    async def _load(self, entry: Entry, overrides: Overrides) -> None:
        try:
            old = self._models.get(entry.name)
            if old is not None:
                self._dismiss(old)
                await old.closed.wait()
            self._make_room()
            await asyncio.gather(*self._closing)
            options = overrides.apply(self._default_options(entry))
            logger.info("loading %s: context %d", entry.name, options.context)
            runner = await self._start(entry, options)
            model = LoadedModel(entry, options, runner, self._keep_alive_s)
            self._models[entry.name] = model
            self._start_timer(model)
        finally:
            del self._loading[entry.name]

    def _default_options(self, entry: Entry) -> ModelOptions:
        longest = entry.info.context or self._options.context
        return Overrides(context=min(self._options.context, longest)).apply(self._options)

    def _make_room(self) -> None:
        """Let the idle model that would go first go, if there are too many."""
        if len(self._models) + len(self._loading) <= self._most:
            return
        idle = [model for model in self.models() if model.users == 0]
        if not idle:
            raise BusyError(f"server busy: all {self._most} places for models are in use")
        self._dismiss(idle[-1])

    def _release(self, model: LoadedModel) -> None:
        model.users -= 1
        if model.users:
            return
        if model.is_leaving:
            self._close_soon(model)
        elif model.keep_alive_s <= 0 or not model.runner.is_alive:
            self._dismiss(model)
        else:
            self._start_timer(model)

    def _dismiss(self, model: LoadedModel) -> None:
        """Take a model out of use; it is closed when nobody holds it."""
        if model.is_leaving:
            return
        model.is_leaving = True
        self._stop_timer(model)
        del self._models[model.entry.name]
        if model.users == 0:
            self._close_soon(model)

    def _close_soon(self, model: LoadedModel) -> None:
        if model.closed.is_set():
            return
        logger.info("unloading %s", model.entry.name)
        model.closed.set()
        task = asyncio.create_task(model.runner.close())
        self._closing.add(task)
        task.add_done_callback(self._closing.discard)

    def _start_timer(self, model: LoadedModel) -> None:
        if model.keep_alive_s == float("inf"):
            return
        loop = asyncio.get_running_loop()
        model.expires_s = time.time() + model.keep_alive_s
        model.timer = loop.call_later(model.keep_alive_s, self._dismiss, model)

    def _stop_timer(self, model: LoadedModel) -> None:
        model.expires_s = None
        if model.timer is not None:
            model.timer.cancel()
            model.timer = None


def _retrieve(task: asyncio.Task[None]) -> None:
    """Look at a task's error, so that asyncio does not report it when nobody waited for it."""
    if not task.cancelled() and task.exception() is not None:
        logger.warning("loading failed: %s", task.exception())
