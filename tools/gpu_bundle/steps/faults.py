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
from tampu.ml.devices import Device, find_devices
from tampu.ml.library import gg
from tampu.ml.vulkan import find_vulkan_devices
from tools.gpu_bundle.report import print_begin, print_row

ENDLESS = 1500  # tokens: the process is killed before they are there
NO_MEMORY = "a context larger than the device's memory"
TAKEN = "a model while another process has the memory"
NO_MODEL = "not tried: no model was made"
_TIMEOUT_S = 300.0  # the step's own limit is less, unless the check has more time
_PIECE = 2**30  # drivers limit the size of one buffer
_REST = 2**28


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
    """Yield the parts of an answer of the built-in model, which does not end by itself."""
    content = {
        "model": "demo", "prompt": "What is 27 + 58?", "max_tokens": tokens, "temperature": 0,
        "structured_outputs": {"regex": "[a-z]{9999}"}, "stream": True,
    }  # fmt: skip
    request = urllib.request.Request(
        f"{address}/v1/completions", json.dumps(content).encode(),
        {"Content-Type": "application/json"},
    )  # fmt: skip
    with urllib.request.urlopen(request, timeout=_TIMEOUT_S) as response:
        for line in response:
            event = line.partition(b"data: ")[2].strip()
            if event and event != b"[DONE]":
                yield json.loads(event)


def killed_in_mid_step(layers: int) -> None:
    """Kill the model's process while it answers; the server has to say so, and to answer again."""
    with server(layers) as (address, process):
        answer = ask(address, tokens=ENDLESS)
        next(answer)
        workers = [
            child for child in psutil.Process(process.pid).children(recursive=True)
            if any("tampu.worker" in part for part in child.cmdline()) and not child.children()
        ]  # fmt: skip
        for worker in workers:
            worker.send_signal(signal.SIGKILL)
        last: dict[str, Any] = next(reversed(list(answer)), {})
        said = last.get("error", {}).get("message", "no error")
        print_row("kill -9 in mid-step", f"the request gets: {said}", passed="error" in last)
        again = list(ask(address, tokens=4))
        passed = bool(again) and "error" not in again[-1]
        value = "is answered by a new process" if passed else str(again[-1:])
        print_row("the request after it", value, passed=passed)


def too_little_memory() -> None:
    """Ask for a cache larger than the card, then for one that fits."""
    if graphics_device() is None:
        print_row(NO_MEMORY, "not tried: no device but the CPU is used")
        return
    model = speed_model()
    if model is None:
        print_row(NO_MEMORY, NO_MODEL)
        return
    try:
        # At least four KiB a token: more than any card has.
        with Engine.load(model, context=40_960, slots=1024, offload=Offload(99)):
            print_row(NO_MEMORY, "the model was loaded", passed=False)
            return
    except TampuError as error:
        passed = isinstance(error, OutOfMemoryError)
        print_row(NO_MEMORY, f"refused with {type(error).__name__}: {error}", passed=passed)
    with Engine.load("demo", context=2048, offload=Offload(99)) as engine:
        answer = engine.generate("What is 27 + 58?", max_tokens=4, ignore_eos=True)
    tokens = answer.usage.generated_tokens
    print_row("a smaller context after it", f"{tokens} tokens", passed=tokens == 4)


def speed_model() -> Path | None:
    """Return a model that the steps before have made."""
    return next(iter(sorted(Path.home().glob("*.gguf"))), None)


def graphics_device() -> Device | None:
    """Return the device that is checked."""
    return next((each for each in find_devices() if each.is_graphics), None)


def taken_memory() -> None:
    """Load a model while another process has nearly all memory of the card."""
    device = graphics_device()
    if device is None:
        print_row(TAKEN, "not tried: no device but the CPU is used")
        return
    if any(
        each.kind == "CPU" and each.name == device.description for each in find_vulkan_devices()
    ):
        print_row(TAKEN, "not tried: this driver computes on the CPU, with the system's memory")
        return
    command = [sys.executable, "-c", "from tools.gpu_bundle.steps.faults import hold; hold()"]
    holder = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
    try:
        print_row(
            "memory that another process takes", next(iter(holder.stdout or ()), "none").strip()
        )
        _load_beside()
    finally:
        holder.kill()
        holder.wait()


def hold() -> None:
    """Take the card's memory but for a rest, say how much, and keep it until the input ends."""
    device = graphics_device()
    if device is None:
        return
    taken = 0
    while (size := min(device.memory()[0] - _REST, _PIECE)) > 0:
        if not gg.ggml_backend_buft_alloc_buffer(device.buffer_type, size):
            break
        taken += size
    free = device.memory()[0]
    print(f"{taken / 2**20:.0f} MiB; {free / 2**20:.0f} MiB are left", flush=True)
    sys.stdin.read()


def _load_beside() -> None:
    model = speed_model()
    if model is None:
        print_row(TAKEN, NO_MODEL)
        return
    try:
        with Engine.load(model, context=2048) as engine:
            size = engine.device_bytes / 2**20
        value = f"loaded, {size:.0f} MiB on the device, the rest on the CPU"
        print_row(TAKEN, value, passed=True)
    except TampuError as error:
        passed = isinstance(error, OutOfMemoryError)
        print_row(TAKEN, f"refused with {type(error).__name__}: {error}", passed=passed)


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
