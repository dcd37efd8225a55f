"""WebSockets whose clients read nothing for a while."""

from __future__ import annotations

import asyncio
from typing import Any

from starlette.applications import Starlette
from starlette.routing import WebSocketRoute
from starlette.websockets import WebSocket
from support import virtual_time
from websockets.frames import Opcode

from tampu.server.front.connection import SharedState
from tampu.server.serve import PING_SECONDS, http_server

HANDSHAKE = (
    b"GET / HTTP/1.1\r\nHost: localhost\r\nUpgrade: websocket\r\nConnection: Upgrade\r\n"
    b"Sec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==\r\nSec-WebSocket-Version: 13\r\n\r\n"
)
PING = 0x80 | Opcode.PING  # a whole frame
HOUR_S = 3600


class SilentClient(asyncio.Transport):
    """A connection whose other end takes what it is sent, and sends nothing."""

    def __init__(self) -> None:
        super().__init__()
        self.sent: list[bytes] = []
        self.is_closed = False

    def write(self, data: Any) -> None:
        self.sent.append(bytes(data))

    def is_closing(self) -> bool:
        return self.is_closed

    def close(self) -> None:
        self.is_closed = True

    def pause_reading(self) -> None:
        """Nothing comes."""

    def resume_reading(self) -> None:
        """Nothing comes."""


async def echo(connected: WebSocket) -> None:
    await connected.accept()
    await connected.send_text(await connected.receive_text())


def test_a_client_that_answers_no_ping_for_an_hour_keeps_its_connection() -> None:
    async def work() -> None:
        server = http_server(Starlette(routes=[WebSocketRoute("/", echo)]), drain_s=1.0)
        protocol_class: Any = server.config.ws_protocol_class
        protocol = protocol_class(server.config, SharedState(), {})
        client = SilentClient()
        protocol.connection_made(client)
        protocol.data_received(HANDSHAKE)
        await virtual_time.pass_time(HOUR_S)
        assert client.sent[0].startswith(b"HTTP/1.1 101 ")
        frames = client.sent[1:]
        assert [frame[0] for frame in frames] == [PING] * int(HOUR_S // PING_SECONDS)
        assert not client.is_closed
        protocol.data_received(b"\x81\x82\0\0\0\0hi")  # a text, masked with zeros
        await virtual_time.pass_time(1)
        assert client.sent[-1] == b"\x81\x02hi"

    virtual_time.run(work())
