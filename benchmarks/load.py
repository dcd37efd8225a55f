"""Speed of the engine while other processes keep the CPUs busy.

    python -m benchmarks.load MODEL [--busy 0,1,2] [--tests tg64,pp512] [--peer-library PATH]

prints a line for each number of busy processes: the speed, and the part of the undisturbed speed
that is left. A fair share is cores / (cores + busy processes), if every core computes.
"""

from __future__ import annotations

import argparse
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import ExitStack, closing, contextmanager
from pathlib import Path
from statistics import median

from tampu.bench.bench import Native, Plan, Subject, Work, parse_depths, parse_tests
from tampu.bench.llama_cpp import LlamaCpp
from tampu.ml.machine import default_threads

_SETTLE_S = 0.3  # until the busy processes have started


@contextmanager
def busy(count: int) -> Iterator[None]:
    """Keep a number of CPUs busy with other processes."""
    command = [sys.executable, "-c", "while True: pass"]
    children = [subprocess.Popen(command) for _ in range(count)]
    try:
        time.sleep(_SETTLE_S)
        yield
    finally:
        for child in children:
            child.kill()
            child.wait()


def speeds(plan: Plan, subject: Subject, counts: list[int]) -> dict[tuple[Work, int], float]:
    """Run each test beside each number of busy processes, in turns."""
    found: dict[tuple[Work, int], list[float]] = {}
    for turn in range(plan.repetitions + 1):
        for count in counts:
            with busy(count):
                for work in plan.works:
                    once = Plan(works=[work], depths=[0], threads=plan.threads, repetitions=1)
                    speed = once.measure(subject, None, work, 0).tokens_per_second
                    if turn:
                        found.setdefault((work, count), []).append(speed)
    return {key: median(values) for key, values in found.items()}


def main() -> None:
    """Measure and print the table."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("model", type=Path)
    parser.add_argument("--busy", default="0,1,2")
    parser.add_argument("--tests", default="tg64,pp512")
    parser.add_argument("--threads", type=int, default=default_threads())
    parser.add_argument("--repetitions", type=int, default=3)
    parser.add_argument("--peer-library", type=Path)
    given = parser.parse_args()
    plan = Plan(
        works=parse_tests(given.tests),
        depths=[0],
        threads=given.threads,
        repetitions=given.repetitions,
    )
    counts = parse_depths(given.busy)
    with ExitStack() as opened:
        ours = Native(given.model, threads=plan.threads, context=plan.context)
        opened.enter_context(closing(ours))
        subjects: list[Subject] = [ours]
        if given.peer_library:
            library = given.peer_library
            other = LlamaCpp(
                given.model, threads=plan.threads, context=plan.context, library=library
            )
            opened.callback(other.close)
            subjects.append(other)
        for subject in subjects:
            measured = speeds(plan, subject, counts)
            for (work, count), speed in sorted(measured.items(), key=lambda item: item[0][0].name):
                part = speed / measured[work, counts[0]]
                print(f"{subject.name} {work.name} busy={count} {speed:.1f} t/s {part:.2f}")


if __name__ == "__main__":
    main()
