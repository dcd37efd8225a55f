"""What work costs this process's processors, compared with other work measured beside it.

A slow or busy machine makes both dearer, so that only what is compared decides.
"""

from __future__ import annotations

import gc
import time
from collections.abc import Callable
from typing import Any


def cost(
    action: Callable[[], Any], times: int = 3, clock: Callable[[], float] = time.process_time
) -> float:
    """Return the least seconds that an action took of so many times.

    They are of this process's processors. For what other processes do, `clock` is
    `time.perf_counter`, of both that are compared.
    """
    was_enabled = gc.isenabled()
    gc.disable()  # else what other tests left in memory counts
    try:
        return min(_cached(action, clock) for _ in range(times))
    finally:
        if was_enabled:
            gc.enable()


def yardstick() -> float:
    """Return what a fixed piece of plain Python costs here; about 40 ms in 2026."""
    return 4 * cost(_plain_python)


def yardstick_by_the_clock() -> float:
    """Return how long that takes here now, on average, with what else the machine does."""
    began = time.perf_counter()
    for _ in range(20):
        _plain_python()
    return (time.perf_counter() - began) / 5


def _cached(action: Callable[[], Any], clock: Callable[[], float]) -> float:
    began = clock()
    action()
    return clock() - began


def _plain_python() -> None:
    texts: dict[int, str] = {}
    for number in range(50_000):
        texts[number & 1023] = str(number)
