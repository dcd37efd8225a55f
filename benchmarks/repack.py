"""Starts with packed weights kept on disk, beside starts without and llama.cpp's library.

    python -m benchmarks.repack MODEL [--peer-library PATH] [--repetitions 3]

prints a line for each way: the time to load, inside the process; the time from the start of the
process to the first token; the process's resident memory then, with those pages of files that it
has touched; and the speed of 48 tokens after that (what a mapping costs where anonymous memory has
large pages). Medians of starts in turns, each in a fresh process, after one of each that does not
count; the files are in the system's cache by then. llama.cpp reads no text and draws no token: it
computes five tokens of a prompt.

Some hosts of virtual machines take free memory back after seconds and give it again at 1 GB/s,
which is then what a start measures: with --touch, twice the file's size is written and freed
before each start.
"""

from __future__ import annotations

import argparse
import json
import mmap
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from contextlib import closing
from functools import partial
from pathlib import Path
from statistics import median
from typing import TypeAlias

import numpy as np
import psutil

from tampu.bench.llama_cpp import LlamaCpp

CONTEXT = 4096
TOKENS = 48
PROMPT = "Tell me about the way"

Times: TypeAlias = tuple[float, float, float, float]
"""Seconds to load, seconds to the first token, resident bytes then, tokens per second."""


def child(model: Path, threads: int, folder: str) -> None:
    """Load a model, compute, and print `Times`."""
    from tampu.engine.engine import Engine

    cache = (folder, 10**12) if folder else None
    began = time.perf_counter()
    with Engine.load(model, context=CONTEXT, threads=threads, repack_cache=cache) as engine:
        loading = time.perf_counter() - began
        engine.generate(PROMPT, max_tokens=1, temperature=0.0, ignore_eos=True)
        first = time.time()
        resident = psutil.Process().memory_info().rss
        begin = time.perf_counter()
        engine.generate(PROMPT, max_tokens=TOKENS, temperature=0.0, ignore_eos=True)
        speed = TOKENS / (time.perf_counter() - begin)
    print(json.dumps([loading, first, resident, speed]))


def ours(model: Path, threads: int, folder: str) -> Times:
    command = [sys.executable, "-m", "benchmarks.repack", str(model), "--child", folder]
    began = time.time()
    done = subprocess.run(
        [*command, "--threads", str(threads)], check=True, capture_output=True, text=True
    )
    loading, first, resident, speed = json.loads(done.stdout)
    return loading, first - began, resident, speed


def theirs(model: Path, threads: int, library: Path | None) -> Times:
    began = time.perf_counter()
    with closing(LlamaCpp(model, threads=threads, context=CONTEXT, library=library)) as peer:
        peer.prefill(range(1, 6))
        first = time.perf_counter() - began
        (process,) = psutil.Process().children()
        resident = process.memory_info().rss
        return peer.load_seconds, first, resident, TOKENS / peer.decode([7] * TOKENS)


def touch(size: int) -> None:
    """Take memory in large pages, write to all of it, and free it."""
    memory = mmap.mmap(-1, size, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
    memory.madvise(mmap.MADV_HUGEPAGE)
    np.frombuffer(memory, np.uint8)[:: mmap.PAGESIZE] = 1
    memory.close()


def main() -> None:
    """Measure and print the table."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("model", type=Path)
    parser.add_argument("--peer-library", type=Path)
    parser.add_argument("--repetitions", type=int, default=3)
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--touch", action="store_true", help="free memory is the machine's own")
    parser.add_argument("--child", help=argparse.SUPPRESS)
    given = parser.parse_args()
    if given.child is not None:
        child(given.model, given.threads, given.child)
        return
    with tempfile.TemporaryDirectory(prefix="tampu-packed-") as folder:
        ways: dict[str, Callable[[], Times]] = {
            "packed at the start": partial(ours, given.model, given.threads, ""),
            "packed weights kept": partial(ours, given.model, given.threads, folder),
            "llama.cpp": partial(theirs, given.model, given.threads, given.peer_library),
        }
        found: dict[str, list[Times]] = {name: [] for name in ways}
        for turn in range(given.repetitions + 1):
            for name, measure in ways.items():
                if given.touch:
                    touch(2 * given.model.stat().st_size)
                times = measure()
                if turn:
                    found[name].append(times)
    print("| | load | start to first token | resident | decode |\n|---|---|---|---|---|")
    for name, rounds in found.items():
        loading, first, resident, speed = (median(values) for values in zip(*rounds, strict=True))
        memory = f"{resident / 2**20:.0f} MiB"
        print(f"| {name} | {loading:.2f} s | {first:.2f} s | {memory} | {speed:.1f} t/s |")


if __name__ == "__main__":
    main()
