"""Waiting for what another thread, task or process does: with an end, and a message."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from typing import TypeVar

import pytest

# For what takes milliseconds on a quiet machine, and half a minute where ten programs share two
# cores: only what will never happen takes so long.
PATIENCE_S = 180.0
_PAUSE_S = 0.002

T = TypeVar("T")


def wait_until(holds: Callable[[], T], what: str, seconds: float = PATIENCE_S) -> T:
    """Return what `holds` returns as soon as that is true; fail if it never is.

    Args:
        holds: is asked again and again.
        what: is waited for; the message says that it did not happen.
        seconds: how long, at most.
    """
    end = time.monotonic() + seconds
    while not (found := holds()):
        if time.monotonic() > end:
            pytest.fail(f"within {seconds:g} s this did not happen: {what}")
        time.sleep(_PAUSE_S)
    return found


async def until(holds: Callable[[], T], what: str, seconds: float = PATIENCE_S) -> T:
    """`wait_until` for a task: the others go on meanwhile."""
    end = time.monotonic() + seconds
    while not (found := holds()):
        if time.monotonic() > end:
            pytest.fail(f"within {seconds:g} s this did not happen: {what}")
        await asyncio.sleep(_PAUSE_S)
    return found
