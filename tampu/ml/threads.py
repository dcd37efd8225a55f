"""Chooses the number of computing threads: fewer while other processes use the CPUs.

Threads that compute a graph wait for each other after each operation. If one of them shares its
core with another process, all of them spin until it arrives, and one thread less is faster. So the
CPU use of other processes is measured from time to time while graphs are computed. Those with a
lower priority (`nice`) give way to the threads, and take a core as soon as one is left to them.
"""

from __future__ import annotations

import logging
import os
import time
from collections.abc import Callable
from dataclasses import dataclass

import psutil

log = logging.getLogger("tampu.ml")

WINDOW_S = 0.25  # over which the use is measured: ticks of 10 ms are its unit
REST_S = 0.05  # without a graph: the measurement starts again
_SHARE = 0.35  # of a CPU: if others use more, one thread less computes
_NOT_BUSY = frozenset({"idle", "iowait", "steal", "guest", "guest_nice", "interrupt", "dpc"})


@dataclass(frozen=True, slots=True)
class CPUUsage:
    """CPU time used up to some moment, in seconds.

    Attributes:
        wall: the time.
        busy: by all processes together, on the CPUs that this one may use; without processes of
            a lower priority, as far as the system tells.
        own: by this process.
    """

    wall: float
    busy: float
    own: float


class AdaptiveThreads:
    """Chooses the number of threads before each graph.

    Attributes:
        count: the current number.
    """

    def __init__(
        self, limit: int, cpus: int | None = None, measure: Callable[[], CPUUsage] | None = None
    ) -> None:
        """Start with all threads.

        Args:
            limit: the maximum number of threads.
            cpus: how many this process may use; None: ask the system.
            measure: returns the CPU usage so far; None: ask the system.
        """
        usable = usable_cpus()
        self.count = limit
        self._limit = limit
        self._cpus = max(limit, cpus or len(usable) or psutil.cpu_count() or 1)
        self._measure = measure or (lambda: cpu_usage(usable))
        self._from: CPUUsage | None = None  # where the window began
        self._ended = 0.0  # when the last graph did

    def begin(self) -> int:
        """Return the number of threads for the next graph."""
        if self._from is None or time.perf_counter() - self._ended > REST_S:
            self._from = self._measure()
        return self.count

    def end(self) -> None:
        """Measure what others used meanwhile, once enough time has passed."""
        self._ended = time.perf_counter()
        if self._from is None or self._ended - self._from.wall < WINDOW_S:
            return
        before, now = self._from, self._measure()
        self._from = now
        others = max(0.0, now.busy - before.busy - (now.own - before.own))
        used = others / (now.wall - before.wall)
        fitting = max(1, min(self._limit, self._cpus - int(used + 1 - _SHARE)))
        if fitting != self.count:
            log.debug("%d threads compute: others use %.1f CPUs", fitting, used)
        self.count = fitting


def usable_cpus() -> tuple[int, ...]:
    """Return the numbers of the CPUs that this process may use; empty: not known."""
    if psutil.MACOS:  # it does not say
        return ()
    return tuple(psutil.Process().cpu_affinity() or ())


def cpu_usage(cpus: tuple[int, ...]) -> CPUUsage:
    """Return the use of these CPUs so far; of all, if none are given."""
    # Linux counts what all processes with a positive `nice` compute in one sum.
    is_nice = os.nice(0) > 0
    times = psutil.cpu_times(percpu=True)
    chosen = [times[i] for i in cpus if i < len(times)] or times
    left_out = _NOT_BUSY if is_nice else _NOT_BUSY | {"nice"}
    busy = sum(
        value for each in chosen for name, value in each._asdict().items() if name not in left_out
    )
    return CPUUsage(time.perf_counter(), busy, time.process_time())
