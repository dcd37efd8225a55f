"""Whether tampu and llama.cpp agree on a model file: greedy tokens and logprobs, side by side.

    python -m benchmarks.agreement FILE.gguf ...

It also proves that files written by `tampu convert` are good for others. Needs tampu[bench].
llama.cpp runs with its own defaults; with a sliding window below the text the two may differ where
llama.cpp has none (Mistral 7B v0.1). Files that hold a vision tower too are not for llama.cpp.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import xllamacpp

from tampu.engine.engine import Engine

CONTEXT = 512
PROMPT = 64
COUNT = 24
TOP = 5


Table = dict[int, float]  # log-probabilities of the best tokens, the best one first


def ours(path: Path, prompt: Sequence[int]) -> tuple[list[int], list[Table]]:
    """Return tampu's greedy continuation and the logprobs at each of its tokens."""
    with Engine.load(path, context=CONTEXT) as engine:
        text = list(prompt)
        for _ in range(COUNT):
            text.append(int(engine.logits(text)[-1].argmax()))
        logits = engine.logits(text)[len(prompt) - 1 : -1].astype(np.float64)
    shifted = logits - logits.max(-1, keepdims=True)
    logprobs = shifted - np.log(np.exp(shifted).sum(-1, keepdims=True))
    best = np.argsort(-logprobs, axis=-1)[:, :TOP]
    tables = [
        {int(token): float(row[token]) for token in tokens}
        for row, tokens in zip(logprobs, best, strict=True)
    ]
    return text[len(prompt) :], tables


def theirs(path: Path, prompt: Sequence[int], given: Sequence[int]) -> list[Table | None]:
    """Return llama.cpp's logprobs at the same places; None where it holds back half a character."""
    parameters = xllamacpp.CommonParams()
    parameters.model.path = str(path)
    parameters.n_ctx, parameters.n_parallel, parameters.warmup = CONTEXT, 1, False
    server = xllamacpp.Server(parameters)
    tables: list[Table | None] = []
    for index in range(len(given)):
        request = {
            "prompt": [*prompt, *given[:index]],
            "n_predict": 1,
            "temperature": 0,
            "n_probs": TOP,
            "ignore_eos": False,
        }
        answer: dict[str, Any] = server.handle_completions(request)
        entries = (answer["choices"][0].get("logprobs") or {}).get("content") or []
        tops = entries[0]["top_logprobs"] if entries else []
        tables.append({top["id"]: top["logprob"] for top in tops} or None)
    return tables


def compare(path: Path) -> str:
    """Return one line: how many best tokens agree, and the largest difference."""
    with Engine.load(path, context=CONTEXT) as engine:
        size = engine.tokenizer.vocabulary_size
    prompt = [int(token) for token in np.random.default_rng(1).integers(9, size - 32, PROMPT)]
    given, own = ours(path, prompt)
    pairs = [(a, b) for a, b in zip(own, theirs(path, prompt, given), strict=True) if b]
    same = sum(next(iter(a)) == next(iter(b)) for a, b in pairs)
    largest = max(abs(a[token] - b[token]) for a, b in pairs for token in a.keys() & b.keys())
    return f"{path.name:40} {same:3d} of {len(pairs)} best tokens, {largest:.4f} at most"


def main() -> int:
    for argument in sys.argv[1:]:
        print(compare(Path(argument)), flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(main())
