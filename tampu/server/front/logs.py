"""Logs: one line per request with its id, which the client receives too; as text or JSON.

No prompts, keys or images are logged, and control characters are escaped: a log is read in
terminals.
"""

from __future__ import annotations

import logging
import re
import secrets
import time
from collections.abc import Callable
from contextvars import ContextVar
from datetime import UTC, datetime
from http import HTTPStatus

import msgspec
from starlette.datastructures import Headers, MutableHeaders
from starlette.types import ASGIApp, Message, Receive, Scope, Send

logger = logging.getLogger("tampu.access")

HEADER = "x-request-id"
ANTHROPIC_HEADER = "request-id"  # where its clients look for it
ROUTE = "tampu.route"  # in a request's scope: the path of its route
ERROR = "tampu.error"  # in a request's scope: what ended a stream whose status was sent before
REQUESTS = ("http", "websocket")
"""The types of the scopes of requests; a WebSocket begins as one."""

_GIVEN = re.compile(r"[\w.-]{1,64}", re.ASCII)
_current: ContextVar[str] = ContextVar("request_id", default="")
_STARTS = ("http.response.start", "websocket.http.response.start", "websocket.accept")


class AccessLogMiddleware:
    """Middleware: gives each request an id, logs its response, and counts it."""

    def __init__(self, app: ASGIApp, answered: Callable[[str, str, int, float], None]) -> None:
        """Report each answer: the method, the route, the status and the seconds."""
        self._app = app
        self._answered = answered

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Pass a request on, and log its outcome."""
        if scope["type"] not in REQUESTS:
            await self._app(scope, receive, send)
            return
        began_s = time.monotonic()
        number = request_id(Headers(scope=scope))
        token = _current.set(number)
        status = 499  # the client disconnected before a response

        async def sending(message: Message) -> None:
            nonlocal status
            if message["type"] in _STARTS:
                status = message.get("status", HTTPStatus.SWITCHING_PROTOCOLS)
                headers = MutableHeaders(scope=message)
                headers[HEADER] = number
                if scope["path"].startswith("/v1/messages"):
                    headers[ANTHROPIC_HEADER] = number
            await send(message)

        try:
            await self._app(scope, receive, sending)
        finally:
            seconds = time.monotonic() - began_s
            self._note(scope, status, seconds)
            _current.reset(token)

    def _note(self, scope: Scope, status: int, seconds: float) -> None:
        method = scope.get("method", "GET")
        self._answered(method, scope.get(ROUTE, "unknown"), status, seconds)
        level = logging.DEBUG if method in ("GET", "HEAD") else logging.INFO
        fields = {"method": method, "path": scope["path"][:200], "status": status}
        fields["ms"] = round(seconds * 1000, 1)
        line = "%(method)s %(path)s %(status)d %(ms).1f ms"
        if (error := scope.get(ERROR)) is not None:
            fields["error"] = error
            line += ", ended by the error %(error)s"
        logger.log(level, line, fields, extra=fields)


class TextFormatter(logging.Formatter):
    """Lines for people."""

    def __init__(self) -> None:
        super().__init__("%(asctime)s %(levelname)s %(name)s: %(message)s")

    def format(self, record: logging.LogRecord) -> str:
        """Return the line of a record, with its request's id."""
        number = _current.get()
        line = super().format(record) + (f" [{number}]" if number else "")
        return printable(line, keep="\n")


class JSONFormatter(logging.Formatter):
    """An object in each line, for programs."""

    FIELDS = ("method", "path", "status", "ms", "error")

    def format(self, record: logging.LogRecord) -> str:
        """Return the object of a record."""
        shown: dict[str, object] = {
            "time": datetime.fromtimestamp(record.created, UTC).isoformat(),
            "level": record.levelname.lower(),
            "logger": record.name,
            "message": printable(record.getMessage()),
        }
        if number := _current.get():
            shown["request_id"] = number
        shown |= {name: vars(record)[name] for name in self.FIELDS if name in vars(record)}
        if record.exc_info:
            shown["traceback"] = self.formatException(record.exc_info)
        return msgspec.json.encode(shown, enc_hook=str).decode()


def printable(text: str, keep: str = "") -> str:
    """Return a text with its control characters spelled out."""
    if text.isprintable():
        return text
    return "".join(
        letter if letter.isprintable() or letter in keep else repr(letter)[1:-1] for letter in text
    )


def request_id(headers: Headers) -> str:
    """Return the request's own id if it is valid, else a new one."""
    given = headers.get(HEADER, "")
    return given if _GIVEN.fullmatch(given) else f"req_{secrets.token_hex(12)}"


def current_request_id() -> str:
    """Return the id of the current request; empty outside of one."""
    return _current.get()
