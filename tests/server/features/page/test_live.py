"""`GET /api/live`: what the engine does, for those who look, and nothing for those who do not."""

from __future__ import annotations

import asyncio
import json
import socket
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import httpx
import pytest
from support.fake_runner import FakeStart
from support.serving import Server
from support.waiting import PATIENCE_S, wait_until

from tampu.engine.load_options import LoadOptions
from tampu.server.features.page.live import LiveFeed
from tampu.server.options import ServerOptions
from tampu.server.serving.metrics import Metrics
from tests.server.conftest import Site

pytestmark = pytest.mark.slow

SECRET = "xylophone"
STREAM = {"accept": "text/event-stream"}


def events(response: httpx.Response) -> Any:
    """Yield the frames of a stream."""
    assert response.headers["content-type"] == "text/event-stream"
    for line in response.iter_lines():
        if line.startswith("data: "):
            yield json.loads(line.removeprefix("data: "))


def test_it_is_one_object_for_those_who_do_not_ask_for_a_stream(site: Site) -> None:
    async def test(client: httpx.AsyncClient) -> Any:
        await client.post("/api/generate", json={"model": "m", "prompt": "one two three"})
        return await client.get("/api/live")

    response = site.run(test)
    assert response.headers["content-type"].startswith("application/json")
    frame = response.json()
    assert set(frame) == {"number", "time_ms", "waiting", "processes", "models"}
    assert frame["processes"][0]["name"] == "server"
    assert frame["processes"][0]["memory_bytes"] > 0
    [model] = frame["models"]
    assert (model["name"], model["slots"], model["requests"]) == ("m:latest", 1, 0)
    for name, count in (("time_to_first_token", 1), ("time_between_tokens", 2)):
        found = model[name]
        assert sum(found["counts"]) == count
        assert len(found["counts"]) == len(found["bounds"]) + 1


async def test_models_are_asked_only_while_somebody_looks(site: Site) -> None:
    async with site.started() as client:
        await client.post("/api/generate", json={"model": "m", "prompt": "one"})
        [(_, runner)] = site.start.runners
        assert runner.observed == 0
        await client.get("/api/live")
        seen = runner.observed
        assert seen > 0
        await client.post("/api/generate", json={"model": "m", "prompt": "pause pause"})
        assert runner.observed == seen


def feed() -> LiveFeed:
    class NoModels:
        def models(self) -> list[Any]:
            return []

    return LiveFeed(NoModels(), Metrics(), lambda: 0, frame_s=0.001)  # type: ignore[arg-type]


async def test_a_watcher_that_leaves_is_forgotten_at_once() -> None:
    live, others = feed(), asyncio.all_tasks()
    frames = live.frames(lambda: False)
    await anext(frames)
    assert live.watchers == 1
    await frames.aclose()
    assert live.watchers == 0
    await asyncio.wait(asyncio.all_tasks() - others)  # they are cancelled


async def test_a_slow_watcher_gets_the_newest_frame_and_sees_that_some_are_missing() -> None:
    live = feed()
    quick, slow = live.frames(lambda: False), live.frames(lambda: False)
    first = json.loads(await anext(slow))["number"]
    for _ in range(20):
        newest = json.loads(await anext(quick))["number"]
    assert json.loads(await anext(slow))["number"] >= newest > first + 1
    await quick.aclose()
    await slow.aclose()


async def test_streams_end_with_the_server() -> None:
    seen: list[bytes] = []
    async for frame in feed().frames(lambda: bool(seen)):
        seen.append(frame)
    assert seen


def test_where_keys_are_set_it_needs_one_that_manages_models(model_folder: Path) -> None:
    options = ServerOptions(model=LoadOptions(context=64), use_api_keys=("u",), api_keys=("m",))
    site = Site(model_folder, FakeStart(), options)
    keys: tuple[dict[str, str], ...] = ({}, {"x-api-key": "u"}, {"x-api-key": "m"})
    answers = site.call(*(("GET", "/api/live", {"headers": key}) for key in keys))
    assert [answer.status_code for answer in answers] == [401, 403, 200]


def ask(server: Server, prompt: str, count: int) -> dict[str, Any]:
    """Return the answer of so many tokens."""
    body = {"model": "tiny", "prompt": prompt, "raw": True, "stream": False}
    options = {"options": {"num_predict": count, "repeat_last_n": 0}}
    answer = httpx.post(f"{server.url}/api/generate", json=body | options, timeout=PATIENCE_S)
    assert answer.status_code == 200
    return dict(answer.json())


def test_requests_at_work_are_seen_without_their_texts(start: Callable[..., Server]) -> None:
    server = start(TAMPU_NUM_PARALLEL="4")
    ask(server, SECRET, 1)
    told = []
    with (
        ThreadPoolExecutor(4) as pool,
        httpx.stream(
            "GET", f"{server.url}/api/live", headers=STREAM, timeout=PATIENCE_S
        ) as response,
    ):
        frames = events(response)
        told.append(next(frames))
        working = [pool.submit(ask, server, f"{SECRET} {SECRET} {n}", 200) for n in range(4)]
        while not all(one.done() for one in working):
            told.append(next(frames))
        told += [next(frames), next(frames)]
    assert SECRET not in json.dumps(told)
    numbers = [frame["number"] for frame in told]
    assert numbers == sorted(set(numbers))
    runners = [model["runner"] for frame in told for model in frame["models"] if model["runner"]]
    steps = [step for runner in runners for step in runner["steps"]]
    parts = [part for step in steps for part in step["parts"]]
    assert len({request for request, *_ in parts}) == 4
    assert sum(runner["generated_tokens"] for runner in runners) > 0
    assert all(step["compute_ms"] > 0 for step in steps)
    assert any(runner["python_share"] is not None for runner in runners)
    assert runners[-1]["graphs_reused"] > 0
    caches = [runner["cache"] for runner in runners if runner["cache"]]
    assert any(node["tokens"] for cache in caches for node in cache["tree"])
    names = {process["name"] for process in told[-1]["processes"]}
    assert {"server", "tiny:latest"} <= names
    [model] = told[-1]["models"]
    assert (model["engine"], model["slots"], model["requests"]) == ("native", 4, 0)
    assert sum(model["time_to_first_token"]["counts"]) == 5


def test_a_watcher_that_does_not_read_delays_no_request(start: Callable[..., Server]) -> None:
    server = start()
    ask(server, "a", 1)
    address = (httpx.URL(server.url).host, httpx.URL(server.url).port)
    with socket.create_connection(address) as silent:
        silent.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 1)
        head = b"Host: localhost\r\nAccept: text/event-stream\r\n\r\n"
        silent.sendall(b"GET /api/live HTTP/1.1\r\n" + head)
        with httpx.stream(
            "GET", f"{server.url}/api/live", headers=STREAM, timeout=PATIENCE_S
        ) as response:
            frames = events(response)
            for _ in range(3):
                assert ask(server, "a", 50)["eval_count"] > 1
                next(frames)


def test_a_server_ends_beside_a_watcher(start: Callable[..., Server]) -> None:
    server = start(TAMPU_DRAIN_TIMEOUT="600s")
    with httpx.stream("GET", f"{server.url}/api/live", headers=STREAM) as response:
        next(events(response))
        assert server.stop() == 0


def test_a_model_whose_process_has_ended_is_left_out(start: Callable[..., Server]) -> None:
    server = start()
    ask(server, "a", 1)
    [worker] = server.workers()
    with httpx.stream(
        "GET", f"{server.url}/api/live", headers=STREAM, timeout=PATIENCE_S
    ) as response:
        frames = events(response)
        assert next(frames)["models"]
        worker.kill()
        wait_until(lambda: not [m for m in next(frames)["models"] if m["runner"]], "it is there")
    assert ask(server, "a", 1)["done"]
