"""`tampu run` beside a server: the server loads the model, keeps it, and answers."""

from __future__ import annotations

import json
import re
import shutil
import socket
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path
from typing import Any

import httpx
import numpy as np
import pytest
from PIL import Image
from support.endless import make_endless_model
from support.serving import Server, start_server
from support.terminal import Terminal
from support.waiting import wait_until

pytestmark = [pytest.mark.server, pytest.mark.slow]
TAMPU = [sys.executable, "-m", "tampu.cli.entry"]
QUESTION = ["-o", "temperature=0", "What is 27 + 58?"]


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    folder = tmp_path_factory.mktemp("models")
    make_endless_model(tmp_path_factory.mktemp("checkpoint"), folder / "tiny.gguf")
    server = start_server(
        folder, tmp_path_factory.mktemp("home"), TAMPU_THREADS="1", TAMPU_MAX_REPEATED_TOKENS="0"
    )
    yield server
    server.end()


@pytest.fixture
def home(tmp_path: Path) -> dict[Any, Any]:
    return {"HOME": str(tmp_path), "PATH": "/usr/bin:/bin", "TAMPU_THREADS": "1"}


@pytest.fixture
def run(server: Server, home: dict[Any, Any]) -> Callable[..., Any]:
    """Run `tampu run` to its end, with the server or another address."""

    def run(
        *arguments: str, text: str | None = None, **variables: str
    ) -> subprocess.CompletedProcess[Any]:
        return subprocess.run(
            [*TAMPU, "run", *arguments],
            env={**home, "TAMPU_HOST": server.url, **variables},
            input=text or "",
            capture_output=True,
            text=True,
            timeout=300,
        )

    return run


@pytest.fixture
def nowhere() -> str:
    """An address of this machine where nothing listens."""
    with socket.create_server(("127.0.0.1", 0)) as closed:
        port = closed.getsockname()[1]
    return f"127.0.0.1:{port}"


@pytest.fixture
def terminal(server: Server, home: dict[Any, Any]) -> Iterator[Callable[..., Any]]:
    opened = []

    def open_terminal(*arguments: str, **size: int) -> Terminal:
        command = [*TAMPU, "run", *arguments]
        opened.append(Terminal(command, {**home, "TAMPU_HOST": server.url}, **size))
        return opened[-1]

    yield open_terminal
    for each in opened:
        each.close()


def loaded(server: Server) -> dict[Any, Any]:
    return {one["name"]: one for one in httpx.get(f"{server.url}/api/ps").json()["models"]}


@pytest.fixture(autouse=True)
def nothing_loaded(server: Server) -> Iterator[None]:
    """Unload all models after a test."""
    yield
    for model in loaded(server):
        asked = {"model": model, "keep_alive": 0}
        httpx.post(f"{server.url}/api/generate", json=asked, timeout=300)


def listening(answer: bytes) -> tuple[HTTPServer, str]:
    """Run something on loopback that answers every request so; return it and its address."""

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            self.send_response(200)
            self.end_headers()
            self.wfile.write(answer)

        def do_POST(self) -> None:
            self.do_GET()

        def log_message(self, *_: object) -> None:
            pass

    other = HTTPServer(("127.0.0.1", 0), Handler)
    threading.Thread(target=other.serve_forever, daemon=True).start()
    return other, f"127.0.0.1:{other.server_port}"


def test_server_answers_and_keeps_the_model_for_keepalive(
    server: Server, run: Callable[..., Any]
) -> None:
    first = run("demo", "--verbose", *QUESTION)
    assert (first.returncode, first.stdout.strip()) == (0, "85")
    assert "eval count" in first.stderr
    [name] = loaded(server)
    assert name.startswith("demo")
    assert run("demo", "--keepalive", "0", *QUESTION).stdout.strip() == "85"
    assert loaded(server) == {}
    run("demo", "--keepalive", "-1", *QUESTION)
    [kept] = loaded(server).values()
    assert kept["expires_at"] > "2100"


def test_format_and_parameters_reach_the_server(run: Callable[..., Any]) -> None:
    answer = run("demo", "--format", '{"type": "integer"}', *QUESTION)
    assert isinstance(json.loads(answer.stdout), int)
    answer = run("tiny", "--num-predict", "3", "--verbose", "hello")
    assert "3 token(s)" in answer.stderr
    refused = run("tiny", "-o", "num_ctx=1", "hello")
    assert (refused.returncode, "num_ctx" in refused.stderr) == (2, True)


def test_a_conversation_at_a_terminal(server: Server, terminal: Callable[..., Any]) -> None:
    opened = terminal("demo", "-o", "temperature=0", columns=160, lines=60)
    opened.wait_for("Send a message")
    assert len(loaded(server)) == 1
    opened.type("What is 27 + 58?\r")
    opened.wait_for("85\n\n>>>")
    opened.type("/show info\r")
    opened.wait_for("context length")
    opened.type("/show parameters\r")
    opened.wait_for("temperature")
    opened.type("/save mine\r")
    opened.wait_for("Created new model 'mine'")
    opened.type("/list\r")
    opened.wait_for("NAME", "tiny")
    opened.type("/clear\r/load mine\r")
    opened.wait_for("Loaded 'mine'.", ">>> What is 27 + 58?\n85")
    opened.type("/load nothing\r")
    opened.wait_for("Error: model 'nothing' not found")
    opened.type("What is 12 + 13?\r")
    opened.wait_for("\n25\n")
    opened.type("/bye\r")
    assert opened.wait() == 0
    assert "mine:latest" in loaded(server)
    httpx.request("DELETE", f"{server.url}/api/delete", json={"model": "mine"})


def test_image_gets_the_same_answer_with_and_without_a_server(
    run: Callable[..., Any], nowhere: str, tmp_path: Path
) -> None:
    path = tmp_path / "a picture.png"
    Image.fromarray(np.full((64, 64, 3), (220, 30, 30), np.uint8)).save(path)
    asked = ["demo", "-o", "temperature=0", "--verbose", f"'{path}' What color is the shape?"]
    there, here = run(*asked), run(*asked, TAMPU_HOST=nowhere)
    assert there.stdout == here.stdout
    counts = [re.search(r"prompt eval count: +(\d+)", one.stderr)[1] for one in (there, here)]
    assert counts[0] == counts[1]
    assert int(counts[0]) > 30  # the picture is among them


def test_ctrl_c_cancels_the_answer_in_the_server(
    server: Server, terminal: Callable[..., Any]
) -> None:
    opened = terminal("tiny", "-o", "temperature=0", lines=12)
    opened.wait_for("Send a message")
    opened.type("hello\r")
    opened.wait_until(lambda: len(opened.text) > 300, "a long answer")
    opened.type("\x03")
    opened.wait_for(">>> Send a message")
    idle = 'tampu_model_requests{model="tiny"} 0.0'
    wait_until(lambda: idle in httpx.get(f"{server.url}/metrics").text, "the answer ends")
    opened.type("/bye\r")
    assert opened.wait() == 0


def test_worker_crash_prints_an_error_and_the_conversation_continues(
    server: Server, terminal: Callable[..., Any]
) -> None:
    opened = terminal("tiny", "-o", "temperature=0", columns=200, lines=50)
    opened.wait_for("Send a message")
    opened.type("hello\r")
    opened.wait_until(lambda: len(opened.text) > 300, "a long answer")
    [worker] = server.workers()
    worker.kill()
    opened.wait_for("SIGKILL", ">>> Send a message")
    opened.type("/set parameter num_predict 3\r/set verbose\rhello\r")
    opened.wait_for("3 token(s)")
    opened.type("/bye\r")
    assert opened.wait() == 0


def test_model_runs_here_without_a_server_or_with_another_program(
    server: Server, run: Callable[..., Any], nowhere: str
) -> None:
    alone = run("demo", *QUESTION, TAMPU_HOST=nowhere)
    assert (alone.stdout.strip(), alone.stderr) == ("85", "")
    for answer in (b"<html>", b'{"version": "0.33.0"}'):
        other, address = listening(answer)
        found = run("demo", *QUESTION, TAMPU_HOST=address)
        other.shutdown()
        other.server_close()
        assert found.stdout.strip() == "85"
        assert found.stderr.count("\n") == 1
        assert "the model runs in this program" in found.stderr
    assert loaded(server) == {}


@pytest.mark.parametrize(
    ("answer", "why"), [(b"<html>", "not JSON"), (b"[1]", "not an object"), (b"\xff", "not JSON")]
)
def test_ps_names_the_server_whose_response_is_not_ollamas(
    home: dict[Any, Any], answer: bytes, why: str
) -> None:
    other, address = listening(answer)
    done = subprocess.run(
        [*TAMPU, "ps"], env={**home, "TAMPU_HOST": address}, capture_output=True, text=True
    )
    other.shutdown()
    other.server_close()
    told = f"Error: unexpected response from the server at http://{address}: {why}\n"
    assert (done.returncode, done.stderr) == (2, told)


@pytest.mark.parametrize(
    ("name", "told"),
    [
        ("dem", "not found: did you mean demo? (there are: demo, demo-draft, digits, tiny); it"),
        ("bad name!", "a model name must not contain spaces: 'bad name!'"),
    ],
)
def test_a_name_that_no_place_has_is_one_error(
    run: Callable[..., Any], name: str, told: str
) -> None:
    found = run(name, "hello")
    assert (found.returncode, found.stdout) == (2, "")
    assert told in found.stderr
    assert "in this program" not in found.stderr
    assert found.stderr.count("Error: ") == 1


def test_the_warnings_of_an_answer_are_printed_once(run: Callable[..., Any], nowhere: str) -> None:
    for place in ({}, {"TAMPU_HOST": nowhere}):  # with the server, and without
        found = run("demo", "--context", "100000", *QUESTION, **place)
        told = "warning: num_ctx is 2048, the model's longest context, not 100000\n"
        assert found.stdout.strip() == "85"
        assert found.stderr.count(told) == 1
        assert "tampu.server" not in found.stderr


def test_files_and_models_missing_on_the_server_run_here(
    server: Server, run: Callable[..., Any], tmp_path: Path
) -> None:
    folder = tmp_path / "models"
    folder.mkdir()
    make_endless_model(tmp_path / "checkpoint", folder / "own.gguf")
    short = ["--num-predict", "3", "--verbose", "hello"]
    assert "3 token(s)" in run(str(folder / "own.gguf"), *short).stderr
    found = run("own", *short, TAMPU_MODELS=str(folder))
    assert "3 token(s)" in found.stderr
    assert f"{server.url} does not have own; the model runs in this program" in found.stderr
    missing = run(str(folder / "none.gguf"), *short)
    assert missing.stderr == f"Error: {folder / 'none.gguf'}: no such file\n"
    assert loaded(server) == {}
    shutil.rmtree(folder)
