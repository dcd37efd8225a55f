"""Rate limit for all threads of a transfer together."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable

_BURST_S = 0.25
_CHUNK = 256 << 10  # fits a core's cache


class RateLimiter:
    """A token bucket; callers wait when it is empty. A rate of None is unlimited."""

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
        """The number of bytes to read at a time, so that waits are short."""
        return _CHUNK if self._rate is None else max(1024, min(_CHUNK, self._rate // 16))

    def take(self, count: int) -> None:
        """Account for transferred bytes, and wait if they exceed the rate."""
        if self._rate is None:
            return
        with self._lock:
            now = self._clock()
            self._free_at = max(self._free_at, now - _BURST_S) + count / self._rate
            wait = self._free_at - now
        if wait > 0:
            self._sleep(wait)
