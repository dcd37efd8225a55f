"""The choices of a response, merged; their errors and warnings in the server's words."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncGenerator, Iterator, Sequence
from contextlib import aclosing, contextmanager
from typing import TypeVar

from tampu.errors import ContextLengthError, GrammarError

logger = logging.getLogger(__name__)
T = TypeVar("T")


def dropped_warnings(dropped: int) -> tuple[str, ...]:
    """Return, and log, the warning of tokens that did not fit the context; none of none."""
    if not dropped:
        return ()
    warning = f"{dropped} tokens of the prompt were dropped: they did not fit the context (num_ctx)"
    logger.warning("%s", warning)
    return (warning,)


async def merged(choices: Sequence[AsyncGenerator[T, None]]) -> AsyncGenerator[T, None]:
    """Yield the events of all choices as they come; the first error ends them all."""
    events: asyncio.Queue[T | None] = asyncio.Queue()

    async def forward(choice: AsyncGenerator[T, None]) -> None:
        try:
            async with aclosing(choice):
                async for event in choice:
                    events.put_nowait(event)
        finally:
            events.put_nowait(None)

    tasks = [asyncio.create_task(forward(choice)) for choice in choices]
    running = len(tasks)
    try:
        while running:
            event = await events.get()
            if event is not None:
                yield event
                continue
            running -= 1
            for task in tasks:
                if task.done():
                    task.result()
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)


@contextmanager
def worded(field: str = "", *, is_longest: bool) -> Iterator[None]:
    """Reword a worker's errors: with the field of the grammar; without advice that cannot help."""
    try:
        yield
    except GrammarError as error:
        raise (error.at(field) if field else error) from None
    except ContextLengthError as error:
        raise (error.without_longer() if is_longest else error) from None
