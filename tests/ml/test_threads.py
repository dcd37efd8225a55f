"""Threads are given up to other processes, and taken back."""

from __future__ import annotations

import time
from typing import NamedTuple

import pytest

from tampu.ml import threads
from tampu.ml.threads import AdaptiveThreads, CPUUsage


class Machine:
    """What has been used, told instead of measured; the time is the real one."""

    def __init__(self) -> None:
        self.wall = self.busy = self.own = 0.0

    def measure(self) -> CPUUsage:
        return CPUUsage(self.wall, self.busy, self.own)

    def run(self, fitting: AdaptiveThreads, others: float, seconds: float = 1.0) -> int:
        """Let one graph run while others use so many CPUs; return what comes of it."""
        used = fitting.begin()
        self.wall += seconds
        self.own += used * seconds
        self.busy += (used + others) * seconds
        fitting.end()
        return fitting.count


@pytest.fixture
def machine() -> Machine:
    return Machine()


@pytest.fixture(autouse=True)
def clock(machine: Machine, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(time, "perf_counter", lambda: machine.wall)


@pytest.mark.parametrize(
    ("most", "cpus", "others", "expected"),
    [
        (2, 2, 0.0, 2), (2, 2, 0.3, 2), (2, 2, 0.5, 1), (2, 2, 1.3, 1), (1, 2, 1.0, 1),
        (2, 4, 1.0, 2), (4, 4, 1.0, 3), (16, 16, 3.9, 12), (3, 2, 0.0, 3), (3, 2, 1.0, 2),
        (4, 4, 99.0, 1),
    ],
)  # fmt: skip
def test_others_get_the_cpus_that_they_use(
    machine: Machine, most: int, cpus: int, others: float, expected: int
) -> None:
    fitting = AdaptiveThreads(most, cpus, machine.measure)
    assert machine.run(fitting, others) == expected


def test_threads_return_when_other_processes_have_ended(machine: Machine) -> None:
    fitting = AdaptiveThreads(2, 2, machine.measure)
    assert [machine.run(fitting, others) for others in (0, 1, 1, 0, 0)] == [2, 1, 1, 2, 2]


def test_short_graphs_are_measured_together(machine: Machine) -> None:
    fitting = AdaptiveThreads(2, 2, machine.measure)
    counts = [machine.run(fitting, 1, seconds=0.02) for _ in range(14)]
    assert counts[:12] == [2] * 12
    assert counts[-1] == 1


def test_cpu_use_of_others_while_idle_is_ignored(machine: Machine) -> None:
    fitting = AdaptiveThreads(2, 2, machine.measure)
    machine.run(fitting, 0, seconds=0.02)
    machine.wall += 60
    machine.busy += 120
    assert machine.run(fitting, 0) == 2


def test_this_machine_reports_cpu_use(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.undo()
    usable = threads.usable_cpus()
    before = threads.cpu_usage(usable)
    until = time.perf_counter() + 0.05
    while time.perf_counter() < until:
        pass
    after = threads.cpu_usage(usable)
    assert after.wall - before.wall >= 0.05
    assert after.own - before.own > 0
    assert after.busy >= before.busy


class Times(NamedTuple):
    """What psutil tells of a CPU on Linux."""

    user: float = 1.0
    nice: float = 5.0
    system: float = 0.5
    idle: float = 20.0


@pytest.mark.parametrize(("own", "busy"), [(0, 3.0), (-5, 3.0), (1, 13.0)])
def test_processes_of_a_lower_priority_count_beside_one_of_a_low_priority_only(
    monkeypatch: pytest.MonkeyPatch, own: int, busy: float
) -> None:
    monkeypatch.setattr("psutil.cpu_times", lambda percpu: [Times()] * (2 * percpu))
    monkeypatch.setattr("os.nice", lambda change: own + change)
    assert threads.cpu_usage((0, 1)).busy == busy
