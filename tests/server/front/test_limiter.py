"""The limits of keys, by a clock that the tests set."""

from __future__ import annotations

from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from tampu.server.front.caller import Caller, Limits
from tampu.server.front.errors import RateLimitError
from tampu.server.front.limiter import DAY_S, MINUTE_S, Limiter


class Clock:
    """Seconds that pass when a test says so."""

    def __init__(self, now_s: float = 0.0) -> None:
        self.now_s = now_s

    def __call__(self) -> float:
        return self.now_s


def caller(name: str = "a", **limits: Any) -> Caller:
    return Caller(name=name, may_manage=False, limits=Limits(**limits))


def refusal(limiter: Limiter, one: Caller) -> int | None:
    """In how many seconds a request that is refused may come again; None: it is let in."""
    try:
        limiter.admit(one)
    except RateLimitError as error:
        return error.retry_s
    return None


@given(st.lists(st.floats(0, 40), min_size=1, max_size=80), st.integers(1, 7))
def test_no_minute_has_more_requests_than_allowed(pauses: list[float], most: int) -> None:
    clock = Clock()
    limiter = Limiter(clock, clock)
    admitted: list[float] = []
    for pause in pauses:
        clock.now_s += pause
        if refusal(limiter, caller(requests_per_minute=most)) is None:
            admitted.append(clock.now_s)
    for first, after in zip(admitted, admitted[most:], strict=False):
        assert after - first >= MINUTE_S - 1e-5


@given(st.lists(st.floats(0, 40), min_size=1, max_size=80), st.integers(1, 7))
def test_who_waits_as_told_is_let_in(pauses: list[float], most: int) -> None:
    clock = Clock()
    limiter = Limiter(clock, clock)
    one = caller(requests_per_minute=most)
    for pause in pauses:
        clock.now_s += pause
        wait_s = refusal(limiter, one)
        if wait_s is not None:
            assert 1 <= wait_s <= MINUTE_S
            clock.now_s += wait_s
            assert refusal(limiter, one) is None


@given(st.integers(1, 9), st.integers(0, 30))
def test_refused_requests_do_not_count(most: int, refused: int) -> None:
    clock = Clock()
    limiter = Limiter(clock, clock)
    one = caller(requests_per_minute=most)
    assert [refusal(limiter, one) for _ in range(most)] == [None] * most
    for _ in range(refused):
        assert refusal(limiter, one) == MINUTE_S
    clock.now_s = MINUTE_S
    assert [refusal(limiter, one) for _ in range(most)] == [None] * most


@given(
    st.lists(st.tuples(st.integers(0, 50), st.floats(0, DAY_S)), min_size=1, max_size=40),
    st.integers(1, 200),
)
def test_tokens_are_those_of_the_day(steps: list[tuple[int, float]], most: int) -> None:
    clock = Clock(1e9)
    limiter = Limiter(clock, clock)
    one = caller(tokens_per_day=most)
    by_day: dict[int, int] = {}
    for tokens, pause in steps:
        clock.now_s += pause
        day = int(clock.now_s // DAY_S)
        wait_s = refusal(limiter, one)
        assert (wait_s is None) is (by_day.get(day, 0) < most)
        if wait_s is None:
            limiter.spend("a", tokens)
            by_day[day] = by_day.get(day, 0) + tokens
        else:
            assert int((clock.now_s + wait_s) // DAY_S) == day + 1
        assert limiter.spent("a") == by_day.get(day, 0)


def test_keys_do_not_use_up_each_others_limits() -> None:
    clock = Clock()
    limiter = Limiter(clock, clock)
    first, second = (caller(n, requests_per_minute=1, tokens_per_day=5) for n in "ab")
    limiter.admit(first)
    limiter.spend("a", 9)
    assert refusal(limiter, first) == DAY_S
    assert refusal(limiter, second) is None


def test_without_limits_everything_is_let_in() -> None:
    clock = Clock()
    limiter = Limiter(clock, clock)
    limiter.spend("a", 10**12)
    assert {refusal(limiter, caller()) for _ in range(1000)} == {None}
