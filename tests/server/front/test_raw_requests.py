"""Requests that no HTTP library would send, on every route: refused, and nothing is smuggled."""

from __future__ import annotations

import asyncio
import re
import socket
from collections.abc import Callable, Coroutine
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest
import uvicorn
from support.fake_runner import FakeStart
from support.waiting import PATIENCE_S

from tampu.engine.load_options import LoadOptions
from tampu.server.front.connection import ACCEPTED_AT_ONCE, Connection, QuietServer
from tampu.server.front.trusted_host import MAX_HEADER_BYTES
from tampu.server.options import ServerOptions
from tests.server.conftest import Site

pytestmark = pytest.mark.slow

HOST = "Host: localhost\r\n"
# What would be answered as a second request if a first were read in two ways.
HIDDEN = f"GET /api/version HTTP/1.1\r\n{HOST}\r\n"
BODY = '{"model": "m"}'
LENGTH = f"Content-Length: {len(BODY)}\r\n"

FIRST_S, NEXT_S = PATIENCE_S, 0.3  # how long to wait for an answer, and for another
# What may be read in one way only: it is answered, or refused, once.
READ_ONCE = frozenset({200, 400, 403, 404, 405, 426, 411, 501, 503})  # 403: off by a setting
# Name: what stands behind the method and path, and the statuses that may come back (0: none).
CASES = {
    "two lengths": (f" HTTP/1.1\r\n{HOST}{LENGTH}Content-Length: 5\r\n\r\n{BODY}", {400}),
    "a length and chunks": (
        f" HTTP/1.1\r\n{HOST}{LENGTH}Transfer-Encoding: chunked\r\n\r\n0\r\n\r\n{HIDDEN}", {400},
    ),
    "a negative length": (f" HTTP/1.1\r\n{HOST}Content-Length: -1\r\n\r\n", {400}),
    "a length with a sign": (f" HTTP/1.1\r\n{HOST}Content-Length: +14\r\n\r\n{BODY}", {400}),
    "a length in hex": (f" HTTP/1.1\r\n{HOST}Content-Length: 0xe\r\n\r\n{BODY}", {400}),
    "another coding": (f" HTTP/1.1\r\n{HOST}Transfer-Encoding: gzip\r\n\r\n{BODY}", {400, 501}),
    "a coding in disguise": (
        f" HTTP/1.1\r\n{HOST}Transfer-Encoding: \x0bchunked\r\n\r\n0\r\n\r\n{HIDDEN}", {400, 501},
    ),
    "a chunk of no size": (
        f" HTTP/1.1\r\n{HOST}Transfer-Encoding: chunked\r\n\r\nxyz\r\n{HIDDEN}", {0, 400, 405},
    ),
    "NUL in a header": (f" HTTP/1.1\r\n{HOST}X: a\0b\r\n\r\n", {400}),
    "a space before the colon": (f" HTTP/1.1\r\n{HOST}X : a\r\n\r\n", {400}),
    "no colon": (f" HTTP/1.1\r\n{HOST}X\r\n\r\n", {400}),
    "no host": (" HTTP/1.1\r\nConnection: close\r\n\r\n", {400}),
    "two hosts": (f" HTTP/1.1\r\n{HOST}Host: evil.com\r\nConnection: close\r\n\r\n", {400, 403}),
    "an old version": ("\r\n\r\n", {400}),
    "a version to come": (f" HTTP/3.0\r\n{HOST}\r\n", {400}),
    "no version": (f" HTPP\r\n{HOST}\r\n", {400}),
    "headers without end": (f" HTTP/1.1\r\n{HOST}X: {'a' * (MAX_HEADER_BYTES + 1)}", {400, 431}),
    "1,000 headers": (
        f" HTTP/1.1\r\n{HOST}Connection: close\r\n" + "X: y\r\n" * 1000 + "\r\n", {400, 431},
    ),
    "a folded header": (f" HTTP/1.1\r\n{HOST}X: a\r\n b\r\n{LENGTH}\r\n{BODY}", {400}),
    "a header folded with a tab": (f" HTTP/1.1\r\n{HOST}X: a\r\n\tb\r\n{HIDDEN}", {400}),
    "line feeds alone": (" HTTP/1.1\nHost: localhost\nConnection: close\n\n", {400}),
    "a line feed alone": (f" HTTP/1.1\r\n{HOST}X: a\n{LENGTH}\r\n{BODY}{HIDDEN}", {400}),
    "an empty line of a line feed": (f" HTTP/1.1\r\n{HOST}\n{HIDDEN}", {400}),
    "a carriage return alone": (f" HTTP/1.1\r\n{HOST}X: a\rb\r\n\r\n", {400}),
    "a length that is too short": (
        f" HTTP/1.1\r\n{HOST}Content-Length: 3\r\n\r\n{BODY}", READ_ONCE,
    ),
    "a chunk with a tail": (
        f" HTTP/1.1\r\n{HOST}Transfer-Encoding: chunked\r\n\r\n"
        "0\r\nContent-Length: 5\r\n\r\n", READ_ONCE,
    ),
    "a header of 64 KiB": (f" HTTP/1.1\r\n{HOST}X: {'a' * MAX_HEADER_BYTES}\r\n\r\n", {400, 431}),
    "an address of 64 KiB": (f"?{'a' * MAX_HEADER_BYTES} HTTP/1.1\r\n{HOST}\r\n", {400, 414}),
    "a host in two lines": (" HTTP/1.1\r\nHost: localhost\r\n evil.com\r\n\r\n", {400}),
    "control characters": (" \x01\x02 HTTP/1.1\r\n\r\n", {400}),
}  # fmt: skip


@pytest.fixture(scope="module")
def site(model_folder: Path) -> Site:
    return Site(model_folder, FakeStart(), ServerOptions(model=LoadOptions(context=1024)))


def targets(site: Site) -> list[Any]:
    """The method and path of every route."""
    return [
        (method, re.sub(r"\{\w+(:\w+)?\}", "m", route.path))
        for route in site.app.state.routes
        for method in route.methods
    ]


async def statuses(port: int, content: bytes) -> list[Any]:
    """Return the status of each answer on a connection until it closes or nothing more comes."""
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    writer.write(content)
    answered = b""
    with suppress(TimeoutError, ConnectionError):
        async with asyncio.timeout(FIRST_S) as limit:
            while part := await reader.read(65536):
                answered += part
                limit.reschedule(asyncio.get_running_loop().time() + NEXT_S)
    writer.close()
    return [int(status) for status in re.findall(rb"HTTP/1\.1 (\d{3}) ", answered)]


def serve(site: Site, ask: Callable[[Any], Coroutine[Any, Any, Any]]) -> Any:
    """Run `ask(port)` while the site's application is served."""

    async def test() -> Any:
        config = uvicorn.Config(
            site.app, http=Connection, log_config=None, backlog=ACCEPTED_AT_ONCE
        )
        # As uvicorn's own: only of what is TCP by name asyncio sends small pieces at once.
        listener = socket.socket(socket.AF_INET, socket.SOCK_STREAM, socket.IPPROTO_TCP)
        listener.bind(("127.0.0.1", 0))
        listener.listen(2048)
        server = QuietServer(config, lambda: None)
        running = asyncio.create_task(server.serve(sockets=[listener]))
        try:
            return await ask(listener.getsockname()[1])
        finally:
            server.stop()
            await asyncio.wait_for(running, PATIENCE_S)

    return asyncio.run(test())


def test_ambiguous_http_is_refused_on_every_route(site: Site) -> None:
    cases = [
        (method, path, name, f"{method} {path}{rest}".encode("latin-1"), allowed)
        for method, path in targets(site)
        for name, (rest, allowed) in CASES.items()
    ]

    async def ask(port: int) -> tuple[list[Any], Any]:
        gate = asyncio.Semaphore(64)

        async def one(content: bytes) -> list[Any]:
            async with gate:
                return await statuses(port, content)

        found = await asyncio.gather(*(one(content) for *_, content, _ in cases))
        return found, await statuses(port, HIDDEN.encode())

    found, last = serve(site, ask)
    wrong = [
        (method, path, name, answers)
        for (method, path, name, _, allowed), answers in zip(cases, found, strict=True)
        if len(answers) > 1 or {*answers, *([] if answers else [0])} - allowed
    ]
    assert wrong == []
    assert last == [200]
    assert len(cases) > 700


@pytest.mark.parametrize(
    "target", ["/%00", "/%2e%2e/%2e%2e/etc/passwd", "/api/../api/tags", "//api/tags", "*", "/\\"]
)
def test_unusual_request_target_is_not_a_file_and_not_a_server_error(
    site: Site, target: str
) -> None:
    async def ask(port: int) -> None:
        for method in ("GET", "POST", "OPTIONS", "BREW"):
            rest = f"{HOST}Connection: close\r\n\r\n"
            content = f"{method} {target} HTTP/1.1\r\n{rest}".encode()
            [status] = await statuses(port, content)
            assert status in {400, 404, 405}, (method, status)

    serve(site, ask)
