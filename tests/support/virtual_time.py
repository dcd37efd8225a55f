"""An event loop whose clock is the test's: nobody waits, and no slow machine changes the order.

When every task waits, the clock jumps to the next timer. It cannot be used with threads or other
processes, whose work takes none of its time.
"""

from __future__ import annotations

import asyncio
import math
import selectors
from collections.abc import Coroutine
from typing import Any, TypeVar

T = TypeVar("T")


class VirtualTimeLoop(asyncio.SelectorEventLoop):
    """An event loop with a clock of its own, which begins at 0."""

    def __init__(self) -> None:
        self._now_s = 0.0
        super().__init__(_Jumping(self))

    def time(self) -> float:
        return self._now_s

    def jump(self, seconds: float) -> None:
        self._now_s = max(self._now_s + seconds, math.nextafter(self._now_s, math.inf))


class _Jumping(selectors.SelectSelector):
    """Jumps where others wait."""

    def __init__(self, loop: VirtualTimeLoop) -> None:
        super().__init__()
        self._loop = loop

    def select(self, timeout: float | None = None) -> Any:
        found = super().select(0)
        if not found and timeout is None:
            raise RuntimeError("every task waits for something that nobody will do")
        if not found and timeout:
            self._loop.jump(timeout)
        return found


def run(coroutine: Coroutine[Any, Any, T]) -> T:
    """Run a coroutine to its end in virtual time."""
    with asyncio.Runner(loop_factory=VirtualTimeLoop) as runner:
        return runner.run(coroutine)


async def pass_time(seconds: float) -> None:
    """Let so much virtual time pass: all that is due by then has happened afterwards."""
    assert isinstance(asyncio.get_running_loop(), VirtualTimeLoop)
    await asyncio.sleep(seconds)
    await asyncio.sleep(0)
