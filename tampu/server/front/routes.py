"""The table of routes: paths, access, and the structs of request bodies.

Everything that holds for every route derives from this table: the key a request needs, the
description in `/openapi.json`, and the tests.
"""

from __future__ import annotations

import difflib
import inspect
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from enum import Enum
from http import HTTPStatus
from typing import TypeVar

import msgspec
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Match
from starlette.routing import Route as Matcher
from starlette.types import ASGIApp, Receive, Scope, Send
from starlette.websockets import WebSocket

from tampu.server.front.body import read_body
from tampu.server.front.http_response import (
    SHORT,
    WARNINGS,
    WarnedResponse,
    error_response,
)
from tampu.server.front.logs import REQUESTS

T = TypeVar("T", bound=msgspec.Struct)
Endpoint = Callable[[Request], Awaitable[Response]]
SocketEndpoint = Callable[[WebSocket], Awaitable[None]]

VERSION = "/v1"
_LIKENESS = 0.8  # of difflib: one letter of five may be wrong
_MAX_NEAR = 2  # a longer path is compared with none: that takes time


class Access(Enum):
    """The key a request needs: none, any, or one for managing models."""

    OPEN = "open"
    USE = "use"
    MANAGE = "manage"


@dataclass(frozen=True, slots=True)
class Route:
    """One route.

    Attributes:
        methods: that it answers.
        path: in Starlette's notation.
        endpoint: the handler.
        access: the key a request needs.
        body: the struct of the JSON body; None: no JSON body.
        summary: what it is for.
        socket: the handler of WebSockets at this path; None: there are none.
    """

    methods: tuple[str, ...]
    path: str
    endpoint: Endpoint
    access: Access
    body: type[msgspec.Struct] | None
    summary: str
    socket: SocketEndpoint | None = None


class VersionPrefixMiddleware:
    """Middleware: answers paths under `/v1` without it too, as llama-server does.

    `/completions` is a route of its own, as it is there.
    """

    def __init__(self, app: ASGIApp, routes: Sequence[Route]) -> None:
        """Take the paths of these routes."""
        self._app = app
        prefix = f"{VERSION}/"
        self._own = {route.path for route in routes}
        paths = [route.path for route in routes if route.path.startswith(prefix)]
        self._roots = {_root(path.removeprefix(VERSION)) for path in paths}

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Pass a request on, with `/v1` at the start of its path."""
        if (
            scope["type"] in REQUESTS
            and scope["path"] not in self._own
            and _root(scope["path"]) in self._roots
        ):
            raw_path = VERSION.encode() + scope["raw_path"]
            path = VERSION + scope["path"]
            scope = {**scope, "path": path, "raw_path": raw_path, SHORT: True}
        await self._app(scope, receive, send)


class FinalSlashMiddleware:
    """Middleware: redirects a route's path with a slash at its end to it, as Ollama and vLLM do.

    The redirection is relative, since a proxy may put a path before that of the request.
    """

    def __init__(self, app: ASGIApp, routes: Sequence[Route]) -> None:
        """Redirect to these routes."""
        self._app = app
        self._matchers = [Matcher(route.path, route.endpoint) for route in routes]

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Pass a request on, or redirect it."""
        if scope["type"] == "http" and scope["path"].endswith("/") and self._is_known(scope):
            name = scope["raw_path"][:-1].rpartition(b"/")[2].decode("ascii")
            query = scope["query_string"].decode("ascii")
            headers = {"location": f"../{name}{'?' * bool(query)}{query}"}
            answer = Response(status_code=HTTPStatus.TEMPORARY_REDIRECT, headers=headers)
            await answer(scope, receive, send)
            return
        await self._app(scope, receive, send)

    def _is_known(self, scope: Scope) -> bool:
        """Whether a path without its last slash is that of a route."""
        shorter = {**scope, "path": scope["path"][:-1]}
        if shorter["path"].endswith("/") or not shorter["path"]:
            return False
        return any(each.matches(shorter)[0] is not Match.NONE for each in self._matchers)


def get(path: str, endpoint: Endpoint, access: Access = Access.USE) -> Route:
    """Return a route that is only read."""
    return Route(("GET", "HEAD"), path, endpoint, access, None, _summary(endpoint))


def post(
    path: str,
    handle: Callable[[Request, T], Awaitable[Response]],
    body: type[T],
    access: Access = Access.USE,
    method: str = "POST",
) -> Route:
    """Return a route whose handler gets the request's JSON body too."""

    async def endpoint(request: Request) -> Response:
        response = await handle(request, await read_body(request, body))
        warnings = request.scope.get(WARNINGS)
        return WarnedResponse(response, warnings) if warnings else response

    return Route((method,), path, endpoint, access, body, _summary(handle))


def raw(methods: tuple[str, ...], path: str, endpoint: Endpoint, access: Access) -> Route:
    """Return a route whose handler reads the body itself."""
    return Route(methods, path, endpoint, access, None, _summary(endpoint))


def socket(path: str, handle: SocketEndpoint, access: Access = Access.USE) -> Route:
    """Return a route of WebSockets; a request that is not one is 426."""

    async def endpoint(request: Request) -> Response:
        message = f"{request.url.path} is a WebSocket: connect with a client of WebSockets"
        headers = {"upgrade": "websocket"}
        return error_response(request.url.path, HTTPStatus.UPGRADE_REQUIRED, message, headers)

    return Route(("GET",), path, endpoint, access, None, _summary(handle), handle)


def near_path(path: str, routes: Sequence[Route]) -> str | None:
    """Return the path that a mistyped one resembles, without `/v1` if it is; None: it has none."""
    known = [route.path for route in routes if "{" not in route.path]
    short = [path.removeprefix(VERSION) for path in known if path.startswith(f"{VERSION}/")]
    if len(path) > _MAX_NEAR * max(map(len, known)):
        return None
    found = difflib.get_close_matches(path.lower(), [*known, *short], 1, _LIKENESS)
    return found[0] if found else None


def _root(path: str) -> str:
    """Return the first part of a path."""
    return path[1:].partition("/")[0]


def _summary(handle: object) -> str:
    return (inspect.getdoc(handle) or "").partition("\n")[0].rpartition("`: ")[2]
