"""A model in memory or being loaded, and who uses it."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, field
from typing import Any

from msgspec.structs import replace

from tampu.engine.load_options import LoadOptions
from tampu.errors import LoadCancelledError
from tampu.server.serving.generation_request import FOREVER
from tampu.store.catalog import Entry
from tampu.worker.model_client import ModelClient


@dataclass(slots=True, eq=False)
class ManagedModel:
    """A model in memory.

    Attributes:
        entry: its name and files.
        options: how it was loaded.
        runner: its commands, and its process.
        keep_alive_s: how long it stays after its last use.
        users: the number of requests that hold it.
        used_s: when it was last used, on the monotonic clock.
        expires_s: when it is unloaded, in seconds since 1970; None while in use or kept forever.
        is_evicted: whether it takes no more requests.
        adapters: the names of those that its process has loaded for requests to choose.
        adapter_turn: held while that changes.
    """

    entry: Entry
    options: LoadOptions
    runner: ModelClient
    keep_alive_s: float
    users: int = 0
    used_s: float = field(default_factory=time.monotonic)
    expires_s: float | None = None
    is_evicted: bool = False
    adapters: set[str] = field(default_factory=set)
    adapter_turn: asyncio.Lock = field(default_factory=asyncio.Lock)
    timer: asyncio.TimerHandle | None = None
    closed: asyncio.Event = field(default_factory=asyncio.Event)

    def is_usable(self, entry: Entry, overrides: Mapping[str, Any]) -> bool:
        """Whether a request for this model with these overrides can use it."""
        is_same_file = entry.info.path == self.entry.info.path
        is_same_file = is_same_file and entry.modified_s == self.entry.modified_s
        is_there = self.runner.is_alive and not self.is_evicted
        return is_there and is_same_file and fits(self.options, overrides)

    def stop_timer(self) -> None:
        """Do not unload it when its time is over."""
        self.expires_s = None
        if self.timer is not None:
            self.timer.cancel()
            self.timer = None


@dataclass(slots=True, eq=False)
class PendingLoad:
    """A model that is being loaded, and the number of requests that wait for it.

    They count as its users from the start, so that it is not evicted before they can use it.
    """

    task: asyncio.Task[ManagedModel]
    entry: Entry
    context: int
    keep_alive_s: float
    waiting: int = 0

    async def outcome(self, release: Callable[[ManagedModel], None]) -> ManagedModel:
        """Wait until it is loaded; a caller cancelled meanwhile gives it back with `release`.

        Raises:
            TampuError: if loading fails; LoadCancelledError if the server shuts down.
        """
        self.waiting += 1
        try:
            return await asyncio.shield(self.task)
        except asyncio.CancelledError:
            if self.task.cancelled():
                raise LoadCancelledError("the server is shutting down") from None
            if not self.task.done():
                self.waiting -= 1
            elif self.task.exception() is None:
                release(self.task.result())
            raise


def fits(options: LoadOptions, overrides: Mapping[str, Any]) -> bool:
    """Return whether a model loaded with these options meets what a request overrides."""
    return replace(options, **overrides) == options


def next_evicted(models: Collection[ManagedModel]) -> ManagedModel:
    """Return the model to evict first."""
    return min(models, key=lambda each: (each.users > 0, each.keep_alive_s == FOREVER, each.used_s))
