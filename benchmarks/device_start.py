"""From a command's start to its first token on a GPU: `python -m benchmarks.device_start`.

Starts `tampu run demo QUESTION` in a fresh process, some times with all layers on the first GPU
and, in turns, on the CPU, and takes the time until the first byte of the answer is shown and until
the process has ended, with the processor time that it has used until then. The driver's code must
be kept already: a first start, which is not counted, compiles it. Prints medians, the least and the
most.

Without a GPU: `.venv/vulkan/python -m benchmarks.device_start`.
"""

from __future__ import annotations

import argparse
import statistics
import subprocess
import sys
import time
from dataclasses import dataclass

import psutil

QUESTION = "What is 27 + 58?"
ANSWER = "85"
PLACES = {"GPU": "99", "CPU": "0"}


@dataclass(frozen=True, slots=True)
class Start:
    """One start.

    Attributes:
        first_s: until the first byte of the answer.
        first_cpu_s: processor time of the process until then, without other processes.
        end_s: until the process has ended.
    """

    first_s: float
    first_cpu_s: float
    end_s: float


def start(layers: str) -> Start:
    """Start the command; `layers` are those on the GPU."""
    command = [sys.executable, "-m", "tampu.cli.entry", "run", "demo", QUESTION]
    environment = psutil.Process().environ() | {"TAMPU_NUM_GPU": layers}
    environment.pop("PYTHONDONTWRITEBYTECODE", None)  # else changed files are compiled each time
    began = time.perf_counter()
    with subprocess.Popen(
        command,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        env=environment,
        bufsize=0,
    ) as process:
        if process.stdout is None:
            raise SystemExit("no output")
        shown = process.stdout.read(1)
        first = time.perf_counter() - began
        used = psutil.Process(process.pid).cpu_times()
        shown += process.stdout.read()
        process.wait()
    if shown.decode().strip() != ANSWER:
        raise SystemExit(f"the answer is {shown!r}")
    return Start(first, used.user + used.system, time.perf_counter() - began)


def main() -> None:
    """Print a table."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=7)
    rounds = parser.parse_args().rounds
    found: dict[str, list[Start]] = {place: [] for place in PLACES}
    for number in range(rounds + 1):
        for place, layers in PLACES.items():
            result = start(layers)
            found[place] += [result] if number else []
    print("| layers on | first token | least to most | its processor time | the whole process |")
    for place, results in found.items():
        first = [each.first_s for each in results]
        cpu = statistics.median(each.first_cpu_s for each in results)
        end = statistics.median(each.end_s for each in results)
        spread = f"{min(first):.2f} to {max(first):.2f} s"
        print(
            f"| {place} | {statistics.median(first):.2f} s | {spread} | {cpu:.2f} s | {end:.2f} s |"
        )


if __name__ == "__main__":
    main()
