"""What the card can do, measured by PyTorch: the limits that figures are compared with."""

from __future__ import annotations

import argparse
import json
from pathlib import Path
from typing import Any

from tools.gpu_bundle.report import print_row

FILE = "limits.json"
_ROUNDS = 10


def main() -> None:
    """Measure the memory's and the matrix units' speed."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--small", action="store_true")
    parser.add_argument("--skip", nargs="*", default=())
    parser.parse_args()
    try:
        import torch
    except ImportError as error:
        print_row("PyTorch", f"not measured: {error}")
        return
    if not torch.cuda.is_available():
        print_row("PyTorch", f"not measured: PyTorch {torch.__version__} sees no CUDA device")
        return
    print_row("PyTorch", f"{torch.__version__}, CUDA {torch.version.cuda}")
    found = {"bytes_per_s": _copy(torch), "flops": _product(torch)}
    print_row("memory, read and written by a copy", f"{found['bytes_per_s'] / 1e9:.0f} GB/s")
    print_row("product of BF16 matrices, 8192 wide", f"{found['flops'] / 1e12:.0f} TFLOP/s")
    (Path.home() / FILE).write_text(json.dumps(found))


def _seconds(torch: Any, work: Any) -> float:
    """Return the time of one call, by the device's events."""
    for _ in range(3):
        work()
    begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
    begin.record()
    for _ in range(_ROUNDS):
        work()
    end.record()
    end.synchronize()
    return float(begin.elapsed_time(end)) / 1000 / _ROUNDS


def _copy(torch: Any) -> float:
    source = torch.empty(2**30, dtype=torch.uint8, device="cuda")
    target = torch.empty_like(source)
    return 2 * int(source.numel()) / _seconds(torch, lambda: target.copy_(source))


def _product(torch: Any) -> float:
    size = 8192
    left, right = (torch.randn(size, size, device="cuda", dtype=torch.bfloat16) for _ in range(2))
    return float(2 * size**3 / _seconds(torch, lambda: left @ right))


if __name__ == "__main__":
    main()
