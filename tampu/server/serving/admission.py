"""The queue of waiting requests: its limit, and when a refused client should retry."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from tampu.server.front.errors import BusyError

_MIN_RETRY_S, _MAX_RETRY_S = 1, 60
_WEIGHT = 0.1  # of the newest waiting time in the mean


class Admission:
    """Counts the requests that wait for a model, for a slot in it, or for its first token."""

    def __init__(self, max_queue: int) -> None:
        """Let at most `max_queue` requests wait."""
        self._max_queue = max_queue
        self._mean_s = 1.0
        self.waiting = 0

    @contextmanager
    def wait(self) -> Iterator[Callable[[], None]]:
        """Queue a request; it leaves the queue at the end, or when it calls what this yields.

        Raises:
            BusyError: if the queue is full.
        """
        if self.waiting >= self._max_queue:
            raise BusyError("server busy, maximum pending requests exceeded", self._retry_s())
        self.waiting += 1
        since_s = time.monotonic()
        is_waiting = True

        def leave() -> None:
            nonlocal is_waiting
            if is_waiting:
                is_waiting = False
                self.waiting -= 1
                self._mean_s += _WEIGHT * (time.monotonic() - since_s - self._mean_s)

        try:
            yield leave
        finally:
            leave()

    def _retry_s(self) -> int:
        """Return the mean waiting time: by then the queue should have moved on."""
        return min(max(math.ceil(self._mean_s), _MIN_RETRY_S), _MAX_RETRY_S)
