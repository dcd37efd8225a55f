"""Why a process ended."""

from __future__ import annotations

import signal

_MEANINGS = {
    signal.SIGBUS: " (the model's file was changed or truncated while in use)",
    signal.SIGKILL: " (killed from outside, maybe by the system for lack of memory)",
}


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
    return f"{cause}: {output[-1][:500]}" if output else cause
