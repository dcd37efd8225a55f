"""The logits of every architecture on a device, against those that transformers computed.

Each model is a GGUF file with random weights in F32, with a file of token ids and of float32 logits
beside it (`tools.gpu_bundle.references`).
"""

from __future__ import annotations

import argparse
from pathlib import Path

import numpy as np

from tampu.engine.engine import Engine
from tampu.engine.load_options import LoadOptions, with_offload
from tampu.errors import TampuError
from tampu.ml.device_map import Offload
from tools.gpu_bundle.report import print_begin, print_row

F16_ARITHMETIC = 5e-3
"""What computing in half precision may change."""
SMALL = ("llama", "qwen35")
"""The models of a quick check: attention alone, and a recurrent one with both."""


def compare(file: Path, offload: Offload, limit: float) -> None:
    """Print how far the logits of one model are from the reference."""
    reference = np.load(file.with_suffix(".npz"))
    tokens, expected = [int(token) for token in reference["tokens"]], reference["logits"]
    options = LoadOptions(context=256, threads=1, cache_type="f32", flash_attention=True)
    with Engine.load(file, with_offload(options, offload)) as engine:
        on_device = engine.device_bytes > 0
        found = [engine.logits(tokens, chunk=chunk)[:, : expected.shape[1]] for chunk in (None, 1)]
    norm = np.linalg.norm(expected)
    errors = [float(np.linalg.norm(each - expected) / norm) for each in found]
    same = float(np.mean(found[0].argmax(-1) == expected.argmax(-1)))
    where = "" if on_device or not offload.layers else ", but nothing is on the device"
    value = f"error {errors[0]:.1e} at once, {errors[1]:.1e} token by token, "
    passed = max(errors) <= limit and not where
    if not passed and not where and bool(reference["is_mixture"]) and same > 0.9:
        # Rounding makes other scores of experts the largest; the rest follows from that.
        print_row(file.stem, f"{value}a token goes to other experts, best token same {same:.0%}")
        return
    print_row(file.stem, f"{value}best token same {same:.0%}{where}", passed=passed)


def main() -> None:
    """Compare all models."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("folder", type=Path)
    parser.add_argument("backend")
    parser.add_argument("--small", action="store_true")
    parser.add_argument("--skip", nargs="*", default=())
    given = parser.parse_args()
    for file in sorted(given.folder.glob("*.gguf")):
        if file.stem in given.skip or (given.small and file.stem not in SMALL):
            continue
        print_begin(file.stem)
        # On the CPU the activation of Gemma comes from a table in half precision.
        limit = 2e-3 if given.backend == "cpu" else F16_ARITHMETIC
        try:
            compare(file, Offload(0 if given.backend == "cpu" else 99), limit)
        except TampuError as error:
            print_row(file.stem, f"{type(error).__name__}: {error}", passed=False)


if __name__ == "__main__":
    main()
