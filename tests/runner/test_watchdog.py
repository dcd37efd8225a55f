"""A loop that hangs is detected by its last report; one that is merely slow is not."""

from __future__ import annotations

import queue
from concurrent.futures import Future
from typing import Any

import pytest
from support.fake_graphs import FakeEngine, FakeGraphs
from support.waiting import wait_until

from tampu.ml.backend import Computed
from tampu.runner.step_inputs import StepInputs
from tampu.runner.watchdog import StepKind, Watchdog


class Clock:
    """A clock that is set by hand."""

    now_s = 100.0

    def __call__(self) -> float:
        return self.now_s


@pytest.fixture
def clock() -> Clock:
    return Clock()


def test_an_idle_loop_does_not_hang(clock: Clock) -> None:
    watchdog = Watchdog(clock)
    watchdog.busy("planning")
    watchdog.idle()
    clock.now_s += 10**6
    assert watchdog.hang_reason(1) == ""


def test_a_quick_activity_hangs_after_the_patience(clock: Clock) -> None:
    watchdog = Watchdog(clock)
    watchdog.busy("planning")
    clock.now_s += 59
    assert watchdog.hang_reason(60) == ""
    clock.now_s += 2
    assert watchdog.hang_reason(60) == "hung: planning for 61 s (limit 60 s)"


def test_a_step_may_take_ten_times_its_expected_duration(clock: Clock) -> None:
    watchdog = Watchdog(clock)
    watchdog.computed("batch", 1, 0.5)
    watchdog.computed("batch", 100, 0.5)
    watchdog.wait("batch", 512)
    clock.now_s += 10 * 512 * 0.5 - 1
    assert watchdog.hang_reason(60) == ""
    clock.now_s += 2
    assert "computing 512 tokens for 2561 s" in watchdog.hang_reason(60)


@pytest.mark.parametrize(
    ("kind", "named"),
    [
        ("image", "encoding an image of 1 rows"),
        ("sound", "encoding a sound of 1 rows"),
        ("warm-up", "computing 1 tokens ahead of time"),
    ],
)
def test_the_first_step_of_a_kind_may_take_ten_times_the_patience(
    clock: Clock, kind: StepKind, named: str
) -> None:
    watchdog = Watchdog(clock)
    watchdog.computed("batch", 1, 0.001)
    watchdog.wait(kind, 1)
    clock.now_s += 599
    assert watchdog.hang_reason(60) == ""
    clock.now_s += 2
    assert f"{named} for 601 s" in watchdog.hang_reason(60)


def test_the_loop_reports_what_it_waits_for_and_when_it_is_idle() -> None:
    held: queue.SimpleQueue[Any] = queue.SimpleQueue()

    class Held(FakeGraphs):
        def submit(self, step: StepInputs) -> Future[Computed]:
            result: Future[Any] = Future()
            held.put((result, super().submit(step)))
            return result

    def release() -> None:
        result, computed = held.get(timeout=60)
        result.set_result(computed.result())

    with FakeEngine(lambda _: 5, graphs=Held) as engine:
        wait_until(lambda: not engine.runner.watchdog.hang_reason(0), "the loop is idle")
        engine.ask([2, 3], max_tokens=2)
        reported = wait_until(
            lambda: (
                [reported]
                if "computing" in (reported := engine.runner.watchdog.hang_reason(0.001))
                else []
            ),
            "the loop waits for the device",
        )
        assert "computing 2 tokens" in reported[0]
        assert engine.runner.watchdog.hang_reason(10**6) == ""
        release()
        release()
        wait_until(lambda: not engine.runner.watchdog.hang_reason(0), "the loop is idle")
