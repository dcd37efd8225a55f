"""What captured values cost: `python -m benchmarks.captures MODEL`.

A prompt of 512 tokens and an answer to it, with nothing captured, with the residual stream after
one layer, and with that after all layers, in turns.
"""

from __future__ import annotations

import argparse
from pathlib import Path
from statistics import median
from typing import Any

from tampu.engine.engine import Engine

PROMPT = [*range(1000, 1512)]
CASES: dict[str, dict[str, Any]] = {
    "nothing": {},
    "one layer": {"capture": {"points": ["layer_outputs:4"]}},
    "all layers": {"capture": {"points": ["layer_outputs"]}},
}


def main() -> None:
    """Print a line for each case."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("model", type=Path)
    parser.add_argument("--tokens", type=int, default=32)
    parser.add_argument("--rounds", type=int, default=3)
    given = parser.parse_args()
    prompts: dict[str, list[float]] = {name: [] for name in CASES}
    answers: dict[str, list[float]] = {name: [] for name in CASES}
    with Engine.load(given.model, context=1024, slots=1, spec_type="none") as engine:
        for number in range(given.rounds + 1):  # the first round builds graphs
            for name, options in CASES.items():
                usage = engine.generate(
                    PROMPT, max_tokens=given.tokens, temperature=0.0, ignore_eos=True, **options
                ).usage
                engine.runner.call(engine.model.scheduler.kv_manager.reset)
                if number:
                    prompts[name].append(len(PROMPT) * 1e9 / usage.prompt_ns)
                    answers[name].append((given.tokens - 1) * 1e9 / usage.generated_ns)
    for name in CASES:
        print(f"{name:<12}{median(prompts[name]):>10.1f}{median(answers[name]):>10.2f}")


if __name__ == "__main__":
    main()
