"""Connections and the loop that serves them: uvicorn's, with what it lacks.

A client that takes too long to say what it wants, or to take what it is told, is let go. What two
readers of HTTP could understand in two ways is refused. Who comes when there are too many hears
when to come again. Of the requests that come at once, those that ask for work begin a few at a
time, so that the others are answered between them; and a server that has nothing to do wakes once
a second, not ten times.
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

from tampu.server.http_response import error_response
from tampu.server.trusted_host import MAX_HEADER_BYTES

HEADER_SECONDS = 10.0
WRITE_SECONDS = 60.0
MAX_CONNECTIONS = 2_048
RETRY_SECONDS = 5
_BODY_SECONDS = 5.0
ACCEPTED_AT_ONCE = 16
_BEGIN_AT_ONCE = 4
_WORK = b"POST "
_TICK_SECONDS = 1.0
# In a request's first lines: a line that ends without CR, and one that goes on in the next.
_AMBIGUOUS = re.compile(rb"(?<!\r)\n|\n[ \t]")


class StrictReader(h11.Connection):
    """Reads requests; refuses what h11 lets pass though others may read it in another way."""

    def next_event(self) -> h11.Event | type[h11.NEED_DATA] | type[h11.PAUSED]:
        """Return what has come.

        Raises:
            h11.RemoteProtocolError: for what is no HTTP, or may be read in two ways.
        """
        before = self.trailing_data[0] if self.their_state is h11.IDLE else b""
        event = super().next_event()
        if isinstance(event, h11.Request):
            first_lines = before[: len(before) - len(self.trailing_data[0])]
            if _AMBIGUOUS.search(first_lines):
                raise h11.RemoteProtocolError("a line that goes on or ends without CR")
        return event


class StartThrottle:
    """Lets requests begin a few at a time; between them the event loop does all else there is."""

    def __init__(self) -> None:
        self._waiting: deque[Callable[[], None]] = deque()

    def add(self, begin: Callable[[], None]) -> None:
        """Have a request begin when those before it have."""
        if not self._waiting:
            asyncio.get_running_loop().call_soon(self._take)
        self._waiting.append(begin)

    def _take(self) -> None:
        for _ in range(min(_BEGIN_AT_ONCE, len(self._waiting))):
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

    A request's first lines must be complete within ten seconds, and so must be what is left of its
    body when it has been answered already. Of an answer that is behind the client must take
    something each minute.
    """

    _header_timer: asyncio.TimerHandle | None = None
    _write_timer: asyncio.TimerHandle | None = None

    def __init__(self, config: uvicorn.Config, server_state: SharedState, **more: Any) -> None:
        super().__init__(config, server_state, **more)
        self.conn = StrictReader(h11.SERVER, MAX_HEADER_BYTES)
        self._turns = server_state.turns

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        """Begin; the client has to speak soon."""
        super().connection_made(transport)
        if len(self.connections) > MAX_CONNECTIONS:
            self.app = too_many_connections
        self._watch_headers()

    def connection_lost(self, exc: Exception | None) -> None:
        """End."""
        self._stop_watching()
        self._stop_write_timer()
        super().connection_lost(exc)

    def pause_writing(self) -> None:
        """Write no more: the client is behind, and must take something soon."""
        super().pause_writing()
        self._expect_less(self.transport.get_write_buffer_size())

    def resume_writing(self) -> None:
        """Write again: the client has taken most of what there was."""
        self._stop_write_timer()
        super().resume_writing()

    def data_received(self, data: bytes) -> None:
        """Take what the client has sent; where it asks for work, when it is its turn."""
        if self.conn.their_state is not h11.IDLE or not data.startswith(_WORK):
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
        except h11.LocalProtocolError:  # a body that breaks off in disorder after its answer began
            self.transport.close()
            return
        if self._is_expected_to_speak():
            self._watch_headers()
        else:
            self._stop_watching()

    def on_response_complete(self) -> None:
        """Go on to the next request; what is left of this one must come soon."""
        super().on_response_complete()
        if self._is_expected_to_speak() and self.conn.their_state is h11.SEND_BODY:
            self._watch_headers()

    def _is_expected_to_speak(self) -> bool:
        """Whether a request has begun that is not complete, or that nobody reads any more."""
        if self.conn.their_state is h11.SEND_BODY:
            return self.conn.our_state is h11.DONE
        return self.conn.their_state is h11.IDLE

    def _expect_less(self, size: int) -> None:
        """Give the client up unless there is less than this to be written when it is time."""

        def look() -> None:
            left = self.transport.get_write_buffer_size()
            if left < size:
                self._expect_less(left)
            else:
                self.transport.abort()

        self._write_timer = self.loop.call_later(WRITE_SECONDS, look)

    def _stop_write_timer(self) -> None:
        if self._write_timer is not None:
            self._write_timer.cancel()
            self._write_timer = None

    def send_400_response(self, msg: str) -> None:
        """Refuse what is no HTTP; who still answers hears that the client is gone."""
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
    """Answer that there are too many connections, once the request has been read."""
    with suppress(TimeoutError):
        async with asyncio.timeout(_BODY_SECONDS):
            while (await receive()).get("more_body"):
                pass
    message = "the server has too many connections"
    answer = error_response(scope["path"], HTTPStatus.SERVICE_UNAVAILABLE, message)
    answer.headers["retry-after"] = str(RETRY_SECONDS)
    answer.headers["connection"] = "close"
    await answer(scope, receive, send)


class QuietServer(uvicorn.Server):
    """A server that sleeps when there is nothing to do, and tells when it begins to end."""

    def __init__(self, config: uvicorn.Config, ending: Callable[[], None]) -> None:
        """Serve; `ending` is called when a signal asks to end, before connections are closed."""
        super().__init__(config)
        self.server_state = SharedState()
        self._ending = ending
        self._wake: Callable[[], object] = lambda: None

    def handle_exit(self, sig: int, frame: FrameType | None) -> None:
        """Note that a signal has come; the second one of any kind means now."""
        self.force_exit = self.should_exit
        super().handle_exit(sig, frame)
        self.stop()

    def stop(self) -> None:
        """Begin to end."""
        self.should_exit = True
        self._ending()
        self._wake()

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        """Begin to take connections: a few at a time of those that wait."""
        await super().startup(sockets)
        for listener in sockets or []:
            listener.listen(2 * MAX_CONNECTIONS)

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        """End; uvicorn leaves out the application's part when it is in a hurry."""
        await super().shutdown(sockets)
        if self.force_exit:
            await self.lifespan.shutdown()

    async def main_loop(self) -> None:
        """Wait until it is time to end."""
        loop, asked = asyncio.get_running_loop(), asyncio.Event()
        self._wake = lambda: loop.call_soon_threadsafe(asked.set)
        while not await self.on_tick(0):
            with suppress(TimeoutError):
                async with asyncio.timeout(_TICK_SECONDS):
                    await asked.wait()
