"""Work that many ask for at once, done once for all of them."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Generic, TypeVar

T = TypeVar("T")


class Shared(Generic[T]):
    """Work on a thread, whose result is for all who asked before it began.

    Who asks while it is under way waits for the next time, so that nobody is told what was true
    before he asked. However many ask, it is done by one thread at a time.
    """

    def __init__(self, work: Callable[[], T]) -> None:
        self._work = work
        self._present: asyncio.Task[T] | None = None
        self._next: asyncio.Task[T] | None = None

    async def result(self) -> T:
        """Return what the work gives, begun after this call; its errors too."""
        if self._next is None:
            self._next = asyncio.create_task(self._do(self._present))
        return await asyncio.shield(self._next)

    async def _do(self, before: asyncio.Task[T] | None) -> T:
        if before is not None and not before.done():
            await asyncio.wait({before})
        self._present, self._next = self._next, None
        return await asyncio.to_thread(self._work)
