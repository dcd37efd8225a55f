"""Long work ends when it is cancelled, and pauses so that other threads run."""

from __future__ import annotations

import time

import pytest

from tampu.cancellation import cancellable, check_cancelled
from tampu.errors import RequestCancelledError


class Clock:
    """Time that passes when it is told to, and during a pause."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.now_s = 100.0
        self.pauses = 0
        monkeypatch.setattr(time, "monotonic", lambda: self.now_s)
        monkeypatch.setattr(time, "sleep", self._sleep)

    def _sleep(self, seconds: float) -> None:
        assert seconds > 0, "a sleep of no length does not let others run"
        self.now_s += seconds
        self.pauses += 1


def test_work_pauses_every_millisecond(monkeypatch: pytest.MonkeyPatch) -> None:
    clock = Clock(monkeypatch)
    with cancellable(lambda: False):
        for _ in range(100):
            clock.now_s += 0.0001
            check_cancelled()
    assert 8 <= clock.pauses <= 10


def test_short_work_does_not_pause(monkeypatch: pytest.MonkeyPatch) -> None:
    clock = Clock(monkeypatch)
    with cancellable(lambda: False):
        check_cancelled()
        clock.now_s += 0.0005
        check_cancelled()
    assert clock.pauses == 0


def test_work_of_a_program_of_one_user_does_not_pause(monkeypatch: pytest.MonkeyPatch) -> None:
    clock = Clock(monkeypatch)
    check_cancelled()
    clock.now_s += 10
    check_cancelled()
    assert clock.pauses == 0


def test_cancelled_work_ends() -> None:
    with cancellable(lambda: True), pytest.raises(RequestCancelledError):
        check_cancelled()
    check_cancelled()
