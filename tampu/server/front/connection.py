"""Connections and the loop that serves them: uvicorn's, with what it lacks.

Disconnects clients that are too slow to send a request or read a response. Rejects ambiguous HTTP
(request smuggling). Answers 503 with Retry-After above the connection limit. Of simultaneous
requests, POSTs start a few at a time, so that others are answered between them. An idle server
wakes once a second, not ten times.
"""

from __future__ import annotations

import asyncio
import re
import socket
from collections import deque
from collections.abc import Callable
from contextlib import suppress
from http import HTTPStatus
from types import FrameType
from typing import Any

import h11
import uvicorn
from starlette.types import Receive, Scope, Send
from uvicorn.protocols.http.h11_impl import H11Protocol
from uvicorn.server import ServerState

from tampu.server.front.http_response import error_response
from tampu.server.front.trusted_host import MAX_HEADER_BYTES

HEADER_SECONDS = 10.0
WRITE_SECONDS = 60.0
MAX_CONNECTIONS = 2_048
MAX_MESSAGE_BYTES = 24 << 20
"""Of a WebSocket: OpenAI's limit of 15 MiB of sound is 20 MiB in base64."""

RETRY_SECONDS = 5
_BODY_SECONDS = 5.0
ACCEPTED_AT_ONCE = 16
_STARTED_AT_ONCE = 4
_POST = b"POST "
_TICK_SECONDS = 1.0
# In a request's head: a line without CR, and a folded line.
_AMBIGUOUS = re.compile(rb"(?<!\r)\n|\n[ \t]")


class StrictReader(h11.Connection):
    """Reads requests; rejects what h11 accepts although other readers may parse it differently.

    Names of headers are sent as `Content-Type`: some clients compare them as they are written.
    """

    def next_event(self) -> h11.Event | type[h11.NEED_DATA] | type[h11.PAUSED]:
        """Return the next event.

        Raises:
            h11.RemoteProtocolError: for invalid or ambiguous HTTP.
        """
        before = self.trailing_data[0] if self.their_state is h11.IDLE else b""
        event = super().next_event()
        if isinstance(event, h11.Request):
            first_lines = before[: len(before) - len(self.trailing_data[0])]
            if _AMBIGUOUS.search(first_lines):
                raise h11.RemoteProtocolError("a folded line, or a line that ends without CR")
        return event

    def send_with_data_passthrough(self, event: h11.Event) -> list[bytes] | None:
        """Return the parts of an event's bytes, which `send` joins."""
        if isinstance(event, h11.Response):
            headers = [(name.title(), value) for name, value in event.headers]
            event = h11.Response(
                status_code=event.status_code, headers=headers, reason=event.reason
            )
        return super().send_with_data_passthrough(event)


class StartThrottle:
    """Starts requests a few at a time, so that the event loop serves others in between."""

    def __init__(self) -> None:
        self._waiting: deque[Callable[[], None]] = deque()

    def add(self, begin: Callable[[], None]) -> None:
        """Start a request after those added before it."""
        if not self._waiting:
            asyncio.get_running_loop().call_soon(self._take)
        self._waiting.append(begin)

    def _take(self) -> None:
        for _ in range(min(_STARTED_AT_ONCE, len(self._waiting))):
            self._waiting.popleft()()
        if self._waiting:
            asyncio.get_running_loop().call_soon(self._take)


class SharedState(ServerState):
    """What all connections of a server share."""

    def __init__(self) -> None:
        super().__init__()
        self.turns = StartThrottle()


class Connection(H11Protocol):
    """One connection.

    Its client must send a request's head within ten seconds, and the rest of a body whose response
    is already complete too; while a response is blocked it must read something each minute.
    """

    _header_timer: asyncio.TimerHandle | None = None
    _write_timer: asyncio.TimerHandle | None = None

    def __init__(self, config: uvicorn.Config, server_state: SharedState, **more: Any) -> None:
        super().__init__(config, server_state, **more)
        self.conn = StrictReader(h11.SERVER, MAX_HEADER_BYTES)
        self._turns = server_state.turns

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        """Start a connection; the client must send a request soon."""
        super().connection_made(transport)
        if len(self.connections) > MAX_CONNECTIONS:
            self.app = too_many_connections
        self._watch_headers()

    def connection_lost(self, exc: Exception | None) -> None:
        """End a connection."""
        self._stop_watching()
        self._stop_write_timer()
        super().connection_lost(exc)

    def pause_writing(self) -> None:
        """Pause writing: the client is behind, and must read something soon."""
        super().pause_writing()
        self._expect_less(self.transport.get_write_buffer_size())

    def resume_writing(self) -> None:
        """Resume writing: the client has read most of the buffer."""
        self._stop_write_timer()
        super().resume_writing()

    def data_received(self, data: bytes) -> None:
        """Handle received data; a POST waits for its turn."""
        if self.conn.their_state is not h11.IDLE or not data.startswith(_POST):
            self._take(data)
            return
        self._stop_watching()
        self.flow.pause_reading()
        self._turns.add(lambda: self._begin(data))

    def _begin(self, data: bytes) -> None:
        if not self.transport.is_closing():
            self.flow.resume_reading()
            self._take(data)

    def _take(self, data: bytes) -> None:
        try:
            super().data_received(data)
        except h11.LocalProtocolError:  # invalid data in a body whose response has started
            self.transport.close()
            return
        if self._awaits_data():
            self._watch_headers()
        else:
            self._stop_watching()

    def _should_upgrade_to_ws(self) -> bool:
        """Whether a request may become a WebSocket: one above the limit gets 503 instead."""
        return self.scope["method"] == "GET" and self.app is not too_many_connections

    def on_response_complete(self) -> None:
        """Continue with the next request; the rest of this one must arrive soon."""
        super().on_response_complete()
        if self._awaits_data() and self.conn.their_state is h11.SEND_BODY:
            self._watch_headers()

    def _awaits_data(self) -> bool:
        """Whether the client must send soon: a request, or the rest of an answered one."""
        if self.conn.their_state is h11.SEND_BODY:
            return self.conn.our_state is h11.DONE
        return self.conn.their_state is h11.IDLE

    def _expect_less(self, size: int) -> None:
        """Disconnect the client if the buffer is not smaller than this when the time is over."""

        def check() -> None:
            left = self.transport.get_write_buffer_size()
            if left < size:
                self._expect_less(left)
            else:
                self.transport.abort()

        self._write_timer = self.loop.call_later(WRITE_SECONDS, check)

    def _stop_write_timer(self) -> None:
        if self._write_timer is not None:
            self._write_timer.cancel()
            self._write_timer = None

    def send_400_response(self, msg: str) -> None:
        """Reject invalid HTTP; a handler still running sees a disconnect."""
        if self.cycle is not None:
            self.cycle.disconnected = True
            self.cycle.message_event.set()
        super().send_400_response(msg)

    def _watch_headers(self) -> None:
        if self._header_timer is None:
            self._header_timer = self.loop.call_later(HEADER_SECONDS, self._too_slow)

    def _stop_watching(self) -> None:
        if self._header_timer is not None:
            self._header_timer.cancel()
            self._header_timer = None

    def _too_slow(self) -> None:
        self._header_timer = None
        if not self.transport.is_closing():
            self.transport.close()


async def too_many_connections(scope: Scope, receive: Receive, send: Send) -> None:
    """Answer 503, once the request has been read."""
    with suppress(TimeoutError):
        async with asyncio.timeout(_BODY_SECONDS):
            while (await receive()).get("more_body"):
                pass
    message = "the server has too many connections"
    headers = {"retry-after": str(RETRY_SECONDS), "connection": "close"}
    answer = error_response(scope["path"], HTTPStatus.SERVICE_UNAVAILABLE, message, headers)
    await answer(scope, receive, send)


class QuietServer(uvicorn.Server):
    """A server that sleeps while idle, and reports when shutdown starts."""

    def __init__(self, config: uvicorn.Config, ending: Callable[[], None]) -> None:
        """Serve; `ending` is called when shutdown starts, before connections are closed."""
        super().__init__(config)
        self.server_state = SharedState()
        self._ending = ending
        self._wake: Callable[[], object] = lambda: None

    def handle_exit(self, sig: int, frame: FrameType | None) -> None:
        """Start shutdown; a second signal of any kind forces it."""
        self.force_exit = self.should_exit
        super().handle_exit(sig, frame)
        self.stop()

    def stop(self) -> None:
        """Start the shutdown."""
        self.should_exit = True
        self._ending()
        self._wake()

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        """Accept connections, a few of the pending ones at a time."""
        await super().startup(sockets)
        for listener in sockets or []:
            listener.listen(2 * MAX_CONNECTIONS)

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        """Shut down; uvicorn skips the application's part when forced."""
        await super().shutdown(sockets)
        if self.force_exit:
            await self.lifespan.shutdown()

    async def main_loop(self) -> None:
        """Wait for shutdown."""
        loop, woken = asyncio.get_running_loop(), asyncio.Event()
        self._wake = lambda: loop.call_soon_threadsafe(woken.set)
        while not await self.on_tick(0):
            with suppress(TimeoutError):
                async with asyncio.timeout(_TICK_SECONDS):
                    await woken.wait()
