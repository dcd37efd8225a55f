"""How many requests may wait, and when one that is turned away should come again."""

from __future__ import annotations

import math
import time
from collections.abc import Iterator
from contextlib import contextmanager

from tampu.server.errors import BusyError

_SHORTEST_S, _LONGEST_S = 1, 60
_WEIGHT = 0.1  # of the newest waiting time in the mean


class Place:
    """A request's place: it waits until it has begun to be answered."""

    def __init__(self, admission: Admission) -> None:
        self._admission = admission
        self._since_s = time.monotonic()
        self._is_waiting = True

    def begin(self) -> None:
        """Wait no longer; twice is harmless."""
        if self._is_waiting:
            self._is_waiting = False
            self._admission.leave(time.monotonic() - self._since_s)


class Admission:
    """Counts the requests that wait for a model, for a slot in it, or for its first token."""

    def __init__(self, most: int) -> None:
        """Let at most `most` requests wait."""
        self._most = most
        self._mean_s = 1.0
        self.waiting = 0

    @contextmanager
    def place(self) -> Iterator[Place]:
        """Take a place in the queue.

        Raises:
            BusyError: if all are taken.
        """
        if self.waiting >= self._most:
            raise BusyError("server busy, maximum pending requests exceeded", self._retry_s())
        self.waiting += 1
        place = Place(self)
        try:
            yield place
        finally:
            place.begin()

    def leave(self, waited_s: float) -> None:
        """Give a place back that was held for so long."""
        self.waiting -= 1
        self._mean_s += _WEIGHT * (waited_s - self._mean_s)

    def _retry_s(self) -> int:
        """Return when the queue should have moved on: as long as one waits in it on average."""
        return min(max(math.ceil(self._mean_s), _SHORTEST_S), _LONGEST_S)
