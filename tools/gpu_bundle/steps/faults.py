"""What happens when a model's process is killed in mid-step, and when memory is too small."""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import re
import signal
import subprocess
import sys
import urllib.error
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import psutil

from tampu.engine.engine import Engine
from tampu.errors import OutOfMemoryError, TampuError
from tampu.ml.device_map import Offload
from tampu.ml.devices import find_devices
from tools.gpu_bundle.report import print_begin, print_row

_TIMEOUT_S = 40.0


@contextlib.contextmanager
def server(layers: int) -> Iterator[tuple[str, subprocess.Popen[str]]]:
    """Run `tampu serve`; yield its address and its process."""
    command = [sys.executable, "-m", "tampu.cli.entry", "serve", "--port", "0"]
    process = subprocess.Popen(
        command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True,
        env=_environment(layers),
    )  # fmt: skip
    try:
        lines = (re.search(r"http://[\d.]+:\d+", line) for line in process.stdout or ())
        yield next(filter(None, lines))[0], process
    finally:
        process.terminate()
        process.wait()


def _environment(layers: int) -> dict[str, str]:
    return {**os.environ, "TAMPU_NUM_GPU": str(layers)}


def ask(address: str, *, tokens: int) -> Iterator[dict[str, Any]]:
    """Yield the parts of an answer of the built-in model."""
    options = {"num_predict": tokens, "temperature": 0}
    content = {"model": "demo", "prompt": "What is 27 + 58?", "raw": True, "options": options}
    request = urllib.request.Request(f"{address}/api/generate", json.dumps(content).encode())
    with urllib.request.urlopen(request, timeout=_TIMEOUT_S) as response:
        for line in response:
            yield json.loads(line)


def killed_in_mid_step(layers: int) -> None:
    """Kill the model's process while it answers; the server has to say so, and to answer again."""
    with server(layers) as (address, process):
        answer = ask(address, tokens=1500)
        next(answer)
        workers = [
            child for child in psutil.Process(process.pid).children(recursive=True)
            if any("tampu.worker" in part for part in child.cmdline()) and not child.children()
        ]  # fmt: skip
        for worker in workers:
            worker.send_signal(signal.SIGKILL)
        last = list(answer)[-1]
        said = last.get("error", "no error")
        print_row("kill -9 in mid-step", f"the request gets: {said}", passed="error" in last)
        again = list(ask(address, tokens=4))[-1]
        value = "answered" if again.get("done") else str(again)
        print_row("the next request", value, passed=bool(again.get("done")))


def too_little_memory() -> None:
    """Ask for a cache larger than the card."""
    device = next((each for each in find_devices() if each.is_graphics), None)
    if device is None:
        print_row("more memory than the card has", "not tried: no device")
        return
    try:
        # 2 KiB a token in three layers: more than any card has.
        with Engine.load("demo", context=2048, slots=200_000, offload=Offload(99)):
            print_row("more memory than the card has", "the model was loaded", passed=False)
    except OutOfMemoryError as error:
        print_row("more memory than the card has", str(error), passed=True)
    except TampuError as error:
        print_row("more memory than the card has", f"{type(error).__name__}: {error}", passed=True)


def taken_memory() -> None:
    """Load a model while another process has nearly all memory of the card."""
    what = "another process has the card's memory"
    try:
        import torch
    except ImportError:
        print_row(what, "not tried: PyTorch is not installed")
        return
    if not torch.cuda.is_available():
        print_row(what, "not tried: PyTorch sees no CUDA device")
        return
    take = (
        "import sys, torch; free = torch.cuda.mem_get_info()[0]; "
        "held = torch.empty(free - 2**28, dtype=torch.uint8, device='cuda'); "
        "print('taken', flush=True); sys.stdin.read()"
    )
    command = [sys.executable, "-c", take]
    holder = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
    try:
        next(iter(holder.stdout or ()))
        _load_beside(what)
    finally:
        holder.kill()
        holder.wait()


def _load_beside(what: str) -> None:
    model = next(iter(sorted(Path.home().glob("*.gguf"))), None)
    if model is None:
        print_row(what, "not tried: no model was made")
        return
    try:
        with Engine.load(model, context=2048) as engine:
            size = engine.device_bytes / 2**20
            print_row(
                what, f"loaded, {size:.0f} MiB on the device, the rest on the CPU", passed=True
            )
    except TampuError as error:
        print_row(what, f"{type(error).__name__}: {error}", passed=True)


def main() -> None:
    """Try all."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("folder", type=Path)
    parser.add_argument("backend")
    parser.add_argument("--skip", nargs="*", default=())
    given = parser.parse_args()
    layers = 0 if given.backend == "cpu" else 99
    parts = {
        "kill": lambda: killed_in_mid_step(layers),
        "memory": too_little_memory,
        "taken": taken_memory,
    }
    for name, part in parts.items():
        if name not in given.skip:
            print_begin(name)
            part()


if __name__ == "__main__":
    main()
