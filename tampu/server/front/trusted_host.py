"""Checks of Host and Origin: the names of this server, and the web pages that may use it.

Requests with too long a head, or with two body lengths, are refused here too.

A web page anywhere can make its visitor's browser send requests to this machine. The Host header
keeps out pages whose name was made to point here (DNS rebinding); the Origin and Sec-Fetch-Site
headers keep out the others.
"""

from __future__ import annotations

import re
import socket
from collections.abc import Sequence
from http import HTTPStatus

from starlette.datastructures import Headers
from starlette.middleware.cors import CORSMiddleware
from starlette.responses import Response
from starlette.types import ASGIApp, Receive, Scope, Send

from tampu.server.front.http_response import error_response
from tampu.server.front.logs import REQUESTS
from tampu.settings.address import ip_address, is_loopback

ORIGINS = (
    r"https?://(localhost|127\.0\.0\.1|0\.0\.0\.0|\[::1\])(:\d+)?"
    r"|(app|file|tauri|vscode-webview|vscode-file)://.*"
)
_ORIGIN = re.compile(ORIGINS)
MAX_TARGET_LENGTH = 8 * 1024
MAX_HEADERS = 100
MAX_HEADER_BYTES = 64 * 1024
_VERSIONS = ("1.0", "1.1")
_SAFE_METHODS = ("GET", "HEAD", "OPTIONS")


def host_name(header: str) -> str | None:
    """Return the name in a Host header, in lower case; None if it is invalid."""
    match = re.fullmatch(r"(\[[0-9a-fA-F:.]+\]|[\w.-]+)(:\d{1,5})?", header, re.ASCII)
    return match[1].strip("[]").rstrip(".").lower() if match else None


def _is_unix_socket(scope: Scope) -> bool:
    """Whether a request came through a Unix socket, which no web page can reach.

    Its clients write any name as the host.
    """
    server = scope.get("server")
    return scope.get("client") is None and server is not None and server[1] is None


def _host_of(origin: str | None) -> str:
    """Return the name and port of a web origin: for the server's own page those of its Host."""
    scheme, _, host = (origin or "").partition("://")
    return host.lower() if scheme in ("http", "https") else ""


class PreflightMiddleware(CORSMiddleware):
    """Middleware: tells browsers which pages may read the answers, as llama-server does.

    A preflight that is refused is 200 without any permission, so that the browser stops there;
    Starlette's 400 named the permissions that remained.
    """

    def preflight_response(self, request_headers: Headers) -> Response:
        """Return the response to a browser's question before a request."""
        response = super().preflight_response(request_headers)
        if response.status_code == HTTPStatus.OK:
            return response
        return Response(headers={"vary": "Origin"})


class TrustedHostMiddleware:
    """Middleware: answers 403 to requests for a foreign host or from a foreign origin."""

    def __init__(self, app: ASGIApp, bound: Sequence[str], origins: Sequence[str] = ()) -> None:
        """Protect a server bound to these addresses; pages of these origins may use it too."""
        self._app = app
        self._origins = frozenset(origins)
        self._is_local = all(map(is_loopback, bound))
        self._names = {socket.gethostname().lower(), *(host.strip("[]").lower() for host in bound)}

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Pass a request on, or answer it with 403."""
        if scope["type"] in REQUESTS:
            refused = self._refusal(scope)
            if refused is not None:
                status, message = refused
                # After a 400 the start of the next request is unknown.
                close = {"connection": "close"} if status is HTTPStatus.BAD_REQUEST else None
                await error_response(scope["path"], status, message, close)(scope, receive, send)
                return
        await self._app(scope, receive, send)

    def _refusal(self, scope: Scope) -> tuple[HTTPStatus, str] | None:
        headers = Headers(scope=scope)
        if len(scope["raw_path"]) + len(scope["query_string"]) > MAX_TARGET_LENGTH:
            return HTTPStatus.REQUEST_URI_TOO_LONG, "the address is too long"
        size = sum(len(name) + len(value) for name, value in scope["headers"])
        if len(scope["headers"]) > MAX_HEADERS or size >= MAX_HEADER_BYTES:
            return HTTPStatus.REQUEST_HEADER_FIELDS_TOO_LARGE, "too many headers, or too long"
        if scope["http_version"] not in _VERSIONS:
            return HTTPStatus.BAD_REQUEST, "only HTTP/1.1 is supported"
        if "content-length" in headers and "transfer-encoding" in headers:
            return HTTPStatus.BAD_REQUEST, "Content-Length and Transfer-Encoding exclude each other"
        hosts = headers.getlist("host")
        is_foreign_host = not (_is_unix_socket(scope) or all(map(self._is_ours, hosts)))
        if is_foreign_host or len(hosts) > 1:
            return HTTPStatus.FORBIDDEN, "Host header not allowed"
        # What a WebSocket receives, unlike the answer of a GET, any page may read.
        if scope["type"] == "http" and scope["method"] in _SAFE_METHODS:
            return None
        origin = headers.get("origin")
        is_own = _host_of(origin) in [host.lower() for host in hosts if host]
        is_foreign = origin is not None and not is_own and not self._is_known(origin)
        if is_foreign or (origin is None and headers.get("sec-fetch-site") == "cross-site"):
            return HTTPStatus.FORBIDDEN, "origin not allowed (see TAMPU_ORIGINS)"
        return None

    def _is_known(self, origin: str) -> bool:
        return origin in self._origins or _ORIGIN.fullmatch(origin) is not None

    def _is_ours(self, header: str) -> bool:
        if not header:
            return True
        name = host_name(header)
        if name is None:
            return False
        if is_loopback(name) or name in self._names:
            return True
        # An untrusted name server may resolve any name to this machine.
        return not self._is_local and ip_address(name) is not None
