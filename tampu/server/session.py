"""The session of a request: what a client says that several of its requests belong to.

Routers of replicas send the requests of a session to one of them where prompts do not decide.
"""

from __future__ import annotations

from contextvars import ContextVar

from starlette.datastructures import Headers
from starlette.types import ASGIApp, Receive, Scope, Send

HEADER = "x-session-id"
"""The header of requests, as Ray Serve names it."""

MAX_LENGTH = 256
"""The maximum number of characters that count."""

_current: ContextVar[str] = ContextVar("session", default="")


class SessionMiddleware:
    """Middleware: takes the session of a request from its header."""

    def __init__(self, app: ASGIApp) -> None:
        """Pass all requests on to an application."""
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Pass a request on."""
        is_http = scope["type"] == "http"
        session = Headers(scope=scope).get(HEADER, "") if is_http else ""
        token = _current.set(session[:MAX_LENGTH])
        try:
            await self._app(scope, receive, send)
        finally:
            _current.reset(token)


def name_session(session: str | None) -> None:
    """Name the session of the request that is being served, if no header has named it."""
    if session and not _current.get():
        _current.set(session[:MAX_LENGTH])


def current_session() -> str:
    """Return the session of the request that is being served; empty: it has none."""
    return _current.get()
