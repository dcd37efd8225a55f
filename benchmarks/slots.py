"""Requests at once without a setting: `python -m benchmarks.slots MODEL.gguf`.

Two servers take turns (A B A B ...), one with the default number of slots (`NUM_PARALLEL=0`), one
with `NUM_PARALLEL=1`; each round is a new server with the model in memory. Eight clients begin
together, each with a conversation of its own, and read a stream of so many tokens. Printed are the
medians of the rounds: tokens per second of all together, when the last client had its first token
and when it had its answer, and the ratio of neighbours.
"""

from __future__ import annotations

import argparse
import json
import time
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from statistics import median

import httpx

from benchmarks.server import server

AUTO, ONE = "0", "1"


@dataclass(frozen=True)
class Heard:
    """What one client heard: seconds until its first piece and its last, and how many tokens."""

    first_s: float
    last_s: float
    tokens: int


def ask(url: str, model: str, client: int, tokens: int) -> Heard:
    """Stream an answer of so many tokens."""
    began_s, first_s, count = time.perf_counter(), 0.0, 0
    body = {
        "model": model,
        "messages": [{"role": "user", "content": f"Write about the number {client}."}],
        "max_tokens": tokens, "ignore_eos": True, "stream": True,
        "stream_options": {"include_usage": True},
    }  # fmt: skip
    with httpx.stream("POST", f"{url}/v1/chat/completions", json=body, timeout=None) as answer:
        answer.raise_for_status()
        for line in answer.iter_lines():
            if not first_s and '"content":"' in line:
                first_s = time.perf_counter() - began_s
            if '"completion_tokens"' in line:
                count = json.loads(line.removeprefix("data: "))["usage"]["completion_tokens"]
    return Heard(first_s, time.perf_counter() - began_s, count)


def measured(model: str, parallel: str, clients: int, tokens: int) -> tuple[float, float, float]:
    """Return tokens per second, and the seconds to the last first token and the last answer."""
    with (
        server(model, TAMPU_NUM_PARALLEL=parallel) as (_, port),
        ThreadPoolExecutor(clients) as pool,
    ):
        url, name = f"http://127.0.0.1:{port}", Path(model).stem
        ask(url, name, -1, 8)  # loads the model
        began_s = time.perf_counter()
        heard = list(pool.map(lambda each: ask(url, name, each, tokens), range(clients)))
        took_s = time.perf_counter() - began_s
    total = sum(each.tokens for each in heard)
    if total != clients * tokens:
        raise RuntimeError(f"{total} tokens, not {clients * tokens}")
    return total / took_s, max(e.first_s for e in heard), max(e.last_s for e in heard)


def main() -> None:
    """Measure, and print a table."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("model", help="a file, or the name of the built-in model")
    parser.add_argument("--clients", type=int, default=8)
    parser.add_argument("--tokens", type=int, default=150, help="of each answer")
    parser.add_argument("--rounds", type=int, default=3)
    given = parser.parse_args()
    found: dict[str, list[tuple[float, float, float]]] = {AUTO: [], ONE: []}
    for _ in range(given.rounds):
        for parallel, rounds in found.items():
            rounds.append(measured(given.model, parallel, given.clients, given.tokens))
    print("| NUM_PARALLEL | tokens/s together | all have a token after | all have answers after |")
    print("|---|---|---|---|")
    for parallel, rounds in found.items():
        rate, first_s, last_s = (median(column) for column in zip(*rounds, strict=True))
        print(f"| {parallel} | {rate:.1f} | {first_s:.2f} s | {last_s:.2f} s |")
    ratios = [a[0] / b[0] for a, b in zip(found[AUTO], found[ONE], strict=True)]
    print(f"auto against 1: {median(ratios):.2f} ({min(ratios):.2f} to {max(ratios):.2f})")


if __name__ == "__main__":
    main()
