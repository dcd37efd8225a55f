"""Events that are gathered: none is lost, none waits for another, and closing ends the source."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator
from contextlib import aclosing

import pytest

from tampu.cluster.gathering import gathered


class Source:
    """Yields what is put into it."""

    def __init__(self) -> None:
        self.given: asyncio.Queue[int | Exception | None] = asyncio.Queue()
        self.is_closed = False

    async def events(self) -> AsyncGenerator[int, None]:
        try:
            while (event := await self.given.get()) is not None:
                if isinstance(event, Exception):
                    raise event
                yield event
        finally:
            self.is_closed = True

    def give(self, *events: int | Exception | None) -> None:
        for event in events:
            self.given.put_nowait(event)


def test_what_comes_meanwhile_comes_together() -> None:
    async def check() -> None:
        source = Source()
        async with aclosing(gathered(source.events())) as found:
            source.give(1)
            assert await anext(found) == [1]
            source.give(2, 3, 4)
            rest: list[int] = []
            while len(rest) < 3:
                rest += await anext(found)
            assert rest == [2, 3, 4]
            source.give(5, None)
            assert [each async for together in found for each in together] == [5]
        assert source.is_closed

    asyncio.run(check())


def test_an_error_comes_after_what_was_before_it() -> None:
    async def check() -> None:
        source = Source()
        source.give(1, 2, ValueError("x"))
        found = gathered(source.events())
        assert await anext(found) == [1, 2]
        with pytest.raises(ValueError, match="x"):
            await anext(found)

    asyncio.run(check())


def test_closing_ends_the_source_while_it_waits() -> None:
    async def check() -> None:
        source = Source()
        async with aclosing(gathered(source.events())) as found:
            source.give(1)
            assert await anext(found) == [1]
        assert source.is_closed

    asyncio.run(check())
