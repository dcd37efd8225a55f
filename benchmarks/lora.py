"""Requests with adapters of their own: `python -m benchmarks.lora MODEL [--requests 8]`.

So many requests are answered together, in turns without adapters, with one for all, and each with
another one. The adapters change every projection of the layers and have random values.
"""

from __future__ import annotations

import argparse
import random
import statistics
import tempfile
import time
from pathlib import Path
from typing import Any

from benchmarks.adapters import write_adapter
from tampu.engine.engine import Engine


def tokens_per_second(engine: Engine, choices: list[dict[str, float]], tokens: int) -> float:
    """Return the rate of requests together, from the time when all of them have a token."""
    source = random.Random(0)
    options: dict[str, Any] = {"max_tokens": tokens, "temperature": 0.0, "ignore_eos": True}
    streams = [
        engine.stream([source.randrange(1000, 20_000) for _ in range(16)], lora=chosen, **options)
        for chosen in choices
    ]
    for stream in streams:
        next(stream)
    began = time.perf_counter()
    for stream in streams:
        for _ in stream:
            pass
    return len(choices) * tokens / (time.perf_counter() - began)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("model", type=Path)
    parser.add_argument("--requests", type=int, default=8)
    parser.add_argument("--rank", type=int, default=16)
    parser.add_argument("--tokens", type=int, default=48)
    parser.add_argument("--repetitions", type=int, default=5)
    arguments = parser.parse_args()
    count = arguments.requests
    ways: dict[str, list[dict[str, float]]] = {
        "without adapters": [{}] * count,
        "one adapter for all": [{"0": 1.0}] * count,
        f"{count} adapters": [{str(number): 1.0} for number in range(count)],
    }
    with (
        tempfile.TemporaryDirectory() as folder,
        Engine.load(arguments.model, context=512, slots=count) as engine,
    ):
        seconds = []
        for number in range(count):
            path = Path(folder) / f"{number}.gguf"
            write_adapter(path, arguments.model, rank=arguments.rank, seed=number, changed=("",))
            began = time.perf_counter()
            engine.adapters.load(str(number), path)
            seconds.append(time.perf_counter() - began)
        print(f"the first adapter loaded in {seconds[0]:.2f} s, the last in {seconds[-1]:.2f} s")
        rates: dict[str, list[float]] = {name: [] for name in ways}
        for _ in range(arguments.repetitions):
            for name, choices in ways.items():
                rates[name].append(tokens_per_second(engine, choices, arguments.tokens))
    medians = {name: statistics.median(values) for name, values in rates.items()}
    first = medians["without adapters"]
    for name, rate in medians.items():
        print(f"{name}: {rate:.1f} tokens/s together, {rate / first:.2f} of without")


if __name__ == "__main__":
    main()
