"""A conversation after a restart: `python -m benchmarks.prefix_cache MODEL [--tokens 8000]`.

The time to the first token of the same prompt: computed by an engine with an empty prefix cache,
and read back by the next engine. The files are in the page cache, as after a restart. The last
lines compare how fast rows are read with reading the files alone.
"""

from __future__ import annotations

import argparse
import random
import tempfile
import time
from pathlib import Path
from typing import Any

from tampu.engine.engine import Engine

GIB = 2**30


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


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("model", type=Path)
    parser.add_argument("--tokens", type=int, default=8000)
    parser.add_argument("--runs", type=int, default=3)
    arguments = parser.parse_args()
    source = random.Random(0)
    prompt = [source.randrange(1000, 20_000) for _ in range(arguments.tokens)]
    with tempfile.TemporaryDirectory() as folder:
        kept = Path(folder)
        cold_s, _ = first_token_s(arguments.model, kept, prompt)
        print(f"cold: {cold_s:.2f} s to the first token of {len(prompt)} tokens")
        files = sorted(kept.rglob("*.rows"))
        size = sum(path.stat().st_size for path in files)
        print(f"kept: {size / GIB:.2f} GiB in {len(files)} files")
        warm_s = []
        for _ in range(arguments.runs):
            seconds, cached = first_token_s(arguments.model, kept, prompt)
            warm_s.append(seconds)
            ratio = cold_s / seconds
            print(f"restored: {seconds:.2f} s, {cached} tokens cached, {ratio:.0f} x quicker")
        plain = min(plain_read_s(files) for _ in range(arguments.runs))
        best = min(warm_s)
        print(f"rows: {size / best / GIB:.2f} GiB/s to the first token, the step included")
        print(f"files alone: {size / plain / GIB:.2f} GiB/s")


if __name__ == "__main__":
    main()
