"""Events that come while others are on their way, gathered: a message of Ray costs much."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator
from contextlib import aclosing, suppress
from typing import TypeVar

T = TypeVar("T")


async def gathered(events: AsyncGenerator[T, None]) -> AsyncGenerator[list[T], None]:
    """Yield what has come since the last time, as soon as something has; closing ends the events.

    Raises:
        Exception: what the events raise, after all that came before.
    """
    come: asyncio.Queue[tuple[T] | None] = asyncio.Queue()

    async def pump() -> None:
        try:
            async with aclosing(events):
                async for event in events:
                    come.put_nowait((event,))
        finally:
            come.put_nowait(None)

    pumping = asyncio.create_task(pump())
    try:
        is_over = False
        while not is_over:
            found = [await come.get()]
            while not come.empty():
                found.append(come.get_nowait())
            is_over = found[-1] is None
            together = [each[0] for each in found if each is not None]
            if together:
                yield together
        await pumping
    finally:
        pumping.cancel()
        with suppress(asyncio.CancelledError, Exception):
            await pumping
