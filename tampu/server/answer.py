"""Answers: lines of JSON as they come, or one object; and what to do when something goes wrong.

An answer begins to work only when it is sent, so its errors before the first line still have a
status of their own. It ends when the client goes away.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncGenerator, Callable, Sequence
from contextlib import aclosing
from http import HTTPStatus
from typing import Generic, TypeVar

import msgspec
from starlette.responses import Response
from starlette.types import Receive, Scope, Send

from tampu.errors import TampuError
from tampu.server.errors import BusyError, public_message, status_of

logger = logging.getLogger(__name__)

NDJSON = "application/x-ndjson"
JSON = "application/json; charset=utf-8"
WRITE_SECONDS = 60.0
RETRY_SECONDS = "5"

Line = TypeVar("Line", bound=msgspec.Struct)


class JSONAnswer(Response):
    """One JSON object."""

    def __init__(self, value: object, status: int = HTTPStatus.OK) -> None:
        super().__init__(msgspec.json.encode(value), status)
        self.headers["content-type"] = JSON


def error_answer(error: TampuError) -> JSONAnswer:
    """Return the answer that says what went wrong."""
    status = status_of(error)
    logger.log(logging.ERROR if status >= 500 else logging.INFO, "%d: %s", status, error)
    answer = JSONAnswer({"error": public_message(error)}, status)
    if isinstance(error, BusyError):
        answer.headers["retry-after"] = RETRY_SECONDS
    return answer


class LinesAnswer(Response, Generic[Line]):
    """The lines of a generator: streamed one by one, or joined into one object."""

    def __init__(
        self, lines: AsyncGenerator[Line, None], join: Callable[[Sequence[Line]], Line] | None
    ) -> None:
        """Send the lines as they come, or joined if `join` is given."""
        super().__init__()
        self._lines = lines
        self._join = join

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Send the answer, until it is complete or the client is gone."""
        sending = asyncio.create_task(self._send(scope, receive, send))
        leaving = asyncio.create_task(_disconnected(receive))
        try:
            await asyncio.wait({sending, leaving}, return_when=asyncio.FIRST_COMPLETED)
        finally:
            for task in (sending, leaving):
                task.cancel()
            await asyncio.wait({sending, leaving})
        if not sending.cancelled():
            sending.result()

    async def _send(self, scope: Scope, receive: Receive, send: Send) -> None:
        async with aclosing(self._lines) as lines:
            try:
                first = [line] if (line := await anext(lines, None)) is not None else []
                if self._join is not None:
                    rest = [line async for line in lines]
                    await JSONAnswer(self._join([*first, *rest]))(scope, receive, send)
                    return
            except TampuError as error:
                await error_answer(error)(scope, receive, send)
                return
            await self._stream(first, lines, send)

    async def _stream(
        self, first: Sequence[Line], lines: AsyncGenerator[Line, None], send: Send
    ) -> None:
        headers = [(b"content-type", NDJSON.encode())]
        await send({"type": "http.response.start", "status": HTTPStatus.OK, "headers": headers})
        try:
            for line in first:
                await _write(send, line)
            async for line in lines:
                await _write(send, line)
        except TampuError as error:
            logger.error("the answer broke off: %s", error)
            await _write(send, {"error": public_message(error)})
        await send({"type": "http.response.body", "body": b"", "more_body": False})


async def _write(send: Send, line: object) -> None:
    """Send one line; a client that takes none for a minute is given up."""
    body = msgspec.json.encode(line) + b"\n"
    async with asyncio.timeout(WRITE_SECONDS):
        await send({"type": "http.response.body", "body": body, "more_body": True})


async def _disconnected(receive: Receive) -> None:
    while (await receive())["type"] != "http.disconnect":
        pass
