"""Responses: a stream of events, or one object; and errors.

The work starts when the response is sent, so an error before the first event still sets the
status. It is cancelled when the client disconnects.
"""

from __future__ import annotations

import asyncio
import logging
from abc import abstractmethod
from collections.abc import AsyncGenerator, Awaitable, Mapping, Sequence
from contextlib import aclosing
from http import HTTPStatus
from typing import Generic, Protocol, TypeVar

import msgspec
from starlette.responses import Response
from starlette.types import Receive, Scope, Send

from tampu.errors import TampuError
from tampu.server.errors import BusyError, error_body, public_message, status_of

logger = logging.getLogger(__name__)

SSE = "text/event-stream"
KEEP_ALIVE_COMMENT_SECONDS = 15.0
# Keeps proxies from closing a stream as idle.
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
        return msgspec.json.encode(content)


def encoded(value: object) -> msgspec.Raw:
    """Return a value encoded once, for many responses."""
    return msgspec.Raw(msgspec.json.encode(value))


def error_response(
    path: str, status: int, message: str, headers: Mapping[str, str] | None = None
) -> JSONResponse:
    """Return an error response in the format of the path's API."""
    return JSONResponse(error_body(path, status, message), status, headers)


def exception_response(error: TampuError, path: str) -> JSONResponse:
    """Return the response to an exception, and log it."""
    status = status_of(error)
    logger.log(logging.ERROR if status >= 500 else logging.INFO, "%d: %s", status, error)
    headers = {"retry-after": str(error.retry_s)} if isinstance(error, BusyError) else None
    return error_response(path, status, public_message(error), headers)


class _CancellableResponse(Response):
    """A response whose work is cancelled when the client disconnects."""

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Send the response, until it is complete or the client disconnects."""
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
        self, events: AsyncGenerator[T, None], writer: Writer[T], *, is_streaming: bool
    ) -> None:
        """Respond with these events; the generator is closed at the end."""
        super().__init__()
        self._events = events
        self._writer = writer
        self._is_streaming = is_streaming
        self._is_silent = True

    async def send_all(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Send the events; an error before the first one sets the status."""
        async with aclosing(self._events) as events:
            try:
                if not self._is_streaming:
                    whole = self._writer.whole([event async for event in events])
                    await JSONResponse(whole)(scope, receive, send)
                    return
                first = await self._first()
            except TampuError as error:
                await exception_response(error, scope["path"])(scope, receive, send)
                return
            await self._stream(first, send)

    async def _first(self) -> bytes:
        """Return the first bytes of a stream; errors before them set the status."""
        async for event in self._events:
            if words := self._writer.write(event):
                return words
        return b""

    async def _stream(self, first: bytes, send: Send) -> None:
        media_type = self._writer.media_type.encode()
        headers = [(b"content-type", media_type), (b"cache-control", b"no-cache")]
        await send({"type": "http.response.start", "status": HTTPStatus.OK, "headers": headers})
        reminding = asyncio.create_task(self._send_keep_alives(send))
        try:
            await self._write(send, first)
            async for event in self._events:
                await self._write(send, self._writer.write(event))
            await self._write(send, self._writer.end())
        except TampuError as error:
            logger.error("response aborted: %s", error)
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
        """Respond with the result of `work`."""
        super().__init__()
        self._work = work

    async def send_all(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Send the result or the error."""
        try:
            answer = JSONResponse(await self._work)
        except TampuError as error:
            answer = exception_response(error, scope["path"])
        await answer(scope, receive, send)


async def _disconnected(receive: Receive) -> None:
    while (await receive())["type"] != "http.disconnect":
        pass
