"""Cancellation of work on a thread, and pauses that let other threads run.

Preparing a request can take seconds, and a thread cannot be ended. So what takes long asks now and
then, and ends once its request is cancelled:

    with cancellable(lambda: request.is_over):
        tokenizer.encode(text)  # calls `check_cancelled` between blocks of the text
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass

from tampu.errors import RequestCancelledError

# A thread that wants the interpreter's lock asks its holder after the switch interval. But it waits
# for a new interval whenever the lock was free in between, as in NumPy's functions, even if it
# came too late: a thread that calls many of them could keep all others waiting for 0.1 s.
_TURN_SECONDS = 0.001
_PAUSE_SECONDS = 0.00005


@dataclass(slots=True)
class _Work:
    is_cancelled: Callable[[], bool]
    paused_s: float


_work: ContextVar[_Work | None] = ContextVar("work", default=None)


@contextmanager
def cancellable(is_cancelled: Callable[[], bool]) -> Iterator[None]:
    """Let `check_cancelled` ask this function within the block, on this thread."""
    token = _work.set(_Work(is_cancelled, time.monotonic()))
    try:
        yield
    finally:
        _work.reset(token)


def check_cancelled() -> None:
    """Do nothing while the work of this thread is wanted, except for a short pause now and then.

    Raises:
        RequestCancelledError: if it is not.
    """
    work = _work.get()
    if work is None:
        return
    if time.monotonic() - work.paused_s > _TURN_SECONDS:
        time.sleep(_PAUSE_SECONDS)
        work.paused_s = time.monotonic()
    if work.is_cancelled():
        raise RequestCancelledError("the request was cancelled")
