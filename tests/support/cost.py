"""What work costs this process's processors, compared with other work measured beside it.

A slow or busy machine makes both dearer, so that only what is compared decides.
"""

from __future__ import annotations

import gc
import time
from collections.abc import Callable
from typing import Any


def cost(action: Callable[[], Any], times: int = 3) -> float:
    """Return the least seconds of the processor that an action took of so many times."""
    was_enabled = gc.isenabled()
    gc.collect()
    gc.disable()  # else what other tests left in memory counts
    try:
        return min(_once(action) for _ in range(times))
    finally:
        if was_enabled:
            gc.enable()


def yardstick() -> float:
    """Return what a fixed piece of plain Python costs here; about 50 ms in 2025."""
    return cost(_plain_python)


def _once(action: Callable[[], Any]) -> float:
    began = time.process_time()
    action()
    return time.process_time() - began


def _plain_python() -> None:
    texts: dict[int, str] = {}
    for number in range(200_000):
        texts[number & 1023] = str(number)
