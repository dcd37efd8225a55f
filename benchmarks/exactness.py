"""The distance of the package's kernels, and of ggml's, from exact arithmetic.

    python -m benchmarks.exactness MODEL.gguf

writes the model once more with its weights as 32-bit floats (each with the value that its block
stands for), computes several texts with it, and prints how far from these logits the quantized file
is with kernels on and off. With 32-bit floats on both sides nothing is rounded but sums: the
error of that is about 1e-6. It needs room for the floats: take a file of a few layers.
"""

from __future__ import annotations

import argparse
import tempfile
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import numpy.typing as npt

from tampu.convert.quantize import quantize_file
from tampu.engine.engine import Engine
from tampu.ml.gguf import read_gguf

TEXTS, LENGTH = 6, 48
FIRST_TOKEN = 300

Logits = npt.NDArray[np.float32]


@dataclass(frozen=True)
class Distance:
    """The distance of logits from the exact ones."""

    error: float  # ||difference|| / ||exact||
    divergence: float  # Kullback and Leibler's, of the exact distribution from ours
    same_best: float  # part of the positions where the best token is the same


def logits_of(path: Path, texts: list[list[int]], kernels: str) -> Logits:
    """Return the logits of every position of every text; the cache is exact."""
    with Engine.load(path, context=2 * LENGTH, kernels=kernels, cache_type="f32") as engine:
        return np.concatenate([engine.logits(text) for text in texts])


def distance(found: Logits, exact: Logits) -> Distance:
    """Compare."""
    error = float(np.linalg.norm(found - exact) / np.linalg.norm(exact))
    p, q = _log_softmax(exact), _log_softmax(found)
    divergence = float((np.exp(p) * (p - q)).sum(-1).mean())
    return Distance(error, divergence, float((found.argmax(-1) == exact.argmax(-1)).mean()))


def _log_softmax(x: Logits) -> npt.NDArray[np.float64]:
    shifted = x.astype(np.float64) - x.max(-1, keepdims=True)
    result: npt.NDArray[np.float64] = shifted - np.log(np.exp(shifted).sum(-1, keepdims=True))
    return result


def compare(path: Path) -> dict[str, Distance]:
    """Return the distances from exact arithmetic with kernels on and off, and of both."""
    size = read_gguf(path).tensors["token_embd.weight"].shape[0]
    source = np.random.default_rng(0)
    texts = [source.integers(FIRST_TOKEN, size, LENGTH).tolist() for _ in range(TEXTS)]
    with tempfile.TemporaryDirectory(dir=path.parent) as folder:
        floats = Path(folder, "floats.gguf")
        quantize_file(path, floats, "F32", requantize=True)
        exact = logits_of(floats, texts, "off")
    on, off = (logits_of(path, texts, word) for word in ("on", "off"))
    return {
        "on": distance(on, exact),
        "off": distance(off, exact),
        "on, from off": distance(on, off),
    }


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("models", type=Path, nargs="+")
    print("| file | kernels | relative error | divergence | same best token |")
    print("|---|---|---|---|---|")
    for path in parser.parse_args().models:
        for word, found in compare(path).items():
            print(
                f"| {path.name} | {word} | {100 * found.error:.2f} % | {found.divergence:.1e} | "
                f"{100 * found.same_best:.1f} % |",
                flush=True,
            )


if __name__ == "__main__":
    main()
