"""Connections and the loop that serves them: uvicorn's, with three things that it lacks.

A client that takes too long to say what it wants, or to take what it is told, is let go; and a
server that has nothing to do wakes once a second, not ten times.
"""

from __future__ import annotations

import asyncio
import socket
from collections.abc import Callable
from contextlib import suppress
from types import FrameType

import h11
import uvicorn
from uvicorn.protocols.http.h11_impl import H11Protocol

HEADER_SECONDS = 10.0
WRITE_SECONDS = 60.0
_TICK_SECONDS = 1.0


class Connection(H11Protocol):
    """One connection.

    A request's first lines must be complete within ten seconds, and of an answer that is behind the
    client must take something each minute.
    """

    _header_timer: asyncio.TimerHandle | None = None
    _write_timer: asyncio.TimerHandle | None = None

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        """Begin; the client has to speak soon."""
        super().connection_made(transport)
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
        """Take what the client has sent."""
        try:
            super().data_received(data)
        except h11.LocalProtocolError:  # a body that breaks off in disorder after its answer began
            self.transport.close()
            return
        if self.conn.their_state is h11.IDLE:
            self._watch_headers()
        else:
            self._stop_watching()

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


class QuietServer(uvicorn.Server):
    """A server that sleeps when there is nothing to do, and tells when it begins to end."""

    def __init__(self, config: uvicorn.Config, ending: Callable[[], None]) -> None:
        """Serve; `ending` is called when a signal asks to end, before connections are closed."""
        super().__init__(config)
        self._ending = ending
        self._wake: Callable[[], object] = lambda: None

    def handle_exit(self, sig: int, frame: FrameType | None) -> None:
        """Note that a signal has come; the second one of any kind means now."""
        self.force_exit = self.should_exit
        super().handle_exit(sig, frame)
        self._ending()
        self._wake()

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
