"""A conversation after a restart: `python -m benchmarks.prefix_cache MODEL [--tokens 8000]`.

The time to the first token of the same prompt: computed by an engine with an empty prefix cache,
and read back by the next engine. The files are in the page cache, as after a restart. Then come how
fast rows are read beside reading the files alone, and what writing takes of streams that run
meanwhile. With 1 billion weights in Q4_K_M on two cores all takes about five minutes.
"""

from __future__ import annotations

import argparse
import random
import statistics
import tempfile
import time
from pathlib import Path
from typing import Any

from tampu.engine.engine import Engine

GIB = 2**30
STREAM_TOKENS = 96
ORDINARY = (300, 1300)  # ids of ordinary tokens that the models of all benchmarks have


def first_token_s(model: Path, kept: Path, prompt: list[int]) -> tuple[float, int]:
    """Return the seconds to the first token in a new engine, and how many tokens were cached."""
    options: dict[str, Any] = {"context": len(prompt) + 64, "prefix_cache": (kept, 10**11)}
    with Engine.load(model, **options) as engine:
        engine.generate(prompt[:8], max_tokens=1)
        began = time.perf_counter()
        found = engine.generate(prompt, max_tokens=1, temperature=0.0, ignore_eos=True)
        return time.perf_counter() - began, found.usage.cached_tokens


def plain_read_s(files: list[Path]) -> float:
    """Return the seconds that reading the files alone takes."""
    began = time.perf_counter()
    for path in files:
        path.read_bytes()
    return time.perf_counter() - began


def stream_rate(engine: Engine, streams: int, seed: int) -> float:
    """Return the tokens per second of streams with new prompts, their prompts' time included."""
    source = random.Random(seed)
    prompts = [[source.randrange(*ORDINARY) for _ in range(256)] for _ in range(streams)]
    began = time.perf_counter()
    running = [
        engine.stream(prompt, max_tokens=STREAM_TOKENS, ignore_eos=True) for prompt in prompts
    ]
    for stream in running:
        for _ in stream:
            pass
    return streams * STREAM_TOKENS / (time.perf_counter() - began)


def writing(model: Path, streams: int, runs: int) -> None:
    """Print what it takes of streams that the rows of the streams before them are written.

    Two engines take turns, one of them with a cache.
    """
    options: dict[str, Any] = {"context": 512, "slots": streams}
    rates: dict[str, list[float]] = {"without": [], "with": []}
    with (
        tempfile.TemporaryDirectory() as folder,
        Engine.load(model, **options) as plain,
        Engine.load(model, prefix_cache=(Path(folder), 10**11), **options) as keeping,
    ):
        for turn in range(runs + 1):
            for name, engine in (("without", plain), ("with", keeping)):
                rates[name].append(stream_rate(engine, streams, turn))
        size = sum(path.stat().st_size for path in Path(folder).rglob("*.rows"))
    medians = {name: statistics.median(values[1:]) for name, values in rates.items()}
    ratio = statistics.median(
        b / a for a, b in zip(rates["without"][1:], rates["with"][1:], strict=True)
    )
    print(f"{streams} streams without a cache: {medians['without']:.1f} tokens/s")
    print(f"the same while the cache is written: {medians['with']:.1f} tokens/s, {ratio:.3f}")
    print(f"written meanwhile: {size / GIB:.2f} GiB")


def restart(model: Path, tokens: int, runs: int) -> None:
    """Print the time to the first token of a prompt, computed and read back."""
    source = random.Random(0)
    prompt = [source.randrange(*ORDINARY) for _ in range(tokens)]
    with tempfile.TemporaryDirectory() as folder:
        kept = Path(folder)
        cold_s, _ = first_token_s(model, kept, prompt)
        print(f"cold: {cold_s:.2f} s to the first token of {len(prompt)} tokens")
        files = sorted(kept.rglob("*.rows"))
        size = sum(path.stat().st_size for path in files)
        print(f"kept: {size / GIB:.2f} GiB in {len(files)} files")
        warm_s = []
        for _ in range(runs):
            seconds, cached = first_token_s(model, kept, prompt)
            warm_s.append(seconds)
            ratio = cold_s / seconds
            print(f"restored: {seconds:.2f} s, {cached} tokens cached, {ratio:.0f} x quicker")
        plain = min(plain_read_s(files) for _ in range(runs))
        best = min(warm_s)
        print(f"rows: {size / best / GIB:.2f} GiB/s to the first token, the step included")
        print(f"files alone: {size / plain / GIB:.2f} GiB/s")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("model", type=Path)
    parser.add_argument("--tokens", type=int, default=8000)
    parser.add_argument("--runs", type=int, default=3)
    parser.add_argument("--streams", type=int, default=8, help="beside which the cache is written")
    parser.add_argument("--only", choices=["restart", "writing"])
    arguments = parser.parse_args()
    if arguments.only != "writing":
        restart(arguments.model, arguments.tokens, arguments.runs)
    if arguments.only != "restart":
        writing(arguments.model, arguments.streams, arguments.runs)


if __name__ == "__main__":
    main()
