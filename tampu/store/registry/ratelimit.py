"""At most so many bytes in a second, for all threads of a transfer together."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable

_BURST_S = 0.25
_CHUNK = 256 << 10  # small enough for a processor's own cache


class RateLimiter:
    """A bucket that fills at a rate; who takes more than it holds waits.

    A rate of None is without limit.
    """

    def __init__(
        self,
        bytes_per_second: int | None,
        clock: Callable[[], float] = time.monotonic,
        sleep: Callable[[float], None] = time.sleep,
    ) -> None:
        self._rate = bytes_per_second
        self._clock = clock
        self._sleep = sleep
        self._lock = threading.Lock()
        self._free_at = clock()

    @property
    def chunk(self) -> int:
        """How much to read at a time, so that nobody waits long."""
        return _CHUNK if self._rate is None else max(1024, min(_CHUNK, self._rate // 16))

    def take(self, count: int) -> None:
        """Account for bytes that have passed, and wait until more may."""
        if self._rate is None:
            return
        with self._lock:
            now = self._clock()
            self._free_at = max(self._free_at, now - _BURST_S) + count / self._rate
            wait = self._free_at - now
        if wait > 0:
            self._sleep(wait)
