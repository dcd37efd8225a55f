"""The session of a request, by which a client groups several of its requests.

Routers of replicas send the requests of a session to one of them where prompts do not decide.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar

HEADER = "x-session-id"
"""The header of requests, as Ray Serve names it."""

MAX_LENGTH = 256
"""The maximum number of characters that count."""

_current: ContextVar[str] = ContextVar("session", default="")


@contextmanager
def naming_session(session: str) -> Iterator[None]:
    """Let the requests within the block belong to this session."""
    token = _current.set(session[:MAX_LENGTH])
    try:
        yield
    finally:
        _current.reset(token)


def name_session(session: str | None) -> None:
    """Name the session of the request that is being served, if no header has named it."""
    if session and not _current.get():
        _current.set(session[:MAX_LENGTH])


def current_session() -> str:
    """Return the session of the request that is being served; empty: it has none."""
    return _current.get()
