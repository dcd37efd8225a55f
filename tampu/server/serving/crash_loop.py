"""Crash-loop backoff: a model that keeps crashing is not loaded again for a while."""

from __future__ import annotations

import math
import time
from collections import defaultdict, deque
from collections.abc import Callable, Hashable

from tampu.errors import RunnerDiedError
from tampu.settings.server_settings import ServerSettings

CRASH_WINDOW_S = 60.0


class CrashLoopError(RunnerDiedError):
    """A model has crashed too often to be loaded again now."""


class CrashLoopBackoff:
    """Records crashes of models' processes, and refuses models that crashed too often."""

    def __init__(
        self,
        max_crashes: int = ServerSettings.max_crashes,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """Allow fewer than `max_crashes` crashes per minute; 0 disables the limit."""
        self._max_crashes = max_crashes
        self._clock = clock
        self._times: defaultdict[Hashable, deque[float]] = defaultdict(
            lambda: deque(maxlen=max_crashes)
        )
        self._causes: dict[Hashable, str] = {}

    def record(self, model: Hashable, cause: str) -> None:
        """Record that a model has just crashed."""
        if self._max_crashes:
            self._times[model].append(self._clock())
            self._causes[model] = cause

    def check(self, model: Hashable, name: str) -> None:
        """Refuse a model that has crashed too often recently.

        Raises:
            CrashLoopError: with the last cause, and when loading will be tried again.
        """
        times = self._times.get(model, deque[float]())
        is_over = len(times) == self._max_crashes > 0
        left_s = times[0] + CRASH_WINDOW_S - self._clock() if is_over else 0.0
        if left_s > 0:
            raise CrashLoopError(
                f"model {name!r} crashed {self._max_crashes} times within a minute and is not "
                f"loaded again for {math.ceil(left_s)} s; the last cause: {self._causes[model]}"
            )
