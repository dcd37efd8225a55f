"""The watchdog of the run loop.

A process can answer pings while its run loop is deadlocked or spinning, so the loop itself reports
progress. A step may legitimately take minutes: its limit derives from earlier steps.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import Literal, TypeAlias

_TIMES_EXPECTED = 10.0
StepKind: TypeAlias = Literal["batch", "warm-up", "image", "sound"]

_STEPS: Mapping[StepKind, str] = MappingProxyType(
    {
        "batch": "computing {} tokens",
        "warm-up": "computing {} tokens ahead of time",
        "image": "encoding an image of {} rows",
        "sound": "encoding a sound of {} rows",
    }
)


@dataclass(frozen=True, slots=True)
class _Activity:
    """What the loop does, and since when; `expected_s` is None for the first step of a kind."""

    what: str
    since_s: float
    expected_s: float | None = 0.0


class Watchdog:
    """Detects a run loop that hangs. The loop's thread reports to it, and any thread may ask."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        """Start idle; `clock` returns the time in seconds."""
        self._clock = clock
        self._activity: _Activity | None = None
        self._slowest_s: dict[StepKind, float] = {}  # per token or row, for each kind of step

    def idle(self) -> None:
        """Report that there is nothing to do."""
        self._activity = None

    def busy(self, what: str) -> None:
        """Report the start of something quick."""
        self._activity = _Activity(what, self._clock())

    def wait(self, kind: StepKind, size: int) -> None:
        """Report waiting for the result of a step of `size` tokens, or of an encoder's rows."""
        known = self._slowest_s.get(kind)
        expected_s = None if known is None else size * known
        self._activity = _Activity(_STEPS[kind].format(size), self._clock(), expected_s)

    def computed(self, kind: StepKind, size: int, seconds: float) -> None:
        """Report how long a step took."""
        self._slowest_s[kind] = max(self._slowest_s.get(kind, 0.0), seconds / max(size, 1))
        self.busy("sampling")

    def hang_reason(self, patience_s: float) -> str:
        """Return what the loop has been doing for too long; empty if it makes progress or is idle.

        Args:
            patience_s: the limit for anything; a step may take ten times its expected duration if
                that is longer, and the first step of a kind ten times this limit.
        """
        activity = self._activity
        if activity is None:
            return ""
        took_s = self._clock() - activity.since_s
        if activity.expected_s is None:
            limit_s = _TIMES_EXPECTED * patience_s
        else:
            limit_s = max(patience_s, _TIMES_EXPECTED * activity.expected_s)
        if took_s <= limit_s:
            return ""
        return f"hung: {activity.what} for {took_s:.0f} s (limit {limit_s:.0f} s)"
