"""Explains why a process ended, from its exit status."""

from __future__ import annotations

import re
import signal
from collections.abc import Iterable

_MEANINGS = {
    signal.SIGBUS: " (the model's file was changed or truncated while in use)",
    signal.SIGKILL: " (killed from outside, maybe by the system for lack of memory)",
}


# What ggml's code for GPUs prints when it ends the process since a buffer that it needs while
# computing cannot be allocated.
_NO_DEVICE_MEMORY = re.compile(r"OutOf(Device|Host)Memory|error: out of memory")
# And what it prints when a device does not answer any more.
_LOST = re.compile(
    r"error ErrorDeviceLost|CUDA error: (unspecified launch failure|the launch timed out|"
    r"uncorrectable ECC|an illegal memory access)"
)


# A record of the log below the level of warnings.
_ORDINARY = re.compile(r"(DEBUG|INFO) tampu[\w.]*: ")


def lacked_device_memory(output: Iterable[str]) -> bool:
    """Return whether a process ended for lack of a GPU's memory, from its last lines of output."""
    return any(_NO_DEVICE_MEMORY.search(line) for line in output)


def describe_exit(code: int, output: list[str]) -> str:
    """Return why a process ended, from its exit status and its last lines of output."""
    if code >= 0:
        cause = f"exit code {code}"
    else:
        try:
            number = signal.Signals(-code)
            cause = f"signal {number.name}{_MEANINGS.get(number, '')}"
        except ValueError:
            cause = f"signal {-code}"
    if any(_LOST.search(line) for line in output):
        cause += " (the GPU was lost, as when its driver is reset)"
    said = [line for line in output if not _ORDINARY.match(line)]
    return f"{cause}: {said[-1][:500]}" if said else cause
