"""Responses: a stream of events, or one object; and errors.

The work starts when the response is sent, so an error before the first event still sets the
status. It is cancelled when the client disconnects.
"""

from __future__ import annotations

import asyncio
import json
import logging
import re
from abc import abstractmethod
from collections.abc import AsyncGenerator, Awaitable, Callable, Iterator, Mapping, Sequence
from contextlib import aclosing
from http import HTTPStatus
from typing import Generic, Protocol, TypeVar

import msgspec
from starlette.responses import Response
from starlette.types import Message, Receive, Scope, Send

from tampu.errors import ContextLengthError, RequestError, TampuError
from tampu.server.front.errors import (
    BusyError,
    add_counts,
    code_of,
    error_body,
    param_of,
    public_message,
    status_of,
)
from tampu.server.front.logs import ERROR
from tampu.text import valid_text

logger = logging.getLogger(__name__)

SSE = "text/event-stream"
WARNING = "warning"
SHORT = "tampu.short"  # in a request's scope: its path was written without `/v1`
FIELDS = "tampu.fields"  # in a request's scope: the names of the fields of its body
WARNINGS = "tampu.warnings"  # in a request's scope: those of reading its body
IN_PROCESS = "tampu.in_process"  # in a request's scope: the server sent it, so no client leaves
KEEP_ALIVE_COMMENT_SECONDS = 15.0
# Keeps proxies from closing a stream as idle.
_UNQUOTABLE = re.compile(r'[^ -~]|["\\]')
_KEEP_ALIVE_COMMENT = b": more will come\n\n"

T = TypeVar("T")
Item = TypeVar("Item", contravariant=True)


class Writer(Protocol[Item]):
    """Writes events in the format of one API."""

    @property
    def media_type(self) -> str:
        """The content type of a stream."""

    def write(self, event: Item) -> bytes:
        """Return the bytes of an event; they may be empty."""

    def end(self) -> bytes:
        """Return the end of a complete stream."""

    def fail(self, error: TampuError) -> bytes:
        """Return the end of a stream that failed."""

    def whole(self, events: Sequence[Item]) -> object:
        """Return all events as one object."""


class JSONResponse(Response):
    """One JSON object."""

    media_type = "application/json; charset=utf-8"

    def render(self, content: object) -> bytes:
        """Return an object as JSON."""
        return encoded_json(content)


class PartsResponse(Response):
    """A JSON text in parts: a long one would keep the event loop busy while it is sent."""

    media_type = JSONResponse.media_type

    def __init__(self, parts: Iterator[bytes]) -> None:
        """Send these parts, none of them empty; each is made on a thread."""
        super().__init__()
        self._parts = parts

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:  # noqa: ARG002
        """Send the response."""
        headers = [(b"content-type", self.media_type.encode())]
        await send({"type": "http.response.start", "status": HTTPStatus.OK, "headers": headers})
        while part := await asyncio.to_thread(next, self._parts, b""):
            await send({"type": "http.response.body", "body": part, "more_body": True})
        await send({"type": "http.response.body", "body": b"", "more_body": False})


def json_response(parts: Iterator[bytes], *, is_long: bool) -> Response:
    """Return a response of a JSON text in parts; one that is not long has its length."""
    if is_long:
        return PartsResponse(parts)
    return Response(b"".join(parts), media_type=JSONResponse.media_type)


def encoded(value: object) -> msgspec.Raw:
    """Return a value encoded once, for many responses."""
    return msgspec.Raw(encoded_json(value))


def encoded_json(value: object) -> bytes:
    """Return a value as JSON; bytes of paths that are not UTF-8 become U+FFFD."""
    try:
        return msgspec.json.encode(value)
    except UnicodeEncodeError:
        text = json.dumps(msgspec.to_builtins(value), ensure_ascii=False)
        return valid_text(text).encode()


def warning_headers(warnings: Sequence[str]) -> dict[str, str]:
    """Return the header with warnings, in the format of RFC 7234; none without any."""
    shown = ['299 tampu "{}"'.format(_UNQUOTABLE.sub("?", warning)) for warning in warnings]
    return {WARNING: ", ".join(shown)} if shown else {}


class WarnedResponse(Response):
    """A response with more warnings in its header."""

    def __init__(self, response: Response, warnings: Sequence[str]) -> None:
        """Send this response with these too."""
        super().__init__()
        self._response = response
        self._more = [(n.encode(), v.encode()) for n, v in warning_headers(warnings).items()]

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Send it."""

        async def send_more(message: Message) -> None:
            if message["type"] == "http.response.start":
                message["headers"] = [*message["headers"], *self._more]
            await send(message)

        await self._response(scope, receive, send_more)


def error_response(
    path: str,
    status: int,
    message: str,
    headers: Mapping[str, str] | None = None,
    code: str | None = None,
    param: str | None = None,
) -> JSONResponse:
    """Return an error response in the format of the path's API; `code` and `param` are OpenAI's."""
    return JSONResponse(error_body(path, status, message, code, param), status, headers)


def exception_response(error: TampuError, scope: Scope) -> JSONResponse:
    """Return the response to an exception of a request, and log it."""
    status, message = log_error(error), public_message(error)
    param = param_of(message, scope.get(FIELDS, ())) if isinstance(error, RequestError) else None
    headers = {"retry-after": str(error.retry_s)} if isinstance(error, BusyError) else None
    body = error_body(scope["path"], status, message, code_of(error), param)
    if isinstance(error, ContextLengthError):
        add_counts(body, error, is_short=scope.get(SHORT, False))
    return JSONResponse(body, status, headers)


def log_error(error: TampuError) -> int:
    """Log an error of a request, and return its status."""
    status = status_of(error)
    logger.log(logging.ERROR if status >= 500 else logging.INFO, "%d: %s", status, error)
    return status


class _CancellableResponse(Response):
    """A response whose work is cancelled when the client disconnects."""

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Send the response, until it is complete or the client disconnects."""
        if scope.get(IN_PROCESS, False):
            await self.send_all(scope, receive, send)
            return
        working = asyncio.ensure_future(self.send_all(scope, receive, send))
        leaving = asyncio.create_task(_disconnected(receive))
        try:
            await asyncio.wait({working, leaving}, return_when=asyncio.FIRST_COMPLETED)
        finally:
            for task in (working, leaving):
                task.cancel()
            await asyncio.wait({working, leaving})
        if not working.cancelled():
            working.result()

    @abstractmethod
    async def send_all(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Do the work and send the response."""


class EventsResponse(_CancellableResponse, Generic[T]):
    """The events of a generator, in a writer's format: streamed, or as one object."""

    def __init__(
        self,
        events: AsyncGenerator[T, None],
        writer: Writer[T],
        *,
        is_streaming: bool,
        warnings: Sequence[str] = (),
        warnings_of: Callable[[T], Sequence[str]] = lambda _: (),
    ) -> None:
        """Respond with these events; the generator is closed at the end.

        The headers have the warnings, and those of the events: of all, or in a stream of those up
        to the first that is written.
        """
        super().__init__()
        self._events = events
        self._writer = writer
        self._is_streaming = is_streaming
        self._is_silent = True
        self._warnings_of = warnings_of
        self._warnings = [*warnings]

    async def send_all(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Send the events; an error before the first one sets the status."""
        async with aclosing(self._events) as events:
            try:
                if not self._is_streaming:
                    found = [event async for event in events]
                    for event in found:
                        self._warnings += self._warnings_of(event)
                    whole = await self.whole(found)
                    response = JSONResponse(whole, headers=warning_headers(self._warnings))
                    await response(scope, receive, send)
                    return
                first = await self._first()
            except TampuError as error:
                await exception_response(error, scope)(scope, receive, send)
                return
            await self._stream(first, scope, send)

    async def written(self, event: T) -> bytes:
        """Return the bytes of an event of a stream."""
        return self._writer.write(event)

    async def whole(self, events: Sequence[T]) -> object:
        """Return all events as one object."""
        return self._writer.whole(events)

    async def _first(self) -> bytes:
        """Return the first bytes of a stream; errors before them set the status."""
        async for event in self._events:
            self._warnings += self._warnings_of(event)
            if words := await self.written(event):
                return words
        return b""

    async def _stream(self, first: bytes, scope: Scope, send: Send) -> None:
        media_type = self._writer.media_type.encode()
        headers = [(b"content-type", media_type), (b"cache-control", b"no-cache")]
        shown = warning_headers(self._warnings)
        headers += [(name.encode(), value.encode()) for name, value in shown.items()]
        await send({"type": "http.response.start", "status": HTTPStatus.OK, "headers": headers})
        reminding = asyncio.create_task(self._send_keep_alives(send))
        try:
            await self._write(send, first)
            async for event in self._events:
                await self._write(send, await self.written(event))
            await self._write(send, self._writer.end())
        except TampuError as error:
            scope[ERROR] = f"{log_error(error)}: {error}"
            await self._write(send, self._writer.fail(error))
        finally:
            reminding.cancel()
        await send({"type": "http.response.body", "body": b"", "more_body": False})

    async def _write(self, send: Send, body: bytes) -> None:
        """Send some bytes; the connection drops a client that does not read them."""
        if body:
            self._is_silent = False
            await send({"type": "http.response.body", "body": body, "more_body": True})

    async def _send_keep_alives(self, send: Send) -> None:
        """Send a comment whenever the stream was silent for a while."""
        while self._writer.media_type == SSE:
            self._is_silent = True
            await asyncio.sleep(KEEP_ALIVE_COMMENT_SECONDS)
            if self._is_silent:
                await self._write(send, _KEEP_ALIVE_COMMENT)


class TaskResponse(_CancellableResponse):
    """The result of a task as JSON."""

    def __init__(self, work: Awaitable[object]) -> None:
        """Respond with the result of `work`: a response, or what is sent as JSON."""
        super().__init__()
        self._work = work

    async def send_all(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Send the result or the error."""
        try:
            done = await self._work
            answer = done if isinstance(done, Response) else JSONResponse(done)
        except TampuError as error:
            answer = exception_response(error, scope)
        await answer(scope, receive, send)


async def _disconnected(receive: Receive) -> None:
    while (await receive())["type"] != "http.disconnect":
        pass


def named_event(value: Mapping[str, object]) -> bytes:
    """Return an object as a server-sent event under the name of its type."""
    return b"event: %s\ndata: %s\n\n" % (str(value["type"]).encode(), msgspec.json.encode(value))
