"""Work that many ask for at once is done once for all who asked before it began."""

from __future__ import annotations

import asyncio
import threading
from typing import Any

from tampu.server.front.single_flight import SingleFlight


def test_caller_during_a_run_waits_for_the_next_run() -> None:
    begun, go_on, times = threading.Event(), threading.Event(), []
    asked: list[Any] = []

    def work() -> int:
        times.append(len(asked))
        begun.set()
        assert go_on.wait(60)
        return len(times)

    async def test() -> None:
        shared = SingleFlight(work)
        first = asyncio.create_task(shared.result())
        await asyncio.to_thread(begun.wait, 60)

        async def ask() -> int:
            asked.append(1)
            return await shared.result()

        others = [asyncio.create_task(ask()) for _ in range(50)]
        await asyncio.sleep(0)  # all have asked
        others[0].cancel()
        await asyncio.sleep(0)
        go_on.set()
        found = await asyncio.gather(first, *others[1:])
        assert found == [1] + [2] * 49
        assert times == [0, 50]  # the second time began when all had asked
        assert await shared.result() == 3

    asyncio.run(test())


async def test_error_reaches_all_callers_and_the_next_run_starts_afresh() -> None:
    outcomes = [ValueError("no"), 1]

    def work() -> object:
        outcome = outcomes.pop(0)
        if isinstance(outcome, Exception):
            raise outcome
        return outcome

    shared = SingleFlight(work)
    found = await asyncio.gather(*(shared.result() for _ in range(3)), return_exceptions=True)
    assert [str(error) for error in found] == ["no"] * 3
    assert await shared.result() == 1
