"""Which addresses are talked to, and what is read of their answers."""

from __future__ import annotations

import socket
import ssl
import threading
from collections.abc import Iterator
from contextlib import closing, suppress
from pathlib import Path
from typing import Any

import pytest
from support import local_http
from support.local_http import Answer, serving
from support.waiting import PATIENCE_S, wait_until

from tampu.errors import RegistryError
from tampu.settings.proxies import Proxies
from tampu.store.registry.options import RemoteOptions
from tampu.store.registry.transport import (
    NetworkError,
    Response,
    Transport,
    UnreachableError,
    host_of,
    origin_of,
)


@pytest.fixture
def insecure() -> Iterator[Transport]:
    with closing(Transport(RemoteOptions(is_insecure=True, read_timeout_s=5))) as transport:
        yield transport


@pytest.fixture
def secure() -> Iterator[Transport]:
    with closing(Transport(RemoteOptions())) as transport:
        yield transport


@pytest.mark.parametrize(
    "url",
    ["http://example.com/", "file:///etc/passwd", "ftp://example.com/", "https:///x", "x", "",
     "https://user:pass@example.com/", "https://example.com:99999/", "https://example.com:x/",
     "gopher://example.com", "https://[::1/"],
)  # fmt: skip
def test_only_valid_https_urls_are_requested(secure: Transport, url: str) -> None:
    with pytest.raises(RegistryError, match="refused a URL"):
        secure.send("GET", url)


@pytest.mark.parametrize(
    "host",
    ["127.0.0.1", "169.254.169.254", "10.0.0.1", "192.168.1.1", "[::1]", "[::ffff:127.0.0.1]",
     "[fe80::1]", "0x7f000001", "0.0.0.0", "localhost", "2130706433", "100.64.0.1"],
)  # fmt: skip
def test_private_addresses_are_refused(secure: Transport, host: str) -> None:
    with pytest.raises(RegistryError, match="private network"):
        secure.send("GET", f"https://{host}:1/v2/")


def test_a_refused_connection_is_told_in_plain_words(insecure: Transport) -> None:
    with pytest.raises(
        UnreachableError, match=r"^cannot reach 127\.0\.0\.1:1: connection refused$"
    ):
        insecure.send("GET", "http://127.0.0.1:1/v2/")


def test_a_name_is_resolved_once_and_the_checked_address_used(
    secure: Transport, monkeypatch: pytest.MonkeyPatch
) -> None:
    answers = [["93.184.216.34", "10.0.0.1"], ["127.0.0.1"]]
    asked, connected = [], []

    def getaddrinfo(host: str, port: int, **_: object) -> list[Any]:
        asked.append(host)
        return [(socket.AF_INET, socket.SOCK_STREAM, 6, "", (ip, port)) for ip in answers.pop(0)]

    def create_connection(address: Any, *_: object, **__: object) -> None:
        connected.append(address)
        raise OSError("no network in tests")

    module = "tampu.store.registry.transport"
    monkeypatch.setattr(f"{module}.socket.getaddrinfo", getaddrinfo)
    monkeypatch.setattr(f"{module}.create_connection", create_connection)
    with pytest.raises(NetworkError):
        secure.send("GET", "https://rebinding.example/")
    assert (asked, connected) == (["rebinding.example"], [("93.184.216.34", 443)])


def test_a_host_in_a_private_network_can_be_allowed(monkeypatch: pytest.MonkeyPatch) -> None:
    options = RemoteOptions(default_registry="models.home")
    found = [(socket.AF_INET, socket.SOCK_STREAM, 6, "", ("10.0.0.1", 443))]
    monkeypatch.setattr("tampu.store.registry.transport.socket.getaddrinfo", lambda *_, **__: found)
    transport = Transport(options)
    assert transport._is_allowed("models.home", "10.0.0.1")
    assert not transport._is_allowed("other.home", "10.0.0.1")


def test_unknown_names_are_network_errors(insecure: Transport) -> None:
    with pytest.raises(NetworkError, match="unknown host name"):
        insecure.send("GET", "http://no-such-name.invalid/")


def read_to_end(response: Response) -> None:
    while response.read(1000):
        pass


def test_a_body_is_read_in_chunks(insecure: Transport) -> None:
    with serving(lambda _: Answer(body=b"x" * 300_000)) as server:
        with insecure.send("GET", server.url) as response:
            assert (response.status, response.length) == (200, 300_000)
            count = 0
            while content := response.read(100_000):
                count += len(content)
        assert count == 300_000


def test_a_truncated_body_is_an_error(insecure: Transport) -> None:
    with (
        serving(lambda _: Answer(body=b"x" * 1000, drop_after=10)) as server,
        insecure.send("GET", server.url) as response,
        pytest.raises(NetworkError, match="lost the connection"),
    ):
        read_to_end(response)


def test_a_silent_server_times_out() -> None:
    options = RemoteOptions(is_insecure=True, read_timeout_s=1.0)
    with (
        closing(Transport(options)) as transport,
        serving(lambda _: Answer(body=b"x" * 1000, stall_after=10)) as server,
        transport.send("GET", server.url) as response,
        pytest.raises(NetworkError),
    ):
        read_to_end(response)


def test_a_read_is_interrupted_from_another_thread(insecure: Transport) -> None:
    ended = threading.Event()
    with (
        serving(lambda _: Answer(body=b"x" * 1000, stall_after=10)) as server,
        insecure.send("GET", server.url) as response,
    ):

        def read() -> None:
            with suppress(NetworkError):
                read_to_end(response)
            ended.set()

        thread = threading.Thread(target=read)
        thread.start()
        wait_until(lambda: server.sent == 10, "the server sends no more")
        assert not ended.is_set()
        response.interrupt()
        assert ended.wait(PATIENCE_S)
        thread.join()


@pytest.mark.parametrize(
    "answer",
    [
        Answer(body=b"x" * 1001),
        Answer(body=[b"x" * 500] * 3),
        Answer(headers={"Content-Encoding": "gzip"}, body=b"\x1f\x8b" + b"\0" * 50),
    ],
)
def test_oversized_and_compressed_responses_are_refused(
    insecure: Transport, answer: Answer
) -> None:
    with serving(lambda _: answer) as server, pytest.raises(RegistryError, match="sent"):
        insecure.send("GET", server.url).read_all(1000)


def test_an_untrusted_certificate_is_refused(insecure: Transport) -> None:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(Path(local_http.__file__).with_name("self_signed.pem"))

    def accept(listener: Any) -> None:
        connection, _ = listener.accept()
        with connection, suppress(OSError):  # ssl's errors are such
            context.wrap_socket(connection, server_side=True).close()

    with socket.create_server(("127.0.0.1", 0)) as listener:
        thread = threading.Thread(target=accept, args=(listener,))
        thread.start()
        with pytest.raises(RegistryError, match=r"certificate of localhost:\d+ is not trusted"):
            insecure.send("GET", f"https://localhost:{listener.getsockname()[1]}/v2/")
        thread.join(5)


def test_hosts_and_origins() -> None:
    assert host_of("https://User:pw@Example.com:8080/x") == "example.com:8080"
    assert origin_of("https://a/x") == origin_of("https://a:443/y")
    assert origin_of("https://a") != origin_of("http://a")
    assert origin_of("http://a:81") != origin_of("http://a")


def through(**proxies: Any) -> closing[Any]:
    return closing(Transport(RemoteOptions(is_insecure=True, proxies=Proxies(**proxies))))


def test_a_proxy_gets_the_request_and_resolves_the_name() -> None:
    with serving(lambda _: Answer(body=b"found")) as proxy:
        login = proxy.url.replace("//", "//runa:p%40ss@")
        with through(http=login) as transport:
            with transport.send("GET", "http://registry.invalid/v2/") as response:
                assert response.read_all(10) == b"found"
            with transport.send("GET", f"{proxy.url}/v2/") as response:  # this machine: directly
                assert response.read_all(10) == b"found"
        first, second = proxy.requests
        assert first.headers["host"] == "registry.invalid"
        assert first.headers["proxy-authorization"] == "Basic cnVuYTpwQHNz"
        assert "proxy-authorization" not in second.headers


def test_https_uses_a_tunnel_and_errors_name_the_proxy_without_its_password() -> None:
    asked = []

    def refuse(listener: Any) -> None:
        connection, _ = listener.accept()
        with connection:
            asked.append(connection.recv(4096))
            connection.sendall(b"HTTP/1.1 407 Who are you?\r\n\r\n")

    with socket.create_server(("127.0.0.1", 0)) as listener:
        thread = threading.Thread(target=refuse, args=(listener,))
        thread.start()
        host = f"127.0.0.1:{listener.getsockname()[1]}"
        with (
            through(https=f"http://runa:secret@{host}") as transport,
            pytest.raises(NetworkError, match=rf"registry\.invalid through .*{host}.*407") as told,
        ):
            transport.send("GET", "https://registry.invalid/v2/", {"Authorization": "Bearer x"})
        thread.join(5)
    assert "secret" not in str(told.value)
    assert asked[0].startswith(b"CONNECT registry.invalid:443 HTTP/1.")
    assert b"proxy-authorization: basic" in asked[0].lower()
    assert b"Bearer" not in asked[0]


def test_a_private_address_is_refused_with_a_proxy_too() -> None:
    options = RemoteOptions(proxies=Proxies(https="http://127.0.0.1:1"))
    with closing(Transport(options)) as transport:
        with pytest.raises(RegistryError, match="private network"):
            transport.send("GET", "https://169.254.169.254/v2/")
        with pytest.raises(NetworkError, match=r"through the proxy http://127\.0\.0\.1:1"):
            transport.send("GET", "https://registry.invalid/v2/")
