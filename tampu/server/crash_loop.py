"""Models that die again and again: each start costs seconds, and the next would die as well."""

from __future__ import annotations

import math
import time
from collections import defaultdict, deque
from collections.abc import Callable, Hashable

from tampu.errors import RunnerDiedError

WITHIN_S = 60.0
MAX_CRASHES = 3


class CrashLoopError(RunnerDiedError):
    """A model is not loaded again for a while."""


class Deaths:
    """Remembers when models' processes died, and refuses to start those that did so too often."""

    def __init__(
        self, most: int = MAX_CRASHES, clock: Callable[[], float] = time.monotonic
    ) -> None:
        """Let a model die fewer than `most` times within a minute; 0: as often as it likes."""
        self._most = most
        self._clock = clock
        self._times: defaultdict[Hashable, deque[float]] = defaultdict(lambda: deque(maxlen=most))
        self._causes: dict[Hashable, str] = {}

    def note(self, model: Hashable, cause: str) -> None:
        """Remember that a model has just died."""
        if self._most:
            self._times[model].append(self._clock())
            self._causes[model] = cause

    def check(self, model: Hashable, name: str) -> None:
        """Refuse a model that has died too often of late.

        Raises:
            CrashLoopError: saying of what it died, and when it is tried again.
        """
        times = self._times.get(model, deque[float]())
        left_s = times[0] + WITHIN_S - self._clock() if len(times) == self._most > 0 else 0.0
        if left_s > 0:
            raise CrashLoopError(
                f"model {name!r} died {self._most} times within a minute and is not loaded again "
                f"for {math.ceil(left_s)} s; the last time: {self._causes[model]}"
            )
