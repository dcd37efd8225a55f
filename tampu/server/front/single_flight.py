"""Single flight: concurrent callers share one run of the same work."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Generic, TypeVar

T = TypeVar("T")


class SingleFlight(Generic[T]):
    """Work on a thread whose result is shared by all callers that came before it started.

    A caller that arrives during a run waits for the next run, so results are never older than the
    call. At most one run is active.
    """

    def __init__(self, work: Callable[[], T]) -> None:
        self._work = work
        self._current: asyncio.Task[T] | None = None
        self._next: asyncio.Task[T] | None = None

    async def result(self) -> T:
        """Return the result of a run that starts after this call; raises what the work raises."""
        if self._next is None:
            self._next = asyncio.create_task(self._run(self._current))
        return await asyncio.shield(self._next)

    async def _run(self, previous: asyncio.Task[T] | None) -> T:
        if previous is not None and not previous.done():
            await asyncio.wait({previous})
        self._current, self._next = self._next, None
        return await asyncio.to_thread(self._work)
