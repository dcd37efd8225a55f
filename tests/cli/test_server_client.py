"""The client of the server: behind a proxy with a path, and errors of the address."""

from __future__ import annotations

import pytest
from support.local_http import Answer, LocalServer, Request

from tampu.cli import app
from tampu.cli.server_client import HTTPServer
from tampu.settings.settings import Settings


@pytest.mark.parametrize("path", ["", "/", "/ollama", "/a/b/"])
def test_each_request_goes_to_the_path_of_the_proxy(path: str) -> None:
    def answer(_: Request) -> Answer:
        return Answer(headers={"Server": "tampu/1"}, body=b'{"models": []}')

    with LocalServer(answer) as local:
        server = HTTPServer(
            Settings.from_environment({"HOME": "/", "OLLAMA_HOST": local.url + path})
        )
        assert server.software(5).endswith("tampu/1")
        assert server.ask("GET", "/api/ps") == {"models": []}
        assert list(server.stream("/api/chat", {})) == [{"models": []}]
        assert server.send("POST", "/v1/files", b"") == b'{"models": []}'
        paths = [request.path for request in local.requests]
    prefix = path.rstrip("/")
    assert paths == [prefix + each for each in ("/health", "/api/ps", "/api/chat", "/v1/files")]


@pytest.mark.parametrize(
    ("variables", "arguments", "told"),
    [
        ({"OLLAMA_HOST": "https://h/ollama"}, [], "https://h:443/ollama has a path"),
        ({}, ["--host", "/run/a.sock,127.0.0.1"], "give one Unix socket, or addresses"),
        ({}, ["--host", "/run/a.sock", "--socket", "/b"], "give one Unix socket, or addresses"),
    ],
)
def test_addresses_that_no_server_can_have_are_refused(
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    variables: dict[str, str],
    arguments: list[str],
    told: str,
) -> None:
    for name, value in variables.items():
        monkeypatch.setenv(name, value)
    assert app.run(["serve", "--port", "0", *arguments]) == 2
    [line] = capsys.readouterr().err.splitlines()
    assert told in line
