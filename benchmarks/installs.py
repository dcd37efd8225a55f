"""Two installs of tampu side by side on one model: two versions, or a wheel beside a compiled one.

    python -m benchmarks.installs MODEL .venv/bin/python OTHER/bin/python --rounds 24

Each is a process of its own with the model loaded, and they take turns (A B B A ...); the idle one
is stopped. The speed of a shared machine changes by a factor of two within minutes, so what counts
is the median of the ratios of neighbors. Tests: `tgN` decodes N tokens, `ppN` reads a prompt of N,
and `8xtgN` is eight requests at once.
"""

from __future__ import annotations

import argparse
import os
import random
import re
import signal
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from statistics import median, quantiles

_SLOTS = 8
_SHORT_PROMPT = 16


class Install:
    """A process of one installation, stopped unless it measures."""

    def __init__(self, python: Path, model: Path, threads: int) -> None:
        """Start it."""
        # -P: this folder is not searched for modules, so that the installed package is found.
        command = [str(python), "-P", __file__, str(model), "--threads", str(threads)]
        self._process = subprocess.Popen(
            command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
        )
        self._read()
        os.kill(self._process.pid, signal.SIGSTOP)

    def speed(self, test: str, seed: int) -> float:
        """Run a test once; return tokens per second."""
        os.kill(self._process.pid, signal.SIGCONT)
        assert self._process.stdin is not None  # noqa: S101 -- a pipe was asked for
        self._process.stdin.write(f"{test} {seed}\n")
        self._process.stdin.flush()
        speed = float(self._read())
        os.kill(self._process.pid, signal.SIGSTOP)
        return speed

    def close(self) -> None:
        """End the process."""
        os.kill(self._process.pid, signal.SIGCONT)
        self._process.communicate()

    def _read(self) -> str:
        assert self._process.stdout is not None  # noqa: S101
        line = self._process.stdout.readline()
        if not line:
            raise SystemExit("an engine ended")
        return line


def serve(model: Path, threads: int) -> None:
    """Run the tests on standard input with this interpreter's tampu, whatever its version."""
    from tampu import Engine

    with Engine.load(model, context=2048, slots=_SLOTS, threads=threads or None) as engine:
        bias = dict.fromkeys(engine.tokenizer.eos, -100.0)
        end = min(engine.tokenizer.vocabulary_size, 20_000)

        def ask(prompt: list[int], tokens: int) -> tuple[float, int, int]:
            """Return the tokens per second of the prompt; tokens generated, and nanoseconds."""
            usage = engine.generate(
                prompt, max_tokens=tokens, temperature=0.0, logit_bias=bias
            ).usage
            speed = len(prompt) * 1e9 / usage.prompt_ns
            return speed, usage.generated_tokens - 1, usage.generated_ns

        print("ready", flush=True)
        for line in sys.stdin:
            test, seed = line.split()
            streams, kind, count = parse_test(test)
            source = random.Random(int(seed))
            length, tokens = (count, 1) if kind == "pp" else (_SHORT_PROMPT, count + 1)
            prompts = [[source.randrange(300, end) for _ in range(length)] for _ in range(streams)]
            with ThreadPoolExecutor(streams) as pool:
                found = list(pool.map(ask, prompts, [tokens] * streams))
            if kind == "pp":
                print(sum(speed for speed, _, _ in found), flush=True)
            else:
                longest = max(took_ns for _, _, took_ns in found)
                print(sum(made for _, made, _ in found) * 1e9 / longest, flush=True)


def parse_test(test: str) -> tuple[int, str, int]:
    """Return how many requests at once, `pp` or `tg`, and how many tokens."""
    match = re.fullmatch(rf"(?:([1-{_SLOTS}])x)?(pp|tg)(\d+)", test)
    if not match:
        raise SystemExit(f"{test!r}: a test is tgN, ppN, or one of them at once, as 8xtgN")
    return int(match[1] or 1), match[2], int(match[3])


def compare(installs: list[Install], test: str, rounds: int) -> str:
    """Return a line of a table: both installs' medians, and the median ratio of neighbors."""
    speeds: list[list[float]] = [[], []]
    for turn in range(rounds + 1):
        for place in (0, 1) if turn % 2 else (1, 0):
            speeds[place].append(installs[place].speed(test, turn))
    first, second = (found[1:] for found in speeds)  # the first round warms up
    ratios = [b / a for a, b in zip(first, second, strict=True)]
    low, middle, high = quantiles(ratios, n=4)
    medians = f"{median(first):.1f} | {median(second):.1f} | {middle:.3f} | {low:.2f} to {high:.2f}"
    return f"| {test} | {medians} | {max(second) / max(first):.3f} |"


def main() -> None:
    parser = argparse.ArgumentParser(description="Two installs of tampu side by side.")
    parser.add_argument("model", type=Path)
    parser.add_argument("pythons", type=Path, nargs="*")
    parser.add_argument("--tests", default="pp512,tg32,8xtg16")
    parser.add_argument("--rounds", type=int, default=24)
    parser.add_argument("--threads", type=int, default=0, help="0: as tampu chooses")
    given = parser.parse_args()
    if not given.pythons:
        serve(given.model, given.threads)
        return
    tests = given.tests.split(",")
    for test in tests:
        parse_test(test)
    installs = [Install(python, given.model.resolve(), given.threads) for python in given.pythons]
    print("| test | first | second | ratio | quartiles | ratio of the best |")
    for test in tests:
        print(compare(installs, test, given.rounds), flush=True)
    for install in installs:
        install.close()


if __name__ == "__main__":
    main()
