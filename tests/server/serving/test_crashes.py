"""A model's process may die at any moment: its requests hear of it, nobody else does."""

from __future__ import annotations

import json
import re
import shutil
import signal
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import httpx
import pytest
from support.endless import make_endless_model
from support.serving import Server, start_server
from support.waiting import PATIENCE_S, wait_until

pytestmark = [pytest.mark.server, pytest.mark.slow]

# What a process's death may take to be told, in times that a process takes to load a model, which
# is measured beside it.
TOLD = 3.0
CONTEXT = 512
LONG = {"num_predict": 10 * CONTEXT, "num_ctx": CONTEXT, "temperature": 0}
SHORT = {"num_predict": 3, "temperature": 0}


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    folder = tmp_path_factory.mktemp("models")
    make_endless_model(tmp_path_factory.mktemp("checkpoint"), folder / "tiny.gguf")
    shutil.copy(folder / "tiny.gguf", folder / "other.gguf")
    server = start_server(
        folder,
        tmp_path_factory.mktemp("home"),
        TAMPU_HANG_TIMEOUT="600",  # so that nothing tells of a death but the death itself
        TAMPU_THREADS="1",
        TAMPU_MAX_CRASHES="0",
    )
    yield server
    server.end()


@pytest.fixture
def client(server: Server) -> Iterator[httpx.Client]:
    with httpx.Client(base_url=server.url, timeout=300) as client:
        yield client
        for model in ("tiny", "other"):
            client.post("/api/generate", json={"model": model, "keep_alive": 0})
        wait_until(lambda: not server.workers(), "the models' processes end")


def body(model: str = "tiny", **more: Any) -> dict[Any, Any]:
    return {"model": model, "prompt": "hello", "options": LONG} | more


@contextmanager
def stream(client: httpx.Client, model: str = "tiny") -> Iterator[Iterator[str]]:
    with client.stream("POST", "/api/generate", json=body(model)) as response:
        lines = response.iter_lines()
        next(lines)
        yield lines


def answers(client: httpx.Client, model: str = "tiny") -> bool:
    found = client.post("/api/generate", json=body(model, options=SHORT, stream=False))
    return found.status_code == 200 and found.json()["eval_count"] == 3


def seconds_to_load(client: httpx.Client) -> float:
    """Return how long an answer takes whose model is not in memory."""
    began = time.monotonic()
    assert answers(client)
    return time.monotonic() - began


def last_error(lines: Iterator[str]) -> tuple[Any, float]:
    """Return the error that ends a stream, and after how long."""
    began = time.monotonic()
    error = json.loads(list(lines)[-1])["error"]
    return error, time.monotonic() - began


@pytest.mark.parametrize(
    "number", [signal.SIGKILL, signal.SIGABRT, signal.SIGSEGV, signal.SIGTERM, signal.SIGBUS]
)
def test_crash_while_answering_is_reported_with_its_cause(
    server: Server, client: httpx.Client, number: signal.Signals
) -> None:
    with stream(client) as lines:
        [worker] = server.workers()
        worker.send_signal(number)
        error, seconds = last_error(lines)
    assert number.name in error
    assert seconds < TOLD * seconds_to_load(client)
    assert server.process.poll() is None


def test_crash_does_not_affect_other_models(server: Server, client: httpx.Client) -> None:
    with stream(client, "other") as canary:
        before = {worker.pid for worker in server.workers()}
        with stream(client) as lines:
            [worker] = [worker for worker in server.workers() if worker.pid not in before]
            worker.kill()
            last_error(lines)
        assert answers(client)
        pieces = [json.loads(line) for line in canary]
    assert not any("error" in piece for piece in pieces)
    assert (pieces[-1]["done_reason"], pieces[-1]["eval_count"]) == ("length", 10 * CONTEXT)


def crashes(client: httpx.Client) -> float:
    """Return how many deaths of the model the metrics have."""
    name = 'tampu_model_crashes_total{model="tiny"}'
    counted = [line for line in client.get("/metrics").text.splitlines() if line.startswith(name)]
    return sum(float(line.split()[-1]) for line in counted)


def holders(client: httpx.Client) -> int:
    """Return how many requests have the model, or wait for a slot in it."""
    found = re.search(r'tampu_model_requests{model="tiny"} (\d+)', client.get("/metrics").text)
    return int(found[1]) if found else 0


def test_crash_fails_waiting_requests_too_and_counts_once(
    server: Server, client: httpx.Client
) -> None:
    errors, before = [], crashes(client)

    def wait() -> None:
        with httpx.Client(base_url=server.url, timeout=300) as other:
            errors.append(other.post("/api/generate", json=body(stream=False)))

    with stream(client) as lines:
        threads = [threading.Thread(target=wait) for _ in range(3)]
        for thread in threads:
            thread.start()
        wait_until(lambda: holders(client) == 4, "all four requests have the model")
        for _ in range(8):  # they come after the requests, so the process has taken these
            client.post("/api/tokenize", json={"model": "tiny", "text": "a"}).raise_for_status()
        [worker] = server.workers()
        worker.kill()
        last_error(lines)
        for thread in threads:
            thread.join(PATIENCE_S)
    failed = [response for response in errors if response.status_code != 200]
    assert failed  # one that the process had not taken yet is answered by the next
    assert all(response.status_code == 500 for response in failed)
    assert all("SIGKILL" in response.json()["error"] for response in failed)
    assert crashes(client) == before + 1
    assert answers(client)


def test_crash_while_loading_is_reported(server: Server, client: httpx.Client) -> None:
    outcome = []

    def load() -> None:
        with httpx.Client(base_url=server.url, timeout=300) as other:
            outcome.append(other.post("/api/generate", json=body(stream=False)))

    thread = threading.Thread(target=load)
    thread.start()
    wait_until(server.workers, "the model's process begins")[0].kill()
    thread.join(PATIENCE_S)
    [response] = outcome
    assert response.status_code == 500
    assert "SIGKILL" in response.json()["error"]
    assert answers(client)


def test_model_that_crashed_while_idle_is_loaded_again(
    server: Server, client: httpx.Client
) -> None:
    assert answers(client)
    [worker] = server.workers()
    worker.kill()
    worker.wait(PATIENCE_S)
    assert answers(client)
    assert [model["name"] for model in client.get("/api/ps").json()["models"]] == ["tiny:latest"]


def test_hung_model_is_killed_and_reported(start: Callable[..., Any]) -> None:
    server = start(TAMPU_HANG_TIMEOUT="2")
    with httpx.Client(base_url=server.url, timeout=300) as client:
        with stream(client) as lines:
            [worker] = server.workers()
            worker.suspend()  # for ever: the stream ends only if the server ends the process
            error, seconds = last_error(lines)
        assert "did not respond for 2 s" in error
        assert seconds >= 1
        assert answers(client)


def test_crash_fails_only_requests_in_progress(server: Server, client: httpx.Client) -> None:
    """Requests come all the time, also in the moment in which the process ends."""
    assert answers(client)
    stop, told, kills = threading.Event(), [], []

    def ask() -> None:
        with httpx.Client(base_url=server.url, timeout=300) as other:
            while not stop.is_set():
                began = time.monotonic()
                asked = body(stream=False, options={"num_predict": 2})
                response = other.post("/api/generate", json=asked)
                told.append((began, time.monotonic(), response))

    threads = [threading.Thread(target=ask) for _ in range(4)]
    for thread in threads:
        thread.start()
    for more in (1, 9, 2, 23, 5):
        answered = len(told) + more

        def is_answered(most: int = answered) -> bool:
            return len(told) >= most

        wait_until(is_answered, "requests are answered")
        for worker in wait_until(server.workers, "the model is loaded again"):
            began = time.monotonic()
            worker.kill()
            kills.append((began, time.monotonic()))
    stop.set()
    for thread in threads:
        thread.join(PATIENCE_S)
    assert len(kills) >= 5
    assert {response.status_code for *_, response in told} <= {200, 500}
    for began, ended, response in told:
        if response.status_code == 500:
            assert "SIGKILL" in response.json()["error"]
            assert any(began <= after and before <= ended for before, after in kills)
