"""The rate limit, with a clock of its own."""

from __future__ import annotations

from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from tampu.store.registry.transport import RateLimiter


class Clock:
    def __init__(self) -> None:
        self.now = 0.0

    def __call__(self) -> float:
        return self.now

    def sleep(self, seconds: float) -> None:
        self.now += seconds


@given(st.lists(st.integers(1, 10_000), min_size=1), st.integers(100, 100_000))
def test_the_rate_is_not_exceeded(counts: list[Any], rate: int) -> None:
    clock = Clock()
    limiter = RateLimiter(rate, clock, clock.sleep)
    for count in counts:
        limiter.take(count)
    assert clock.now >= sum(counts) / rate - 0.26
    assert clock.now <= sum(counts) / rate + 1e-6


def test_idle_time_is_not_made_up_for() -> None:
    clock = Clock()
    limiter = RateLimiter(1000, clock, clock.sleep)
    clock.now = 100.0
    limiter.take(1000)
    assert clock.now >= 100.7


def test_without_a_limit_there_is_no_wait() -> None:
    clock = Clock()
    limiter = RateLimiter(None, clock, clock.sleep)
    limiter.take(1 << 40)
    assert clock.now == 0
    assert limiter.chunk == 256 << 10


def test_reads_are_small_at_low_rates() -> None:
    assert RateLimiter(160_000).chunk == 10_000
    assert RateLimiter(10).chunk == 1024
