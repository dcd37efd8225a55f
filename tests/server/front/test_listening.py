"""How the server listens and ends: TLS, a Unix socket, slow clients, draining, logs."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import socket
import ssl
import subprocess
import sys
import threading
import time
from asyncio.events import TimerHandle
from asyncio.streams import StreamReader, StreamWriter
from collections.abc import Callable, Coroutine
from contextvars import Context
from pathlib import Path
from typing import Any, TypeVarTuple

import httpx
import pytest
import uvicorn
from support.serving import start_server
from support.waiting import PATIENCE_S, until, wait_until

from tampu.errors import SettingsError
from tampu.server.front import connection
from tampu.server.front.connection import Connection, QuietServer
from tampu.server.serve import check_exposure, listen, listen_on_socket

pytestmark = pytest.mark.slow

# For localhost, valid until 2126; it guards nothing.
CERTIFICATE = """\
-----BEGIN CERTIFICATE-----
MIIBmzCCAUGgAwIBAgIURfBKp/opulgbIuXY+8fssu2taWkwCgYIKoZIzj0EAwIw
FDESMBAGA1UEAwwJbG9jYWxob3N0MCAXDTI2MTEyMTEyNDA1OVoYDzIxMjYxMDI4
MTI0MDU5WjAUMRIwEAYDVQQDDAlsb2NhbGhvc3QwWTATBgcqhkjOPQIBBggqhkjO
PQMBBwNCAAQyfD3XYw+YH5xC7VyG3MAwO6y+R2hGvYl6PUdnx1bQ7afQv18LJjv5
WYQcTM2X3hmm7uWORZzQ15KzSmmvJ7+no28wbTAdBgNVHQ4EFgQUVAm6RPE9PU1/
5zVr0imKQC0e7g4wHwYDVR0jBBgwFoAUVAm6RPE9PU1/5zVr0imKQC0e7g4wDwYD
VR0TAQH/BAUwAwEB/zAaBgNVHREEEzARgglsb2NhbGhvc3SHBH8AAAEwCgYIKoZI
zj0EAwIDSAAwRQIhAMsXjfPAOL+HKV786dDPiW39Hi7oeTCHl/mfFz8bHuSoAiAB
/SPD87LJ80JcE3yATJ+VgtPr5ZjQzrV4VJCLLAOa1w==
-----END CERTIFICATE-----
"""
KEY = """\
-----BEGIN PRIVATE KEY-----
MIGHAgEAMBMGByqGSM49AgEGCCqGSM49AwEHBG0wawIBAQQgcpJXIO1juXiG3Xiv
dTiQD8VQ2lT2YjGTKf0yM1G8EJShRANCAAQyfD3XYw+YH5xC7VyG3MAwO6y+R2hG
vYl6PUdnx1bQ7afQv18LJjv5WYQcTM2X3hmm7uWORZzQ15KzSmmvJ7+n
-----END PRIVATE KEY-----
"""


def test_response_bytes_are_sent_without_delay() -> None:
    with listen("127.0.0.1", 0) as listener, socket.create_connection(listener.getsockname()):
        accepted, _ = listener.accept()
        with accepted:
            assert accepted.getsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY) != 0


def body(tokens: int) -> dict[Any, Any]:
    return {
        "model": "tiny",
        "prompt": "hello",
        "options": {"num_predict": tokens, "temperature": 0},
    }


@pytest.mark.parametrize(
    ("host", "keys", "allowed", "fits"),
    [
        ("127.0.0.1", False, False, True), ("::1", False, False, True),
        ("localhost", False, False, True), ("0.0.0.0", False, False, False),
        ("0.0.0.0", True, False, True), ("0.0.0.0", False, True, True),
        ("192.168.1.1", False, False, False), ("example.com", False, False, False),
    ],
)  # fmt: skip
def test_exposed_address_needs_a_key_or_a_flag(
    host: str, keys: bool, allowed: bool, fits: bool
) -> None:
    if fits:
        check_exposure(host, has_keys=keys, is_allowed=allowed)
        return
    with pytest.raises(SettingsError, match="TAMPU_API_KEY"):
        check_exposure(host, has_keys=keys, is_allowed=allowed)


@pytest.mark.server
def test_server_with_a_certificate_uses_https(start: Callable[..., Any], tmp_path: Path) -> None:
    (tmp_path / "cert.pem").write_text(CERTIFICATE)
    (tmp_path / "key.pem").write_text(KEY)
    server = start(
        TAMPU_TLS_CERT=str(tmp_path / "cert.pem"), TAMPU_TLS_KEY=str(tmp_path / "key.pem")
    )
    assert server.url.startswith("https://127.0.0.1:")
    trust = ssl.create_default_context(cadata=CERTIFICATE)
    assert httpx.get(f"{server.url}/api/version", verify=trust).status_code == 200
    with pytest.raises(httpx.ConnectError):
        httpx.get(f"{server.url}/api/version")


@pytest.mark.server
def test_unix_socket_is_accessible_to_its_owner_only(
    start: Callable[..., Any], tmp_path: Path
) -> None:
    path = tmp_path / "tampu.sock"
    start("--socket", str(path))
    assert path.stat().st_mode & 0o777 == 0o600
    transport = httpx.HTTPTransport(uds=str(path))
    with httpx.Client(transport=transport) as client:  # it guards nothing there: any host may stand
        for host in ("localhost", "ollama", "unix", "_", "evil.example"):
            assert client.get(f"http://{host}/").text == "Ollama is running"
        assert client.post("http://ollama/api/show", json={"model": "tiny"}).status_code == 200
        from_a_page = client.post("http://ollama/api/show", headers={"origin": "https://a.example"})
        assert from_a_page.status_code == 403


@pytest.mark.server
@pytest.mark.parametrize("prefix", ["", "unix:", "unix://"])
def test_a_unix_socket_may_be_given_as_the_host(
    start: Callable[..., Any], tmp_path: Path, prefix: str
) -> None:
    path = tmp_path / "tampu.sock"
    assert start("--host", f"{prefix}{path}").url == f"unix:{path}"
    with httpx.Client(transport=httpx.HTTPTransport(uds=str(path))) as client:
        assert client.get("http://localhost/").text == "Ollama is running"


def test_stale_socket_is_replaced_and_a_live_one_is_not(tmp_path: Path) -> None:
    path = tmp_path / "tampu.sock"
    listen_on_socket(path).close()
    with listen_on_socket(path), pytest.raises(SettingsError, match="cannot listen"):
        listen_on_socket(path)


@pytest.mark.server
def test_running_requests_finish_before_shutdown(start: Callable[..., Any]) -> None:
    server = start()
    lines: list[Any] = []

    def read() -> None:
        with httpx.stream(
            "POST", f"{server.url}/api/generate", json=body(2000), timeout=300
        ) as got:
            lines.extend(json.loads(line) for line in got.iter_lines())

    thread = threading.Thread(target=read)
    thread.start()
    wait_until(lambda: len(lines) >= 3, "the answer begins")
    assert server.stop(signal.SIGTERM) == 0
    thread.join(PATIENCE_S)
    assert lines[-1]["done"] is True
    assert lines[-1]["eval_count"] == 2000


@pytest.mark.server
def test_shutdown_does_not_exceed_its_timeout(start: Callable[..., Any]) -> None:
    server = start(TAMPU_DRAIN_TIMEOUT="1")
    with httpx.stream("POST", f"{server.url}/api/generate", json=body(10**9), timeout=300) as got:
        next(got.iter_lines())  # of an answer that would take hours
        assert server.stop(signal.SIGTERM) == 0
    assert "Traceback" not in server.log.read_text()


@pytest.mark.server
def test_json_logs_have_the_request_id(start: Callable[..., Any]) -> None:
    server = start(TAMPU_LOG_FORMAT="json", TAMPU_DEBUG="1")
    headers = {"x-request-id": "mine-1"}
    secret = "geheim" * 3
    asked = body(2) | {"prompt": secret}
    httpx.post(f"{server.url}/api/generate", json=asked, headers=headers, timeout=300)
    server.stop()
    lines = [line for line in server.log.read_text().splitlines() if line.startswith("{")]
    found = [json.loads(line) for line in lines]
    [access] = [one for one in found if one.get("path") == "/api/generate"]
    assert (access["request_id"], access["status"], access["method"]) == ("mine-1", 200, "POST")
    assert secret not in server.log.read_text()


async def run_connections(
    app: Callable[[Any, Any, Any], Coroutine[Any, Any, Any]],
    test: Callable[[Any, Any], Coroutine[Any, Any, Any]],
) -> Any:
    """Serve an application through `Connection`, and return what `test(port, connections)` does."""
    config = uvicorn.Config(app, http=Connection, lifespan="off", log_config=None)
    listener = socket.create_server(("127.0.0.1", 0))
    server = QuietServer(config, lambda: None)
    running = asyncio.create_task(server.serve(sockets=[listener]))
    try:
        return await test(listener.getsockname()[1], server.server_state.connections)
    finally:
        server.should_exit = True
        await asyncio.wait_for(running, PATIENCE_S)


def test_silent_client_is_disconnected(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(connection, "HEADER_SECONDS", 0.2)

    async def app(_scope: object, receive: Any, send: Any) -> None:
        await receive()
        await send({"type": "http.response.start", "status": 204, "headers": []})
        await send({"type": "http.response.body"})

    async def seconds_until_closed(port: int, *sent: bytes) -> tuple[float, bytes]:
        began = time.monotonic()
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        for part in sent:
            writer.write(part)
        answered = await asyncio.wait_for(reader.read(), PATIENCE_S)
        writer.close()
        return time.monotonic() - began, answered

    async def test(port: int, _: object) -> tuple[Any, Any, Any]:
        silent, slow = await asyncio.gather(
            seconds_until_closed(port), seconds_until_closed(port, b"GET / HTTP/1.1\r\nX: ")
        )
        asked = b"GET / HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n"
        monkeypatch.setattr(connection, "HEADER_SECONDS", PATIENCE_S)
        _, quick = await seconds_until_closed(port, asked)
        return silent, slow, quick

    silent, slow, quick = asyncio.run(run_connections(app, test))
    assert silent[0] >= 0.2
    assert slow[0] >= 0.2
    assert (silent[1], slow[1]) == (b"", b"")
    assert quick.startswith(b"HTTP/1.1 204")


Arguments = TypeVarTuple("Arguments")


class TimersByHand(asyncio.SelectorEventLoop):
    """An event loop whose timers of one length are due when the test says so."""

    LENGTH_S = 10.0**6

    def __init__(self) -> None:
        super().__init__()
        self._held: list[Any] = []

    def call_later(
        self,
        delay: float,
        callback: Callable[[*Arguments], object],
        *args: *Arguments,
        context: Context | None = None,
    ) -> TimerHandle:
        handle = super().call_later(delay, callback, *args, context=context)
        if delay == self.LENGTH_S:
            self._held.append((handle, callback))
        return handle

    def let_time_pass(self) -> None:
        """Call what waits for so long."""
        held, self._held = self._held, []
        for handle, callback in held:
            if not handle.cancelled():
                handle.cancel()
                callback()


def test_client_that_reads_nothing_is_disconnected_and_a_slow_one_is_not(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(connection, "WRITE_SECONDS", TimersByHand.LENGTH_S)
    size = 24 << 20
    ended = asyncio.Event()

    async def app(_scope: object, receive: Any, send: Any) -> None:
        await receive()
        await send({"type": "http.response.start", "status": 200, "headers": []})
        await send({"type": "http.response.body", "body": bytes(size)})
        await receive()
        ended.set()

    async def ask(port: int) -> tuple[StreamReader, StreamWriter]:
        asked = b"GET / HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n"
        reader, writer = await asyncio.open_connection("127.0.0.1", port, limit=2**16)
        writer.write(asked)
        return reader, writer

    async def test(port: int, connections: Any) -> int:
        loop = asyncio.get_running_loop()
        assert isinstance(loop, TimersByHand)

        def is_behind() -> list[Any]:
            return [one for one in connections if one.transport.get_write_buffer_size() > size // 4]

        def is_let_go() -> bool:
            loop.let_time_pass()
            return ended.is_set()

        _, idle = await ask(port)
        await until(is_behind, "the answer waits for the client")
        await until(is_let_go, "the client that takes nothing is let go")
        idle.close()
        await until(lambda: not connections, "the connection ends")
        reader, slow = await ask(port)
        [behind] = await until(is_behind, "the answer waits for the client")
        taken = 0
        for _ in range(5):
            left = behind.transport.get_write_buffer_size()
            while behind.transport.get_write_buffer_size() == left:
                taken += len(await reader.read(2**16))
            loop.let_time_pass()
            await asyncio.sleep(0)
            assert behind in connections
        while data := await reader.read(2**20):
            taken += len(data)
        slow.close()
        return taken

    with asyncio.Runner(loop_factory=TimersByHand) as runner:
        assert runner.run(asyncio.wait_for(run_connections(app, test), PATIENCE_S)) > size


def second_loopback() -> str:
    """Return an address of this machine besides 127.0.0.1."""
    try:
        with socket.socket(socket.AF_INET6) as probe:
            probe.bind(("::1", 0))
    except OSError:
        return "127.0.0.2"
    return "::1"


@pytest.mark.server
def test_one_server_listens_on_several_addresses(tmp_path: Path) -> None:
    second = second_loopback()
    hosts = f"127.0.0.1, {second}"
    server = start_server(tmp_path / "models", tmp_path, "--host", hosts, TAMPU_USE_API_KEY="k")
    try:
        port = httpx.URL(server.url).port
        for host in ("127.0.0.1", f"[{second}]" if ":" in second else second):
            url = f"http://{host}:{port}"
            assert f"Listening on {url}\n" in server.log.read_text()
            assert httpx.get(f"{url}/health").status_code == 200
            assert httpx.get(f"{url}/api/tags").status_code == 401
            keyed = httpx.get(f"{url}/api/tags", headers={"authorization": "Bearer k"})
            assert keyed.status_code == 200
    finally:
        server.end()


@pytest.mark.server
def test_every_address_must_be_safe(tmp_path: Path) -> None:
    done = subprocess.run(
        [sys.executable, "-m", "tampu.cli.entry", "serve", "--host", "127.0.0.1,0.0.0.0"],
        env={"PATH": os.defpath, "HOME": str(tmp_path), "TAMPU_HOST": "127.0.0.1:0"},
        capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert done.returncode != 0
    assert "0.0.0.0 can be reached by other machines" in done.stderr
