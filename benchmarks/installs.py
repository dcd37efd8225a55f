"""Two installs of tampu side by side on one model: ggml compiled for this machine, and a wheel's.

    python -m benchmarks.installs MODEL .venv/bin/python OTHER/bin/python --rounds 9

Each is a process of its own with the model loaded, and they take turns (A B B A ...), a second or
two each, since machines change their speed. Ratios are medians of those of neighbors.
"""

from __future__ import annotations

import argparse
import json
import random
import subprocess
import sys
import time
from pathlib import Path
from statistics import median

WORKS = {"pp": 512, "tg": 32}
QUIET_S = 0.1  # OpenMP's workers of the other process spin for some milliseconds after their work


class Install:
    """A process of one installation, which computes on request."""

    def __init__(self, python: Path, model: Path) -> None:
        """Start it."""
        # -P: this folder is not searched for modules, so that the installed package is found.
        command = [str(python), "-P", __file__, str(model)]
        self._process = subprocess.Popen(
            command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
        )

    def speed(self, kind: str) -> float:
        """Run a test once; return tokens per second."""
        time.sleep(QUIET_S)
        assert self._process.stdin is not None  # noqa: S101 -- a pipe was asked for
        assert self._process.stdout is not None  # noqa: S101
        self._process.stdin.write(kind + "\n")
        self._process.stdin.flush()
        return float(json.loads(self._process.stdout.readline()))

    def close(self) -> None:
        """End the process."""
        self._process.communicate()


def serve(model: Path) -> None:
    """Run the tests on standard input with this interpreter's tampu."""
    from tampu.bench.bench import Native, random_tokens
    from tampu.ml.machine import default_threads

    subject = Native(model, threads=default_threads(), context=1024)
    source = random.Random(1)
    for line in sys.stdin:
        kind = line.strip()
        tokens = random_tokens(WORKS[kind], subject.vocabulary, source)
        subject.rewind([])
        seconds = (subject.prefill if kind == "pp" else subject.decode)(tokens)
        print(len(tokens) / seconds, flush=True)
    subject.close()


def compare(installs: list[Install], kind: str, rounds: int) -> str:
    """Return a line of a table: both installs' medians, and the median ratio of neighbors."""
    speeds: list[list[float]] = [[], []]
    for turn in range(rounds + 1):
        for place in (0, 1) if turn % 2 else (1, 0):
            speeds[place].append(installs[place].speed(kind))
    first, second = (found[1:] for found in speeds)  # the first round warms up
    ratios = [b / a for a, b in zip(first, second, strict=True)]
    medians = f"{median(first):.1f} | {median(second):.1f} | {median(ratios):.3f}"
    return f"| {kind}{WORKS[kind]} | {medians} | {max(second) / max(first):.3f} |"


def main() -> None:
    parser = argparse.ArgumentParser(description="Two installs of tampu side by side.")
    parser.add_argument("model", type=Path)
    parser.add_argument("pythons", type=Path, nargs="*")
    parser.add_argument("--rounds", type=int, default=9)
    given = parser.parse_args()
    if not given.pythons:
        serve(given.model)
        return
    installs = [Install(python, given.model.resolve()) for python in given.pythons]
    print("| test | first | second | ratio | ratio of the best |")
    for kind in WORKS:
        print(compare(installs, kind, given.rounds))
    for install in installs:
        install.close()


if __name__ == "__main__":
    main()
