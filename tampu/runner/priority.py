"""The priority of the work of a thread or a task: interactive, or batch, which comes after it."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Literal, TypeAlias

Priority: TypeAlias = Literal["interactive", "batch"]

_current: ContextVar[Priority] = ContextVar("priority", default="interactive")


@contextmanager
def prioritized(priority: Priority) -> Iterator[None]:
    """Let requests that are made within the block have this priority."""
    token = _current.set(priority)
    try:
        yield
    finally:
        _current.reset(token)


def current_priority() -> Priority:
    """Return the priority of requests that are made here."""
    return _current.get()
