"""Whether a run loop still moves, as its own thread tells it.

A process may answer while its loop waits for ever for a result, or turns round in a bug; only what
the loop itself says can tell. A step may rightly take minutes, so it is measured by earlier ones.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass

_TIMES_EXPECTED = 10.0
_ARTICLES = {"image": "an"}


@dataclass(frozen=True, slots=True)
class _Doing:
    """What the loop does since when; `expected_s` is 0 for what takes no time."""

    what: str
    since_s: float
    expected_s: float = 0.0
    is_unknown: bool = False


class Pulse:
    """Written by one thread, read by any."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        """Begin at rest; `clock` says what time it is, in seconds."""
        self._clock = clock
        self._doing: _Doing | None = None
        self._slowest_s: dict[str, float] = {}  # for each kind of step, a token or row

    def rest(self) -> None:
        """Note that there is nothing to do."""
        self._doing = None

    def move(self, what: str) -> None:
        """Note that something quick begins."""
        self._doing = _Doing(what, self._clock())

    def wait(self, kind: str, size: int) -> None:
        """Note that the result of a step of so many tokens or rows is waited for."""
        known = self._slowest_s.get(kind)
        what = f"computing {_ARTICLES.get(kind, 'a')} {kind} of {size}"
        expected_s = size * (known or 0.0)
        self._doing = _Doing(what, self._clock(), expected_s, known is None)

    def computed(self, kind: str, size: int, seconds: float) -> None:
        """Note how long a step took."""
        self._slowest_s[kind] = max(self._slowest_s.get(kind, 0.0), seconds / max(size, 1))
        self.move("sampling")

    def stuck(self, patience_s: float) -> str:
        """Return what the loop does for too long, and how long; empty: it moves or rests.

        Args:
            patience_s: what anything may take; a step may take ten times what it should if that is
                longer, and the first of its kind ten times this.
        """
        doing = self._doing
        if doing is None:
            return ""
        took_s = self._clock() - doing.since_s
        most_s = max(patience_s, _TIMES_EXPECTED * doing.expected_s)
        if doing.is_unknown:
            most_s = _TIMES_EXPECTED * patience_s
        if took_s <= most_s:
            return ""
        return f"it hangs: {doing.what} for {took_s:.0f} s, and {most_s:.0f} s are allowed"
