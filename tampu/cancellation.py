"""Whether the work of a thread is still wanted.

Preparing a request can take seconds, and a thread cannot be ended. So what takes long asks now and
then, and ends once its request is cancelled:

    with cancellable(lambda: request.is_over):
        tokenizer.encode(text)  # calls `check_cancelled` between blocks of the text
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar

from tampu.errors import RequestCancelledError

_is_cancelled: ContextVar[Callable[[], bool] | None] = ContextVar("is_cancelled", default=None)


@contextmanager
def cancellable(is_cancelled: Callable[[], bool]) -> Iterator[None]:
    """Let `check_cancelled` ask this function within the block, on this thread."""
    token = _is_cancelled.set(is_cancelled)
    try:
        yield
    finally:
        _is_cancelled.reset(token)


def check_cancelled() -> None:
    """Do nothing while the work of this thread is wanted.

    Raises:
        RequestCancelledError: if it is not.
    """
    is_cancelled = _is_cancelled.get()
    if is_cancelled is not None and is_cancelled():
        raise RequestCancelledError("the request was cancelled")
