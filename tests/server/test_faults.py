"""What a server survives: its own end by any signal, processes that stand still, long use."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import httpx
import psutil
import pytest
from support.serving import is_alive
from support.waiting import PATIENCE_S, wait_until

pytestmark = [pytest.mark.server, pytest.mark.slow]

SETTLE_S = 5.0  # what is closed a moment after an answer is closed by then
STILL_S = 2.5  # a process stands still for longer than two of the server's questions


def body(tokens: int, **more: Any) -> dict[Any, Any]:
    options = {"num_predict": tokens, "temperature": 0}
    return {"model": "tiny", "prompt": "hello", "options": options} | more


class Stream:
    """An answer that is read on a thread of its own."""

    def __init__(self, server: Any, tokens: int) -> None:
        self.lines: list[Any] = []
        self._asked = (f"{server.url}/api/generate", body(tokens))
        self._thread = threading.Thread(target=self._read, daemon=True)
        self._thread.start()
        wait_until(lambda: len(self.lines) >= 3, "the answer begins")

    def _read(self) -> None:
        url, asked = self._asked
        try:
            with httpx.stream("POST", url, json=asked, timeout=300) as got:
                self.lines.extend(map(json.loads, got.iter_lines()))
        except httpx.TransportError:
            self.lines.append({"broken": True})

    def text(self) -> str:
        """Return all of it, at its end."""
        self._thread.join(PATIENCE_S)
        assert self.lines[-1].get("done"), self.lines[-1]
        return "".join(line["response"] for line in self.lines)


def family(server: Any) -> list[psutil.Process]:
    """Return the processes below the server's, those that help its models too."""
    return psutil.Process(server.process.pid).children(recursive=True)


def wait_until_gone(processes: list[psutil.Process]) -> None:
    wait_until(lambda: not any(map(is_alive, processes)), f"these end: {processes}")


def test_killed_server_leaves_no_process_and_can_restart(start: Callable[..., Any]) -> None:
    server = start()
    Stream(server, 10**6)
    processes = family(server)
    assert processes
    server.process.kill()
    server.process.wait(PATIENCE_S)
    wait_until_gone(processes)
    assert Stream(start(), 50).text()


def test_shutdown_does_not_change_running_answers(start: Callable[..., Any]) -> None:
    server = start(TAMPU_NUM_PARALLEL="2")
    undisturbed = Stream(server, 1500).text()
    streams = [Stream(server, 1500) for _ in range(2)]
    processes = family(server)
    server.process.send_signal(signal.SIGTERM)
    assert [stream.text() for stream in streams] == [undisturbed] * 2
    assert server.process.wait(PATIENCE_S) == 0
    wait_until_gone(processes)


def listens(server: Any) -> bool:
    try:
        httpx.get(f"{server.url}/api/version", timeout=300)
    except httpx.TransportError:
        return False
    return True


@pytest.mark.parametrize("second", [signal.SIGTERM, signal.SIGINT])
def test_second_signal_forces_shutdown(start: Callable[..., Any], second: signal.Signals) -> None:
    server = start(TAMPU_DRAIN_TIMEOUT="24h")  # so that only the second signal can end it
    stream = Stream(server, 10**6)
    processes = family(server)
    server.process.send_signal(signal.SIGTERM)
    wait_until(lambda: not listens(server), "it takes no more connections")
    before = len(stream.lines)
    wait_until(lambda: len(stream.lines) > before + 3, "the answer goes on all the same")
    server.process.send_signal(second)
    assert server.process.wait(PATIENCE_S) == 0
    wait_until_gone(processes)
    assert "done" not in stream.lines[-1] or not stream.lines[-1]["done"]
    assert "Traceback" not in server.log.read_text()


def test_stopped_and_continued_process_loses_nothing(start: Callable[..., Any]) -> None:
    server = start()
    undisturbed = Stream(server, 800).text()
    stream = Stream(server, 800)
    [worker] = server.workers()
    worker.suspend()
    time.sleep(STILL_S)
    worker.resume()
    assert stream.text() == undisturbed
    assert server.workers() == [worker]


def grows_no_more(process: psutil.Process, use: Callable[[], Any]) -> bool:
    """Whether some use leaves no more files and threads than there were; a leak grows each time.

    Pools of threads grow for a while, as it comes about.
    """

    def counts() -> tuple[Any, Any]:
        return process.num_fds(), process.num_threads()

    def is_as_before() -> Any:
        files, threads = counts()
        return files <= before[0] and threads <= before[1]

    for _ in range(10):
        before = counts()
        use()
        end = time.monotonic() + SETTLE_S
        while time.monotonic() < end:
            if is_as_before():
                return True
            time.sleep(0.01)
    return False


def test_no_files_threads_or_processes_leak(start: Callable[..., Any]) -> None:
    server = start()
    process = psutil.Process(server.process.pid)

    def use(client: httpx.Client) -> None:
        for _ in range(3):
            client.post("/api/generate", json=body(3, stream=False))
            with client.stream("POST", "/api/generate", json=body(10**6)) as got:
                next(got.iter_lines())
            assert client.post("/api/generate", json=body(3, raw=True, system="x")).is_error
            assert client.post("/api/generate", json=body(3, format={"type": 1})).is_error
        client.post("/api/generate", json={"model": "nothing"})

    def use_and_rest(client: httpx.Client) -> None:
        use(client)
        client.post("/api/generate", json={"model": "tiny", "keep_alive": 0})
        wait_until(lambda: not server.workers(), "the model's process ends")

    with httpx.Client(base_url=server.url, timeout=300) as client:
        use(client)
        [worker] = server.workers()
        assert grows_no_more(worker, lambda: use(client))
        assert server.workers() == [worker]
        use_and_rest(client)
        assert grows_no_more(process, lambda: use_and_rest(client))
        wait_until(lambda: not any(map(is_alive, family(server))), "its processes end")


@pytest.mark.parametrize(
    ("environment", "told"),
    [
        ({"OLLAMA_HOST": "x:y:z"}, "OLLAMA_HOST"),
        ({"TAMPU_NUM_PARALLEL": "-1"}, "TAMPU_NUM_PARALLEL"),
        ({"TAMPU_KEEP_ALIVE": "soon"}, "TAMPU_KEEP_ALIVE"),
        ({"TAMPU_CONFIG": "/nowhere/tampu.toml"}, "tampu.toml"),
        ({"TAMPU_TLS_CERT": "/nowhere/cert.pem"}, "certificate"),
        ({"TAMPU_TLS_CERT": __file__}, "certificate"),
        ({"TAMPU_TLS_KEY": __file__}, "TAMPU_TLS_CERT"),
        ({"TAMPU_SOCKET": "/nowhere/socket"}, "cannot listen"),
    ],
)
def test_startup_error_is_one_line(environment: dict[str, str], told: str, tmp_path: Path) -> None:
    command: list[Any] = [sys.executable, "-m", "tampu.cli.entry", "serve", "--port", "0"]
    variables = {"PATH": "/usr/bin:/bin", "HOME": str(tmp_path), **environment}
    done = subprocess.run(command, env=variables, capture_output=True, text=True, timeout=280)
    assert done.returncode in (1, 2)
    assert "Traceback" not in done.stderr
    assert "Listening" not in done.stderr
    [error] = [line for line in done.stderr.splitlines() if line.startswith("Error: ")]
    assert told in error


def test_server_starts_without_a_home_folder(endless_models: Path, tmp_path: Path) -> None:
    serve = [sys.executable, "-m", "tampu.cli.entry", "serve"]
    command: list[Any] = [*serve, "--port", "0", "--models", endless_models]
    process = subprocess.Popen(
        command, env={"PATH": "/usr/bin:/bin"}, cwd=tmp_path, stderr=subprocess.PIPE, text=True
    )
    try:
        for line in process.stderr:
            assert "Traceback" not in line
            if "Listening" in line:
                break
        else:
            pytest.fail("it has ended")
    finally:
        process.kill()
        process.communicate()
