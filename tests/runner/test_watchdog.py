"""A loop that hangs is known by what it said last; one that takes its time is let be."""

from __future__ import annotations

import queue
from concurrent.futures import Future

import pytest
from support.fake_graphs import Desk, FakeGraphs
from support.waiting import wait_until

from tampu.runner.watchdog import Pulse


class Clock:
    """A clock that is set by hand."""

    now_s = 100.0

    def __call__(self):
        return self.now_s


@pytest.fixture
def clock():
    return Clock()


def test_a_loop_that_rests_is_never_stuck(clock):
    pulse = Pulse(clock)
    pulse.move("planning")
    pulse.rest()
    clock.now_s += 10**6
    assert pulse.stuck(1) == ""


def test_what_is_quick_may_take_as_long_as_anything(clock):
    pulse = Pulse(clock)
    pulse.move("planning")
    clock.now_s += 59
    assert pulse.stuck(60) == ""
    clock.now_s += 2
    assert pulse.stuck(60) == "it hangs: planning for 61 s, and 60 s are allowed"


def test_a_step_may_take_ten_times_what_earlier_ones_let_expect(clock):
    pulse = Pulse(clock)
    pulse.computed("batch", 1, 0.5)
    pulse.computed("batch", 100, 0.5)
    pulse.wait("batch", 512)
    clock.now_s += 10 * 512 * 0.5 - 1
    assert pulse.stuck(60) == ""
    clock.now_s += 2
    assert "computing a batch of 512 for 2561 s" in pulse.stuck(60)


def test_the_first_step_of_a_kind_may_take_long(clock):
    pulse = Pulse(clock)
    pulse.computed("batch", 1, 0.001)
    pulse.wait("image", 1)
    clock.now_s += 599
    assert pulse.stuck(60) == ""
    clock.now_s += 2
    assert "computing an image of 1 for 601 s" in pulse.stuck(60)


def test_the_loop_tells_what_it_waits_for_and_that_it_rests():
    held = queue.SimpleQueue()

    class Held(FakeGraphs):
        def submit(self, step):
            result = Future()
            held.put((result, super().submit(step)))
            return result

    def let_go():
        result, computed = held.get(timeout=60)
        result.set_result(computed.result())

    with Desk(lambda _: 5, graphs=Held) as desk:
        wait_until(lambda: not desk.runner.pulse.stuck(0), "the loop rests")
        desk.ask([2, 3], max_tokens=2)
        told = wait_until(
            lambda: [told] if "computing" in (told := desk.runner.pulse.stuck(0.001)) else [],
            "the loop waits for the device",
        )
        assert "computing a batch of 2" in told[0]
        assert desk.runner.pulse.stuck(10**6) == ""
        let_go()
        let_go()
        wait_until(lambda: not desk.runner.pulse.stuck(0), "the loop rests")
