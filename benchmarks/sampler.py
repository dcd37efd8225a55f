"""How long one token's sampling takes on a large vocabulary.

Run it alone: `python benchmarks/sampler.py`. The minimum is what the code costs; the median
shows what else the machine was doing.
"""

from __future__ import annotations

import argparse
import time
from typing import Any

import numpy as np
from numpy.typing import NDArray

from tampu.sampling import Sampler, SamplingOptions, top_logprobs

CASES: dict[str, dict[str, Any]] = {
    "greedy": {"temperature": 0.0},
    "top-k 40, top-p 0.9, temperature 0.8": {},
    "the same with a repeat penalty": {"repeat_penalty": 1.1},
    "the same over a window of 4096": {"repeat_penalty": 1.1, "repeat_last_n": -1},
    "top-k 1000, top-p 0.95": {"top_k": 1000, "top_p": 0.95},
    "top-p 0.9": {"top_k": 0},
    "top-p 0.99, temperature 1": {"top_k": 0, "top_p": 0.99, "temperature": 1.0},
    "min-p 0.05": {"top_k": 0, "top_p": 1.0, "min_p": 0.05},
    "min-p 0.05, top-p 0.9": {"top_k": 0, "min_p": 0.05},
    "no filter": {"top_k": 0, "top_p": 1.0},
    "top-k 40, typical-p 0.9": {"typical_p": 0.9, "top_p": 1.0},
    "typical-p 0.9": {"top_k": 0, "typical_p": 0.9, "top_p": 1.0},
}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--vocabulary", type=int, default=128_256)
    parser.add_argument("--iterations", type=int, default=1000)
    arguments = parser.parse_args()
    prompt = np.random.default_rng(1).integers(0, arguments.vocabulary, 4096).tolist()
    for kind, logits in _logits(arguments.vocabulary).items():
        print(f"{kind}: microseconds per token, minimum / median")
        for name, options in CASES.items():
            sampler = Sampler(SamplingOptions(seed=1, **options), arguments.vocabulary)
            sampler.prime(prompt)
            _report(name, arguments.iterations, lambda s=sampler, x=logits: s.sample(x))
        _report("log-probabilities", arguments.iterations, lambda x=logits: top_logprobs(x, 1, 20))


def _logits(vocabulary: int) -> dict[str, NDArray[np.float32]]:
    random = np.random.default_rng(0)
    flat = random.normal(0.0, 2.5, vocabulary).astype(np.float32)
    peaked = flat.copy()
    peaked[random.integers(0, vocabulary, 20)] += np.linspace(5.0, 15.0, 20, dtype=np.float32)
    return {"a language model's usual logits": peaked, "no idea: a normal distribution": flat}


def _report(name: str, iterations: int, call: Any) -> None:
    call()
    times = []
    for _ in range(iterations):
        start = time.perf_counter_ns()
        call()
        times.append(time.perf_counter_ns() - start)
    print(f"  {name:40s} {min(times) / 1e3:7.1f} / {np.median(times) / 1e3:7.1f}")


if __name__ == "__main__":
    main()
