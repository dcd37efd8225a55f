"""API keys: keys for using models, and keys that also allow changing the store."""

from __future__ import annotations

import hmac
from collections.abc import Sequence
from http import HTTPStatus

from starlette.datastructures import Headers
from starlette.responses import Response
from starlette.routing import Match
from starlette.routing import Route as Matcher
from starlette.types import ASGIApp, Receive, Scope, Send

from tampu.server.front.caller import Caller, calling
from tampu.server.front.errors import RateLimitError
from tampu.server.front.http_response import error_response, exception_response
from tampu.server.front.keys import MAX_KEY_LENGTH, Key, digest_of
from tampu.server.front.limiter import Limiter
from tampu.server.front.logs import REQUESTS
from tampu.server.front.routes import Access, Route

_KEY = "openai-insecure-api-key."
_REQUIRED = "an API key is required: send Authorization: Bearer KEY"
_WRONG = "the API key of this request is not valid (a request may have one key only)"
_NO_MANAGER = "this API key does not allow managing models"


class APIKeyMiddleware:
    """Middleware: answers 401 without a valid key, 403 without permission, 429 over a limit.

    The body of a request that is refused is not read. Only hashes of the keys are kept, and all of
    them are compared each time, so that timing reveals nothing.
    """

    def __init__(
        self, app: ASGIApp, routes: Sequence[Route], keys: Sequence[Key], limiter: Limiter
    ) -> None:
        """Protect these routes; without any keys everybody may do everything."""
        self._app = app
        self._keys = keys
        self._limiter = limiter
        self._routes = [
            (Matcher(route.path, route.endpoint, methods=list(route.methods)), route.access)
            for route in routes
        ]

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Pass a request on, or refuse it."""
        if scope["type"] not in REQUESTS or not self._keys:
            await self._app(scope, receive, send)
            return
        asked = scope if scope["type"] == "http" else {**scope, "type": "http", "method": "GET"}
        access = next((a for r, a in self._routes if r.matches(asked)[0] is Match.FULL), Access.USE)
        caller = Caller(may_manage=False) if access is Access.OPEN else self._caller(scope)
        status = _refusal(caller, access)
        if caller is None or status is not None:
            status = status or HTTPStatus.UNAUTHORIZED
            await _refused(scope, status)(scope, receive, send)
            return
        try:
            if scope["type"] == "websocket" or scope["method"] == "POST":
                self._limiter.admit(caller)
        except RateLimitError as error:
            response = exception_response(error, scope)
            response.headers["connection"] = "close"
            await response(scope, receive, send)
            return
        with calling(caller):
            await self._app(scope, receive, send)

    def _caller(self, scope: Scope) -> Caller | None:
        """Return who has the key of a request; None: it has none that is valid, or several."""
        given = [digest_of(key) for key in request_keys(Headers(scope=scope))]
        found = [
            key.caller
            for key in self._keys
            if [True for one in given if hmac.compare_digest(one, key.digest)]
        ]
        if len(given) != 1 or not found:
            return None
        return next((caller for caller in found if caller.may_manage), found[0])


def _refusal(caller: Caller | None, access: Access) -> HTTPStatus | None:
    if access is Access.OPEN:
        return None
    if caller is None:
        return HTTPStatus.UNAUTHORIZED
    is_refused = access is Access.MANAGE and not caller.may_manage
    return HTTPStatus.FORBIDDEN if is_refused else None


def _refused(scope: Scope, status: HTTPStatus) -> Response:
    """Return the response to a request without a valid key, or without permission."""
    headers, code, message = {"connection": "close"}, None, _NO_MANAGER
    if status == HTTPStatus.UNAUTHORIZED:
        headers["www-authenticate"] = "Bearer"
        names = Headers(scope=scope)
        has_key = "authorization" in names or "x-api-key" in names
        code, message = ("invalid_api_key", _WRONG) if has_key else (None, _REQUIRED)
    return error_response(scope["path"], status, message, headers, code)


def request_keys(headers: Headers) -> list[str]:
    """Return the distinct keys of a request; none if one of them is malformed.

    A browser's WebSocket has no header for it: OpenAI's clients name it among the subprotocols.
    """
    keys = headers.getlist("x-api-key")
    for value in headers.getlist("authorization"):
        scheme, _, key = value.partition(" ")
        keys.append(key.strip() if scheme.lower() == "bearer" else "")
    for value in headers.getlist("sec-websocket-protocol"):
        names = (name.strip() for name in value.split(","))
        keys += [name.removeprefix(_KEY) for name in names if name.startswith(_KEY)]
    found = list(dict.fromkeys(keys))
    return found if all(0 < len(key) <= MAX_KEY_LENGTH for key in found) else []
