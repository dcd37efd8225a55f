"""Tokens per second against how many tokens are computed at once, beside llama.cpp's.

    python -m benchmarks.kernels MODEL [--peer-library PATH/libllama.so] [--threads N]

draws a bar for each number of tokens: one (decoding), a few (several sequences, speculation), many
(prompts). `tampu bench --kernels` shows the single operations beside their limits.
"""

from __future__ import annotations

import argparse
from contextlib import ExitStack, closing
from pathlib import Path

from tampu.bench import Native, Plan, Result, Work
from tampu.ml.devices import default_threads
from tampu.peer import Peer

TOKENS = (1, 2, 4, 8, 16, 32, 64, 128)
WIDTH = 48


def chart(results: list[Result]) -> str:
    """Return two bars for each number of tokens, as long as their speeds."""
    speeds = [
        speed for r in results for speed in (r.tokens_per_second, r.peer_tokens_per_second) if speed
    ]
    lines = []
    for result in results:
        for name, speed in (
            ("tampu", result.tokens_per_second),
            ("llama.cpp", result.peer_tokens_per_second or 0.0),
        ):
            bar = "█" * max(1, round(WIDTH * speed / max(speeds)))
            lines.append(f"{result.test:>6} {name:>9} {speed:>8.1f} {bar}")
    return "\n".join(lines)


def main() -> None:
    """Measure and print the chart."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("model", type=Path)
    parser.add_argument("--peer-library", type=Path)
    parser.add_argument("--threads", type=int, default=default_threads())
    parser.add_argument("--repetitions", type=int, default=3)
    given = parser.parse_args()
    works = [Work("pp", tokens) for tokens in TOKENS]
    plan = Plan(works=works, depths=[0], threads=given.threads, repetitions=given.repetitions)
    with ExitStack() as opened:
        ours = Native(given.model, threads=plan.threads, context=plan.context)
        opened.enter_context(closing(ours))
        other = Peer(
            given.model, threads=plan.threads, context=plan.context, library=given.peer_library
        )
        opened.callback(other.close)
        print(chart(plan.run(ours, other)))


if __name__ == "__main__":
    main()
