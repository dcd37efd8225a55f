"""Quantizing beside libllama's own quantizer: `python -m benchmarks.quantize MODEL LIBLLAMA`.

MODEL is a file in F16 (`benchmarks.models --types F16`), LIBLLAMA the libllama.so of the package
llama-cpp-python 0.3.36. Each runs in a process of its own, in turn; the smallest time counts.
"""

from __future__ import annotations

import argparse
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from tampu.convert.quant_mix import file_type
from tampu.convert.quantize import quantize_file
from tools.record_quant_mixes import Peer


def seconds(who: str, model: Path, made: Path, kind: str, library: Path, threads: int) -> float:
    """Return the time of one quantization, without the start of Python."""
    call = [sys.executable, "-m", "benchmarks.quantize", str(model), str(library)]
    call += ["--types", kind, "--threads", str(threads), "--once", who, "--made", str(made)]
    done = subprocess.run(call, capture_output=True, text=True, check=True)
    return float(done.stdout)


def once(who: str, model: Path, made: Path, kind: str, library: Path, threads: int) -> float:
    peer = Peer(library) if who == "libllama" else None
    begin = time.perf_counter()
    if peer is None:
        quantize_file(model, made, kind, threads=threads)
    else:
        peer.quantize(model, made, file_type(kind).number, threads)
    return time.perf_counter() - begin


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("model", type=Path)
    parser.add_argument("library", type=Path)
    parser.add_argument("--types", default="Q4_K_M,Q4_0,Q8_0")
    parser.add_argument("--rounds", type=int, default=2)
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--once", choices=("tampu", "libllama"), help=argparse.SUPPRESS)
    parser.add_argument("--made", type=Path, help=argparse.SUPPRESS)
    given = parser.parse_args()
    if given.once:
        print(once(given.once, given.model, given.made, given.types, given.library, given.threads))
        return
    print("| type | tampu s | libllama s | libllama / tampu |\n| --- | --- | --- | --- |")
    for kind in given.types.split(","):
        best = {"tampu": float("inf"), "libllama": float("inf")}
        with tempfile.TemporaryDirectory(dir=given.model.parent) as folder:
            made = Path(folder) / "made.gguf"
            for _ in range(given.rounds):
                for who in best:
                    taken = seconds(who, given.model, made, kind, given.library, given.threads)
                    best[who] = min(best[who], taken)
        ratio = best["libllama"] / best["tampu"]
        print(f"| {kind} | {best['tampu']:.2f} | {best['libllama']:.2f} | {ratio:.2f} |")


if __name__ == "__main__":
    main()
