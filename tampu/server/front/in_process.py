"""Requests that the server makes to its own routes: the same handlers as over HTTP."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import dataclass
from http import HTTPStatus

from starlette.requests import Request
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from tampu.errors import TampuError
from tampu.server.front.http_response import IN_PROCESS, exception_response
from tampu.server.front.routes import Endpoint


@dataclass(frozen=True, slots=True)
class Answer:
    """The response to a request."""

    status: int
    body: bytes


async def ask_route(endpoint: Endpoint, path: str, body: bytes) -> Answer:
    """Return the response of a route to a POST request with a JSON body."""

    async def app(scope: Scope, receive: Receive, send: Send) -> None:
        try:
            response = await endpoint(Request(scope, receive))
        except TampuError as error:
            response = exception_response(error, scope)
        await response(scope, receive, send)

    return await ask_app(app, "POST", path, body)


async def ask_app(
    app: ASGIApp,
    method: str,
    path: str,
    body: bytes,
    content_type: str = "application/json",
    written: Callable[[bytes], None] | None = None,
) -> Answer:
    """Return the response of an application to a request from this machine.

    `written` is called with each part of the body of a successful response, which the answer
    then does not have.
    """
    unread = [body]
    answer, status = bytearray(), 0

    async def receive() -> Message:
        if unread:
            return {"type": "http.request", "body": unread.pop(), "more_body": False}
        await asyncio.Event().wait()  # the client never disconnects
        raise AssertionError

    async def send(message: Message) -> None:
        nonlocal answer, status
        if message["type"] == "http.response.start":
            status = message["status"]
        elif written is not None and status == HTTPStatus.OK:
            written(message.get("body", b""))
        else:
            answer += message.get("body", b"")

    scope = {
        "type": "http",
        IN_PROCESS: True,
        "http_version": "1.1",
        "method": method,
        "scheme": "http",
        "path": path,
        "raw_path": path.encode(),
        "query_string": b"",
        "headers": [
            (b"host", b"localhost"),
            (b"content-type", content_type.encode()),
            (b"content-length", str(len(body)).encode()),
        ],
    }
    await app(scope, receive, send)
    return Answer(status, bytes(answer))
