"""A conversation after a restart: `python -m benchmarks.prefix_cache MODEL [--tokens 8000]`.

The time to the first token of the same prompt: computed by an engine with an empty prefix cache,
and read back by the next engine. The files are in the page cache, as after a restart. Then come how
fast rows are read beside reading the files alone, into memory of the same size, and what writing
takes of streams that run meanwhile. With 1 billion weights in Q4_K_M on two cores all takes about
five minutes.
"""

from __future__ import annotations

import argparse
import mmap
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


def first_token_s(model: Path, kept: Path, prompt: list[int]) -> tuple[float, float, int]:
    """Return the seconds to the first token in a new engine, then again, and cached tokens.

    The second time the rows are in the cells: it is what all but reading takes.
    """
    options: dict[str, Any] = {"context": len(prompt) + 64, "prefix_cache": (kept, 10**11)}
    with Engine.load(model, **options) as engine:
        engine.generate(prompt[:8], max_tokens=1)
        seconds = []
        cached = []
        for _ in range(2):
            began = time.perf_counter()
            found = engine.generate(prompt, max_tokens=1, temperature=0.0, ignore_eos=True)
            seconds.append(time.perf_counter() - began)
            cached.append(found.usage.cached_tokens)
        return seconds[0], seconds[1], cached[0]


def plain_read_s(files: list[Path], size: int, *, is_new: bool) -> float:
    """Return the seconds that reading the files into memory of their size takes, in one thread.

    Args:
        files: to read.
        size: of all of them.
        is_new: whether the memory was never written, as that of a process that has just started;
            the system gives each page at the first touch then.
    """
    memory = mmap.mmap(-1, size)
    if not is_new:
        memory.write(bytes(size))
    view = memoryview(memory)
    began, at = time.perf_counter(), 0
    for path in files:
        with path.open("rb", buffering=0) as file:
            at += file.readinto(view[at:]) or 0
    seconds = time.perf_counter() - began
    view.release()
    memory.close()
    return seconds


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
        cold_s, _, _ = first_token_s(model, kept, prompt)
        print(f"cold: {cold_s:.2f} s to the first token of {len(prompt)} tokens")
        files = sorted(kept.rglob("*.rows"))
        size = sum(path.stat().st_size for path in files)
        print(f"kept: {size / GIB:.2f} GiB in {len(files)} files")
        reading, plain, fresh = [], [], []
        for _ in range(runs):
            warm_s, again_s, cached = first_token_s(model, kept, prompt)
            reading.append(warm_s - again_s)
            plain.append(plain_read_s(files, size, is_new=False))
            fresh.append(plain_read_s(files, size, is_new=True))
            ratio = cold_s / warm_s
            print(f"restored: {warm_s:.2f} s, {cached} tokens cached, {ratio:.0f} x quicker")
            print(f"the same again: {again_s:.2f} s")
        rates = [size / statistics.median(each) / GIB for each in (reading, plain, fresh)]
        print(f"rows, by the difference: {rates[0]:.2f} GiB/s")
        print(f"files alone into written memory: {rates[1]:.2f} GiB/s, {rates[0] / rates[1]:.2f}")
        print(f"files alone into new memory: {rates[2]:.2f} GiB/s, {rates[0] / rates[2]:.2f}")


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
