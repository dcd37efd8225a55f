"""API keys: keys for using models, and keys that also allow changing the store."""

from __future__ import annotations

import hashlib
import hmac
from collections.abc import Sequence
from http import HTTPStatus

from starlette.datastructures import Headers
from starlette.routing import Match
from starlette.routing import Route as Matcher
from starlette.types import ASGIApp, Receive, Scope, Send

from tampu.server.http_response import error_response
from tampu.server.routes import Access, Route

_MAX_KEY_LENGTH = 4096
_REFUSED = {
    HTTPStatus.UNAUTHORIZED: "an API key is required: send Authorization: Bearer KEY",
    HTTPStatus.FORBIDDEN: "this API key does not allow managing models",
}


class APIKeyMiddleware:
    """Middleware: answers 401 without a valid key, and 403 without permission.

    The body of a request that is refused is not read. Only hashes of the keys are kept, and all of
    them are compared each time, so that timing reveals nothing.
    """

    def __init__(
        self, app: ASGIApp, routes: Sequence[Route], use: Sequence[str], manage: Sequence[str]
    ) -> None:
        """Protect these routes; a key for managing models may also use them."""
        self._app = app
        self._use = [_hash(key) for key in use]
        self._manage = [_hash(key) for key in manage]
        self._routes = [
            (Matcher(route.path, route.endpoint, methods=list(route.methods)), route.access)
            for route in routes
        ]

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Pass a request on, or refuse it."""
        if scope["type"] == "http" and (self._use or self._manage):
            status = self._status(scope)
            if status is not None:
                headers, message = {"connection": "close"}, _REFUSED[status]
                if status == HTTPStatus.UNAUTHORIZED:
                    headers["www-authenticate"] = "Bearer"
                await error_response(scope["path"], status, message, headers)(scope, receive, send)
                return
        await self._app(scope, receive, send)

    def _status(self, scope: Scope) -> HTTPStatus | None:
        access = next((a for r, a in self._routes if r.matches(scope)[0] is Match.FULL), Access.USE)
        if access is Access.OPEN:
            return None
        given = [_hash(key) for key in request_keys(Headers(scope=scope))]
        may_use = _any_same(given, [*self._use, *self._manage])
        may_manage = _any_same(given, self._manage)
        if len(given) != 1 or not may_use:
            return HTTPStatus.UNAUTHORIZED
        return HTTPStatus.FORBIDDEN if access is Access.MANAGE and not may_manage else None


def request_keys(headers: Headers) -> list[str]:
    """Return the distinct keys of a request; none if one of them is malformed."""
    keys = headers.getlist("x-api-key")
    for value in headers.getlist("authorization"):
        scheme, _, key = value.partition(" ")
        keys.append(key.strip() if scheme.lower() == "bearer" else "")
    found = list(dict.fromkeys(keys))
    return found if all(0 < len(key) <= _MAX_KEY_LENGTH for key in found) else []


def _any_same(given: Sequence[bytes], known: Sequence[bytes]) -> bool:
    same = [hmac.compare_digest(one, other) for one in given for other in known]
    return any(same)


def _hash(key: str) -> bytes:
    return hashlib.sha256(key.encode("utf-8", "surrogateescape")).digest()
