"""An HTTP server for tests that answers as it is told to, badly too."""

from __future__ import annotations

import socket
import ssl
import threading
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Self
from urllib.parse import parse_qsl, urlsplit

CHUNK = 64 << 10


@dataclass
class Request:
    """What came in."""

    method: str
    path: str
    query: dict[str, str]
    headers: dict[str, str]
    body: bytes

    @property
    def range(self) -> tuple[int, int] | None:
        """The half-open range of a `Range` header."""
        text = self.headers.get("range", "").removeprefix("bytes=")
        first, _, last = text.partition("-")
        return (int(first), int(last) + 1) if first else None


@dataclass
class Answer:
    """What goes out.

    `drop_after` bytes of the body the connection is closed; `stall_after` bytes nothing more
    comes until the server ends; `bytes_per_second` slows it down.
    """

    status: int = 200
    headers: dict[str, str] = field(default_factory=dict)
    body: bytes | Iterable[bytes] = b""
    length: int | None = None
    drop_after: int | None = None
    stall_after: int | None = None
    bytes_per_second: int | None = None


class LocalServer:
    """A server on a free port of this machine; its requests are in `requests`."""

    def __init__(self, answer: Callable[[Request], Answer]) -> None:
        self.answer = answer
        self.requests: list[Request] = []
        self.sent = 0
        self.ended = threading.Event()
        self.connections: set[socket.socket] = set()
        methods = ("GET", "HEAD", "POST", "PUT", "PATCH", "DELETE")
        answering = {f"do_{method}": _Handler.handle_any for method in methods}
        handler = type("Handler", (_Handler,), {"local": self, **answering})
        self._server = ThreadingHTTPServer(("127.0.0.1", 0), handler)
        self._server.daemon_threads = False
        self._server.block_on_close = True
        self._thread = threading.Thread(target=self._server.serve_forever, args=(0.02,))

    def speak_tls(self, certificate: Path) -> None:
        """Expect TLS; the file has the certificate and its key."""
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        context.load_cert_chain(certificate)
        listener = self._server.socket
        # Each connection's own thread waits for its client.
        self._server.socket = context.wrap_socket(
            listener, server_side=True, do_handshake_on_connect=False
        )

    @property
    def host(self) -> str:
        return f"127.0.0.1:{self._server.server_port}"

    @property
    def url(self) -> str:
        return f"http://{self.host}"

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.ended.set()
        self._server.shutdown()
        self._thread.join()
        for connection in list(self.connections):  # those that a client keeps open
            with suppress(OSError):
                connection.shutdown(socket.SHUT_RDWR)
        self._server.server_close()


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    timeout = 60
    local: LocalServer

    def handle_any(self) -> None:
        length = int(self.headers.get("Content-Length") or 0)
        parts = urlsplit(self.path)
        request = Request(
            self.command,
            parts.path,
            dict(parse_qsl(parts.query)),
            {name.lower(): value for name, value in self.headers.items()},
            self.rfile.read(length),
        )
        self.local.requests.append(request)
        self.reply(self.local.answer(request))

    def reply(self, answer: Answer) -> None:
        self.send_response(answer.status)
        body = [answer.body] if isinstance(answer.body, bytes) else answer.body
        length = answer.length
        if length is None and isinstance(answer.body, bytes):
            length = len(answer.body)
        for name, value in answer.headers.items():
            self.send_header(name, value)
        if length is not None and "Content-Length" not in answer.headers:
            self.send_header("Content-Length", str(length))
        elif length is None:
            self.send_header("Connection", "close")
            self.close_connection = True
        self.end_headers()
        if self.command != "HEAD":
            self.write(answer, body)

    def write(self, answer: Answer, body: Iterable[bytes]) -> None:
        sent = 0
        for content in body:
            for start in range(0, len(content), CHUNK):
                piece = content[start : start + CHUNK]
                for limit in (answer.drop_after, answer.stall_after):
                    if limit is not None:
                        piece = piece[: max(0, limit - sent)]
                self.wfile.write(piece)
                sent += len(piece)
                self.local.sent += len(piece)
                if answer.bytes_per_second:
                    self.wfile.flush()
                    time.sleep(len(piece) / answer.bytes_per_second)
                if answer.drop_after is not None and sent >= answer.drop_after:
                    self.close_connection = True
                    return
                if answer.stall_after is not None and sent >= answer.stall_after:
                    self.close_connection = True
                    self.local.ended.wait(60)
                    return

    def handle(self) -> None:
        self.local.connections.add(self.connection)
        try:
            super().handle()
        except (ConnectionError, TimeoutError, ValueError):
            self.close_connection = True

    def finish(self) -> None:
        self.local.connections.discard(self.connection)
        try:
            super().finish()
        except (ConnectionError, TimeoutError, ValueError):
            self.close_connection = True

    def log_message(self, *_: object) -> None:
        pass


@contextmanager
def serving(answer: Callable[[Request], Answer]) -> Iterator[LocalServer]:
    """A server that answers so, for a block."""
    with LocalServer(answer) as server:
        yield server
