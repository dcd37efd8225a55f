"""`tampu ui`, and the address that `tampu serve` prints for it."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest
from support.local_http import Answer, LocalServer
from support.serving import Server, start_server

from tampu.cli import app


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    folder = tmp_path_factory.mktemp("home")
    flags = ("--host", "0.0.0.0", "--insecure-no-auth")
    server = start_server(folder / "models", folder, *flags)
    yield server
    server.end()


@pytest.fixture
def opened(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The addresses that the browser opens."""
    found: list[str] = []
    monkeypatch.setattr("webbrowser.open", lambda url: found.append(url) or True)
    return found


@pytest.fixture
def run(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> Callable[[str], Any]:
    """Run `tampu ui` for a server; return exit code, output and errors."""

    def run(host: str) -> tuple[int, str, str]:
        monkeypatch.setenv("TAMPU_HOST", host)
        code = app.run(["ui"])
        captured = capsys.readouterr()
        return code, captured.out, captured.err

    return run


def test_the_page_of_the_server_is_opened_at_an_address_that_works(
    server: Server, opened: list[str], run: Callable[[str], Any]
) -> None:
    port = server.url.rpartition(":")[2]
    url = f"http://127.0.0.1:{port}/"
    assert run(f"0.0.0.0:{port}") == (0, f"{url}\n", "")
    assert opened == [url]
    assert "<title>tampu</title>" in httpx.get(url, headers={"accept": "text/html"}).text


def test_serve_prints_that_address(server: Server) -> None:
    port = server.url.rpartition(":")[2]
    assert f"\nPage: http://127.0.0.1:{port}/\n" in server.log.read_text()


def test_the_address_is_printed_where_there_is_no_browser(
    server: Server, run: Callable[[str], Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("webbrowser.open", lambda _: False)
    code, out, err = run(server.url)
    assert (code, out.startswith("http://127.0.0.1:")) == (0, True)
    assert "No browser" in err


def test_without_a_server_nothing_is_opened(opened: list[str], run: Callable[[str], Any]) -> None:
    code, out, err = run("127.0.0.1:1")
    assert (code, out, opened) == (2, "", [])
    assert "no server is running at http://127.0.0.1:1: start one with `tampu serve`" in err


def test_another_program_at_the_address_has_no_page(
    opened: list[str], run: Callable[[str], Any]
) -> None:
    with LocalServer(lambda _: Answer(body=b"Ollama is running")) as local:
        code, _, err = run(local.url)
    assert (code, opened) == (2, [])
    assert f"the server at {local.url} is not tampu's" in err


def test_a_browser_cannot_use_a_unix_socket(
    opened: list[str], run: Callable[[str], Any], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("TAMPU_SOCKET", str(tmp_path / "s"))
    code, _, err = run("127.0.0.1:1")
    assert (code, opened) == (2, [])
    assert "Unix socket" in err
