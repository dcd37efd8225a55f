"""Clients that are slow, hasty or gone: each connection ends, and others notice nothing."""

from __future__ import annotations

import asyncio
import json
import re
import socket
import struct
from asyncio.streams import StreamReader
from contextlib import suppress
from typing import Any

import pytest
from support.waiting import PATIENCE_S, until

from tampu.server.front import body, connection
from tests.server.conftest import Site
from tests.server.front.test_raw_requests import serve, targets

HOST = "Host: localhost\r\n"
VERSION = f"GET /api/version HTTP/1.1\r\n{HOST}\r\n".encode()


def generate(prompt: str) -> bytes:
    content = json.dumps({"model": "m", "prompt": prompt})
    head = f"POST /api/generate HTTP/1.1\r\n{HOST}Content-Length: {len(content)}\r\n\r\n"
    return (head + content).encode()


async def answers_of(reader: StreamReader, count: int) -> bool:
    """Return whether so many whole answers come."""
    for _ in range(count):
        head = await reader.readuntil(b"\r\n\r\n")
        if not head.startswith(b"HTTP/1.1 200"):
            return False
        [length] = re.findall(rb"(?i)content-length: (\d+)", head)
        await reader.readexactly(int(length))
    return True


async def gauge(port: int, name: str) -> float | None:
    """Return what the server's metrics have under a name; None: nothing."""
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    writer.write(f"GET /metrics HTTP/1.1\r\n{HOST}Connection: close\r\n\r\n".encode())
    text = (await asyncio.wait_for(reader.read(), PATIENCE_S)).decode()
    writer.close()
    found = re.search(rf"^{re.escape(name)} ([0-9.]+)", text, re.MULTILINE)
    return float(found[1]) if found else None


async def is_well(port: int) -> bool:
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    writer.write(VERSION)
    well = await asyncio.wait_for(answers_of(reader, 1), PATIENCE_S)
    writer.close()
    return well


def test_a_thousand_requests_in_one_breath_are_answered_in_order(site: Site) -> None:
    async def ask(port: int) -> None:
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        writer.write(VERSION * 1_000)
        assert await asyncio.wait_for(answers_of(reader, 1_000), PATIENCE_S)
        writer.close()

    serve(site, ask)


def test_a_connection_is_used_again_and_again(site: Site) -> None:
    async def ask(port: int) -> None:
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        for _ in range(1_000):
            writer.write(VERSION)
            assert await answers_of(reader, 1)
        writer.close()

    serve(site, ask)


def test_idle_connections_do_not_block_others(site: Site) -> None:
    async def ask(port: int) -> None:
        idle = [await asyncio.open_connection("127.0.0.1", port) for _ in range(300)]
        assert await is_well(port)
        for _, writer in idle:
            writer.close()

    serve(site, ask)


def test_a_reset_in_the_middle_of_a_body_ends_that_request_alone_on_every_route(site: Site) -> None:
    async def ask(port: int) -> None:
        for method, path in targets(site):
            client = socket.create_connection(("127.0.0.1", port))
            head = f"{method} {path} HTTP/1.1\r\n{HOST}Content-Length: 1000\r\n\r\n{{"
            client.sendall(head.encode())
            await asyncio.sleep(0)
            client.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
            client.close()
        assert await is_well(port)

    serve(site, ask)


def test_client_that_stops_sending_is_answered_or_disconnected(site: Site) -> None:
    async def ask(port: int) -> None:
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        writer.write(generate("hello world"))
        writer.write_eof()
        answered = await asyncio.wait_for(reader.read(), PATIENCE_S)
        assert answered == b"" or b'"done":true' in answered
        writer.close()
        assert await is_well(port)

    serve(site, ask)


def test_stalled_body_is_refused(site: Site, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(body, "IDLE_SECONDS", 0.1)

    async def ask(port: int) -> None:
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        writer.write(generate("hello world")[:-4])
        head = await asyncio.wait_for(reader.readuntil(b"\r\n\r\n"), PATIENCE_S)
        assert head.startswith(b"HTTP/1.1 400")
        writer.close()

    serve(site, ask)


def running_of(site: Site) -> list[Any]:
    return [runner.running for _, runner in site.start.runners]


@pytest.mark.parametrize("prompt", ["forever", "wait"])
def test_disconnecting_frees_the_slot(site: Site, prompt: str) -> None:
    """While it is read to, and before the first token."""

    async def ask(port: int) -> None:
        _, writer = await asyncio.open_connection("127.0.0.1", port)
        writer.write(generate(f"hello {prompt}" if prompt == "forever" else prompt))
        await until(lambda: running_of(site) == [1], "it is answered")
        writer.transport.abort()
        await until(lambda: running_of(site) == [0], "the answer ends")

    serve(site, ask)


def test_disconnecting_during_loading_frees_the_slot(site: Site) -> None:

    async def ask(port: int) -> None:
        site.start.go_on = asyncio.Event()
        _, writer = await asyncio.open_connection("127.0.0.1", port)
        writer.write(generate("forever"))
        await until(lambda: site.start.begun, "the load begins")
        assert await gauge(port, "tampu_requests_waiting") == 1
        writer.transport.abort()
        async with asyncio.timeout(PATIENCE_S):
            while await gauge(port, "tampu_requests_waiting"):
                pass
        site.start.go_on.set()
        await until(lambda: running_of(site) == [0], "the load ends")
        async with asyncio.timeout(PATIENCE_S):
            while await gauge(port, 'tampu_model_requests{model="m"}') != 0:
                pass
        assert running_of(site) == [0]
        assert await is_well(port)

    serve(site, ask)


def test_connections_over_the_limit_get_503_with_retry_after(
    site: Site, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(connection, "MAX_CONNECTIONS", 3)

    async def ask(port: int) -> None:
        early = [await asyncio.open_connection("127.0.0.1", port) for _ in range(3)]
        late, writer = await asyncio.open_connection("127.0.0.1", port)
        asked = generate("hello world")
        writer.write(asked[:-4])
        assert await gauge(port, "tampu_requests_waiting") is None  # also late: it is refused
        writer.write(asked[-4:])
        refused = await asyncio.wait_for(late.read(), 5)
        assert refused.startswith(b"HTTP/1.1 503 ")
        assert b"Retry-After: 5\r\n" in refused
        assert b"Content-Type: application/json" in refused
        assert b'{"error":"the server has too many connections"}' in refused
        writer.close()
        for reader, writer in early:
            writer.write(VERSION)
            assert await answers_of(reader, 1)
            writer.close()
        assert await is_well(port)

    serve(site, ask)


def test_endless_chunks_end_with_the_connection_on_every_route(
    site: Site, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whether the body is read (and is too large), or was answered without being read."""
    monkeypatch.setattr(connection, "HEADER_SECONDS", 0.5)
    monkeypatch.setattr(body, "MAX_BODY", 100_000)
    chunk = b"2000\r\n" + b" " * 0x2000 + b"\r\n"

    async def one(port: int, method: Any, path: str) -> bytes:
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        head = f"{method} {path} HTTP/1.1\r\n{HOST}Transfer-Encoding: chunked\r\n\r\n"
        writer.write(head.encode())
        answered = asyncio.create_task(reader.read())
        with suppress(ConnectionError):
            while not writer.is_closing() and not answered.done():
                writer.write(chunk)
                await writer.drain()
                await asyncio.sleep(0)
        writer.close()
        with suppress(ConnectionError):
            return (await answered)[9:12]

    async def ask(port: int) -> None:
        async with asyncio.timeout(PATIENCE_S):
            found = await asyncio.gather(*(one(port, *target) for target in targets(site)))
        assert not {b"500", b"502"} & {*found}
        monkeypatch.setattr(connection, "HEADER_SECONDS", PATIENCE_S)
        assert await is_well(port)

    serve(site, ask)
