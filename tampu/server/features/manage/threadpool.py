"""Runs blocking iterators on threads, for handlers that must not block."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Callable, Generator, Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import TypeVar

T = TypeVar("T")

MAX_THREADS = 32


class IterationPool:
    """Runs iterators on its own threads, started with the first."""

    def __init__(self) -> None:
        self._threads: ThreadPoolExecutor | None = None
        self._closing: set[asyncio.Task[None]] = set()

    async def iterate_in_threadpool(
        self, start: Callable[[], Iterator[T]]
    ) -> AsyncGenerator[T, None]:
        """Yield the items of an iterator; closing this closes the iterator after its current step.

        Raises:
            TampuError: raised by the iterator.
        """
        loop = asyncio.get_running_loop()
        iterator = start()
        step: asyncio.Future[T | None] | None = None
        try:
            while True:
                step = loop.run_in_executor(self._pool(), next, iterator, None)
                item = await asyncio.shield(step)
                if item is None:
                    return
                yield item
        finally:
            task = asyncio.create_task(self._close_iterator(iterator, step))
            self._closing.add(task)
            task.add_done_callback(self._closing.discard)

    async def close(self) -> None:
        """Wait until all iterators are closed, then end the threads."""
        if self._closing:
            await asyncio.wait(self._closing)
        if self._threads is not None:
            self._threads.shutdown(wait=False)
            self._threads = None

    def _pool(self) -> ThreadPoolExecutor:
        if self._threads is None:
            self._threads = ThreadPoolExecutor(MAX_THREADS, thread_name_prefix="tampu-work")
        return self._threads

    async def _close_iterator(
        self, iterator: Iterator[T], step: asyncio.Future[T | None] | None
    ) -> None:
        if step is not None and not step.done():
            await asyncio.wait({step})
        if step is not None and not step.cancelled():
            step.exception()  # raised already, or no client is connected
        if isinstance(iterator, Generator):
            await asyncio.get_running_loop().run_in_executor(self._pool(), iterator.close)
