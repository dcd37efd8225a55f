"""How long a GPU waits between steps: `python -m benchmarks.device_idle`.

Greedy answers of the built-in model, all layers on the first GPU, with two steps in flight and, for
comparison, with one, in turns. From a trace of the run loop: of the time from the first step in
which all streams decode to the last, the part in which ggml did not compute. A step counts from the
call that hands it to the device to the end of the wait for it, on the thread that computes; writing
its inputs and reading its results count as idle. Prints medians of the rounds.

Without a GPU: `GGML_VK_DISABLE_F16=1 .venv/vulkan/python -m benchmarks.device_idle`.
"""

from __future__ import annotations

import argparse
import json
import statistics
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tampu.engine import device_memory
from tampu.engine.engine import Engine
from tampu.ml.device_map import Offload
from tampu.runner.stats import DEVICE

LENGTHS = {1: 96, 8: 48}  # tokens of an answer, by the number of streams


@dataclass(frozen=True, slots=True)
class Found:
    """What one round gave.

    Attributes:
        idle: the part of the time in which the device did nothing.
        step_ms: time from one step to the next.
        rate: tokens per second of all streams together.
    """

    idle: float
    step_ms: float
    rate: float


def steps(path: Path, streams: int) -> list[tuple[float, float]]:
    """Return the begin and end, in microseconds, of each step in which all streams decode."""
    events: list[dict[str, Any]] = json.loads(path.read_text("utf-8"))
    return [
        (event["ts"], event["ts"] + event["dur"])
        for event in events
        if event.get("tid") == DEVICE and event.get("ph") == "X"
        if [part["phase"] for part in event["args"]["parts"]] == ["decode"] * streams
    ]


def measure(engine: Engine, streams: int, first: int) -> Found:
    """Generate one answer for each stream."""
    options: dict[str, Any] = {"temperature": 0.0, "ignore_eos": True}
    options["max_tokens"] = LENGTHS[streams]
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "trace.json"
        with engine.trace(path):
            begun = time.perf_counter()
            prompts = [f"What is {first + n} + {n}?" for n in range(streams)]
            answers = engine.runner.call(lambda: [engine.stream(p, **options) for p in prompts])
            for answer in answers:
                for _ in answer:
                    pass
            seconds = time.perf_counter() - begun
        found = steps(path, streams)
    busy, whole = sum(end - begin for begin, end in found), found[-1][1] - found[0][0]
    rate = streams * LENGTHS[streams] / seconds
    return Found(1 - busy / whole, whole / len(found) / 1000, rate)


def load(*, one_step: bool) -> Engine:
    """Load the built-in model."""
    kept = device_memory.device_tokens_of
    if one_step:
        device_memory.device_tokens_of = lambda *_: None
    try:
        options: dict[str, Any] = {"context": 512, "slots": 8, "batch": 128}
        return Engine.load("demo", offload=Offload(99), **options)
    finally:
        device_memory.device_tokens_of = kept


def main() -> None:
    """Print a table."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=5)
    rounds = parser.parse_args().rounds
    engines = {1: load(one_step=True), 2: load(one_step=False)}
    print("| streams | steps in flight | idle | ms per step | tokens/s |")
    for streams in LENGTHS:
        found: dict[int, list[Found]] = {in_flight: [] for in_flight in engines}
        for number in range(rounds + 1):
            for in_flight, engine in engines.items():
                result = measure(engine, streams, 10 * number)
                found[in_flight] += [result] if number else []  # the first one builds graphs
        for in_flight, results in found.items():
            idle = statistics.median(each.idle for each in results)
            step = statistics.median(each.step_ms for each in results)
            rate = statistics.median(each.rate for each in results)
            print(f"| {streams} | {in_flight} | {idle:.1%} | {step:.2f} | {rate:.0f} |")
    for engine in engines.values():
        engine.close()


if __name__ == "__main__":
    main()
