"""The results of a batch's rows on their way to the database, several in one transaction.

A transaction costs changes of threads, and there may be hundreds of rows a second. A result waits
at most for the pause after the last transaction; a server that is killed meanwhile does its row
again.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from types import TracebackType
from typing import Self

from tampu.server.features.batches.store import Result

_PAUSE_S = 0.05
_MAX_WAITING = 64  # then rows wait for the disk


class ResultQueue:
    """Results that are recorded together; a context manager, which records the rest at its end."""

    def __init__(
        self, record: Callable[[Sequence[Result]], Awaitable[None]], pause_s: float = _PAUSE_S
    ) -> None:
        """Record results with `record`, then pause for so many seconds."""
        self._record, self._pause_s = record, pause_s
        self._waiting: asyncio.Queue[Result] = asyncio.Queue(_MAX_WAITING)
        self._is_recording = False

    async def put(self, result: Result, group: asyncio.TaskGroup) -> None:
        """Have a result recorded, by a task of the group, which ends with its errors."""
        await self._waiting.put(result)
        if not self._is_recording:
            self._is_recording = True
            group.create_task(self._record_all())

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        if not self._waiting.empty():
            await self._record(self._taken())

    async def _record_all(self) -> None:
        while not self._waiting.empty():
            await self._record(self._taken())
            await asyncio.sleep(self._pause_s)
        self._is_recording = False

    def _taken(self) -> list[Result]:
        return [self._waiting.get_nowait() for _ in range(self._waiting.qsize())]
