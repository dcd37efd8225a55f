"""The header with which clients name the session of a request; read where there are replicas."""

from __future__ import annotations

from starlette.datastructures import Headers
from starlette.middleware import Middleware
from starlette.types import ASGIApp, Receive, Scope, Send

from tampu.server.core import Core
from tampu.server.feature import Feature
from tampu.server.front.session import HEADER, naming_session


def sessions(_: Core) -> Feature:
    """Return the feature."""
    return Feature(middleware=[Middleware(SessionMiddleware)])


class SessionMiddleware:
    """Middleware: takes the session of a request from its header."""

    def __init__(self, app: ASGIApp) -> None:
        """Pass all requests on to an application."""
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Pass a request on."""
        is_http = scope["type"] == "http"
        with naming_session(Headers(scope=scope).get(HEADER, "") if is_http else ""):
            await self._app(scope, receive, send)
