"""Embeddings of many texts beside llama.cpp: `python -m benchmarks.embeddings MODEL --peer DIR`.

    pip install --target DIR llama-cpp-python
    python -m benchmarks.embeddings MODEL --peer DIR [--texts 64] [--tokens 256] [--rounds 3]

prints the texts per second of both and the least cosine between the embeddings of one text. DIR has
llama-cpp-python, compiled on this machine (benchmarks/README.md says how). It computes in a process
of its own, which waits while tampu is measured, once with each of its physical batches; the ratio
is that to the best. Both read the same texts, with their tokenizers' time in it, and take turns.
"""

from __future__ import annotations

import argparse
import importlib
import json
import os
import random
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from pathlib import Path
from statistics import median
from typing import Any

import numpy as np
import numpy.typing as npt

from benchmarks.moe import WORDS
from tampu.engine.engine import Engine
from tampu.engine.load_options import LoadOptions
from tampu.ml.machine import default_threads

PHYSICAL_BATCHES = (512, 2048, 4096)
FIRST_WORD = 256  # after the bytes

Embeddings = npt.NDArray[np.float32]


class Peer:
    """llama-cpp-python with one model and one physical batch, in a child process."""

    def __init__(self, folder: Path, model: Path, tokens: int, batch: int, threads: int) -> None:
        """Start the child, which loads the model; `tokens` are those of a text."""
        command = [sys.executable, "-m", "benchmarks.embeddings", str(model), "--serve"]
        command += ["--tokens", str(tokens), "--batch", str(batch), "--threads", str(threads)]
        command += ["--peer", str(folder)]
        self._child = subprocess.Popen(
            command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
        )

    def embed(self, texts: Sequence[str]) -> tuple[Embeddings, int, float]:
        """Return the embeddings (texts, features), how many tokens they had, and the seconds."""
        if self._child.stdin is None or self._child.stdout is None:
            raise RuntimeError("the child has no pipes")
        self._child.stdin.write(json.dumps(texts) + "\n")
        self._child.stdin.flush()
        line = self._child.stdout.readline()
        if not line:
            raise SystemExit("llama.cpp's process ended; what it wrote is above")
        answer: Mapping[str, Any] = json.loads(line)
        return np.asarray(answer["rows"], np.float32), answer["tokens"], answer["seconds"]

    def close(self) -> None:
        """End the child."""
        self._child.communicate()


def serve(given: argparse.Namespace) -> None:
    """Answer lists of texts on standard input, as the child."""
    sys.path.append(str(given.peer))  # after tampu's own packages
    llama_cpp = importlib.import_module("llama_cpp")
    answers = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)  # what llama.cpp prints is not a result
    batch = max(given.batch, given.tokens)
    model = llama_cpp.Llama(
        str(given.model), embedding=True, n_ctx=batch, n_batch=batch, n_ubatch=batch,
        n_threads=given.threads, n_threads_batch=given.threads, verbose=False,
    )  # fmt: skip
    for line in sys.stdin:
        texts = json.loads(line)
        began = time.perf_counter()
        rows, tokens = model.embed(texts, normalize=True, return_count=True)
        seconds = time.perf_counter() - began
        print(json.dumps({"rows": rows, "tokens": tokens, "seconds": seconds}), file=answers)
        answers.flush()


def make_texts(engine: Engine, count: int, tokens: int, seed: int) -> list[str]:
    """Return texts of so many tokens, of words of the made-up vocabulary."""
    source = random.Random(seed)
    added = len(engine.tokenize("", add_special=True))
    words = [source.choices(range(FIRST_WORD, FIRST_WORD + WORDS), k=tokens) for _ in range(count)]
    texts = []
    for row in words:
        text = engine.detokenize(row)
        while len(found := engine.tokenize(text)) + added > tokens:
            text = engine.detokenize(found[: tokens - added])
        texts.append(text)
    return texts


def measure(given: argparse.Namespace) -> None:
    """Measure both in turns and print the result."""
    options = LoadOptions(threads=given.threads)
    with ExitStack() as opened:
        engine = opened.enter_context(Engine.load(given.model, options))
        batches = sorted({max(batch, given.tokens) for batch in PHYSICAL_BATCHES})
        peers = {
            batch: Peer(given.peer, given.model, given.tokens, batch, given.threads)
            for batch in batches
        }
        for peer in peers.values():
            opened.callback(peer.close)
        own: list[float] = []
        theirs: dict[int, list[float]] = {batch: [] for batch in peers}
        least, tokens = 1.0, 0
        for turn in range(given.rounds + 1):
            texts = make_texts(engine, given.texts, given.tokens, turn)
            began = time.perf_counter()
            rows = engine.embed(texts)
            seconds = time.perf_counter() - began
            for batch, peer in peers.items():
                found, tokens, took = peer.embed(texts)
                least = min(least, float((rows * found).sum(axis=1).min()))
                if turn:
                    theirs[batch].append(given.texts / took)
            if turn:
                own.append(given.texts / seconds)
            else:
                print(f"{given.texts} texts, {tokens} tokens for llama.cpp", flush=True)
    for batch, speeds in theirs.items():
        ratio = median(a / b for a, b in zip(own, speeds, strict=True))
        print(
            f"{given.model.stem}: {median(own):.2f} texts/s, llama.cpp in batches of {batch} "
            f"{median(speeds):.2f}, {ratio:.2f}"
        )
    print(f"least cosine {least:.5f}")


def main() -> None:
    """Measure, or be the child."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("model", type=Path)
    parser.add_argument("--peer", type=Path, help="Where llama-cpp-python is installed.")
    parser.add_argument("--texts", type=int, default=64)
    parser.add_argument("--tokens", type=int, default=256)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--threads", type=int, default=default_threads())
    parser.add_argument("--serve", action="store_true", help=argparse.SUPPRESS)
    parser.add_argument("--batch", type=int, default=512, help=argparse.SUPPRESS)
    given = parser.parse_args()
    if given.serve:
        serve(given)
    elif given.peer is None:
        parser.error("--peer is needed: a folder with llama-cpp-python")
    else:
        measure(given)


if __name__ == "__main__":
    main()
