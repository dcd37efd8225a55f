"""What deterministic inference costs: `python -m benchmarks.deterministic MODEL`.

Three engines hold the model: as usual; deterministic; and as usual at the level of the kernels that
is then used (the same, unless the CPU has AMX). They take turns (A B C A B C ...), the others
idle. Each computes a prompt of 512 tokens, then writes one answer, then eight at once, after 256
random tokens each. An answer's time is from the first token of the last to start to the end of the
first to end, so that prompts are measured apart. The median of each is printed.
"""

from __future__ import annotations

import argparse
import random
import threading
import time
from contextlib import ExitStack
from pathlib import Path
from statistics import median
from typing import Any

from tampu.engine.engine import Engine
from tampu.ml.kernels import KernelChoice, find_kernels
from tampu.runner.events import TextDelta

CONTEXT = 1024
PROMPT, HISTORY = 512, 256  # tokens
VOCABULARY = 14_000
STREAMS = 8


def decoding(engine: Engine, streams: int, tokens: int, seed: int) -> float:
    """Return the tokens per second of so many answers, while all of them are being written."""
    source = random.Random(seed)
    times: list[list[float]] = [[] for _ in range(streams)]

    def ask(prompt: list[int], own: list[float]) -> None:
        for event in engine.stream(prompt, max_tokens=tokens, ignore_eos=True):
            if isinstance(event, TextDelta):
                own += [time.perf_counter()] * len(event.tokens)

    prompts = [[source.randrange(300, VOCABULARY) for _ in range(HISTORY)] for _ in times]
    threads = [threading.Thread(target=ask, args=each) for each in zip(prompts, times, strict=True)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    begin, end = max(own[0] for own in times), min(own[-1] for own in times)
    return sum(begin < at <= end for own in times for at in own) / (end - begin)


def prompt(engine: Engine, seed: int) -> float:
    """Return the tokens per second of a prompt."""
    source = random.Random(seed)
    given = [source.randrange(300, VOCABULARY) for _ in range(PROMPT)]
    began = time.perf_counter()
    engine.generate(given, max_tokens=1, ignore_eos=True)
    return PROMPT / (time.perf_counter() - began)


def main() -> None:
    """Measure and print a table."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("model", type=Path)
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--tokens", type=int, default=48)
    given = parser.parse_args()
    plain = find_kernels(KernelChoice(deterministic=True))
    kinds: dict[str, dict[str, Any]] = {"usual": {}, "deterministic": {"deterministic": True}}
    if plain is not None:
        kinds |= {f"usual, {plain.level}": {"kernels": plain.level}}
    found: dict[str, list[tuple[float, ...]]] = {name: [] for name in kinds}
    with ExitStack() as stack:
        engines = {
            name: stack.enter_context(
                Engine.load(
                    given.model, context=CONTEXT, slots=STREAMS, threads=given.threads,
                    spec_type="none", settings=None, **options,
                )
            )
            for name, options in kinds.items()
        }  # fmt: skip
        for turn in range(given.rounds + 1):
            for name, engine in engines.items():
                row = (
                    prompt(engine, 3 * turn),
                    decoding(engine, 1, given.tokens, 3 * turn + 1),
                    decoding(engine, STREAMS, given.tokens, 3 * turn + 2),
                )
                if turn:  # the first builds the graphs
                    found[name].append(row)
    print("| tokens per second | prompt of 512 | 1 stream | 8 streams |\n|---|---|---|---|")
    for name, rows in found.items():
        cells = (f"{median(column):.1f}" for column in zip(*rows, strict=True))
        print(f"| {name} | {' | '.join(cells)} |")


if __name__ == "__main__":
    main()
