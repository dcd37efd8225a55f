"""Rate limits of API keys: requests per minute and tokens per day."""

from __future__ import annotations

import math
import time
from collections import defaultdict, deque
from collections.abc import Callable
from datetime import UTC, datetime

from tampu.server.front.caller import Caller
from tampu.server.front.errors import RateLimitError

MINUTE_S = 60.0
DAY_S = 86_400
_ROUNDING_S = 1e-6  # who waits for as long as told must not come too early by a rounding


class Limiter:
    """Refuses requests of keys over their limits.

    In any 60 seconds at most `requests_per_minute` requests are let in; a refused one does not
    count. Tokens count when a request ends, so that those that run together may exceed
    `tokens_per_day`; the next one is refused.
    """

    def __init__(
        self,
        monotonic: Callable[[], float] = time.monotonic,
        clock: Callable[[], float] = time.time,
    ) -> None:
        """Count from now on; `monotonic` returns seconds, `clock` those since 1970."""
        self._monotonic, self._clock = monotonic, clock
        self._requests: defaultdict[str, deque[float]] = defaultdict(deque)
        self._day = ""
        self._tokens: defaultdict[str, int] = defaultdict(int)

    def admit(self, caller: Caller) -> None:
        """Let a request in, and count it.

        Raises:
            RateLimitError: if its key has used up a limit, with the time until it may come again.
        """
        if wait_s := self.exhausted_s(caller):
            most = caller.limits.tokens_per_day
            raise RateLimitError(f"this API key has used its {most} tokens of today", wait_s)
        most = caller.limits.requests_per_minute
        if most is None:
            return
        now_s, times = self._monotonic(), self._requests[caller.name]
        while times and times[0] + MINUTE_S <= now_s + _ROUNDING_S:
            times.popleft()
        if len(times) >= most:
            wait_s = math.ceil(times[0] + MINUTE_S - now_s - _ROUNDING_S)
            raise RateLimitError(f"this API key allows {most} requests per minute", max(wait_s, 1))
        times.append(now_s)

    def exhausted_s(self, caller: Caller) -> int:
        """Return in how many seconds a key has tokens again; 0: it has some."""
        most = caller.limits.tokens_per_day
        if most is None or self.spent(caller.name) < most:
            return 0
        return max(math.ceil(DAY_S - self._clock() % DAY_S), 1)

    def spend(self, name: str, tokens: int) -> None:
        """Count tokens of a key."""
        self.spent(name)  # of another day they are forgotten
        self._tokens[name] += tokens

    def spent(self, name: str) -> int:
        """Return the tokens that a key has used today."""
        today = self.today()
        if today != self._day:
            self._day = today
            self._tokens.clear()
        return self._tokens[name]

    def today(self) -> str:
        """Return the date, in UTC."""
        return datetime.fromtimestamp(self._clock(), UTC).date().isoformat()
