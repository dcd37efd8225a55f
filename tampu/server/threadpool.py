"""Work that blocks, done step by step on threads, for handlers that must not block."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Callable, Generator, Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import TypeVar

T = TypeVar("T")

MOST_AT_ONCE = 32


class Stepper:
    """Runs iterators on threads of its own."""

    def __init__(self) -> None:
        self._threads: ThreadPoolExecutor | None = None
        self._ending: set[asyncio.Task[None]] = set()

    async def steps(self, begin: Callable[[], Iterator[T]]) -> AsyncGenerator[T, None]:
        """Yield what an iterator gives; closing this closes the iterator, after its present step.

        Raises:
            TampuError: the iterator's own.
        """
        loop = asyncio.get_running_loop()
        iterator = begin()
        step: asyncio.Future[T | None] | None = None
        try:
            while True:
                step = loop.run_in_executor(self._pool(), next, iterator, None)
                item = await asyncio.shield(step)
                if item is None:
                    return
                yield item
        finally:
            task = asyncio.create_task(self._end(iterator, step))
            self._ending.add(task)
            task.add_done_callback(self._ending.discard)

    async def close(self) -> None:
        """Wait until nothing runs any more."""
        if self._ending:
            await asyncio.wait(self._ending)
        if self._threads is not None:
            self._threads.shutdown(wait=False)
            self._threads = None

    def _pool(self) -> ThreadPoolExecutor:
        if self._threads is None:
            self._threads = ThreadPoolExecutor(MOST_AT_ONCE, thread_name_prefix="tampu-work")
        return self._threads

    async def _end(self, iterator: Iterator[T], step: asyncio.Future[T | None] | None) -> None:
        if step is not None and not step.done():
            await asyncio.wait({step})
        if step is not None and not step.cancelled():
            step.exception()  # it was told already, or nobody listens
        if isinstance(iterator, Generator):
            await asyncio.get_running_loop().run_in_executor(self._pool(), iterator.close)
