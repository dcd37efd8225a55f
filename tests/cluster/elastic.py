"""Replicas that come, go and die under load, on three nodes on this machine: `make ray-test`."""

from __future__ import annotations

import dataclasses
import secrets
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass, field
from itertools import cycle, islice
from pathlib import Path
from typing import Any

import psutil
import pytest
import ray
from msgspec.structs import replace
from ray._private.state import available_resources_per_node
from support.ray_cluster import FAMILIES, NODES, SETTINGS, SLOTS, Live, ray_cluster, streamed
from support.scripted import write_scripted
from support.serving import WORKER, command_of
from support.tiny_hybrid import hybrid_weights, tiny_hybrid
from support.tiny_model import write_tiny
from support.waiting import wait_until

from tampu.cluster.config import ClusterConfig, DeployedModel
from tampu.cluster.deploying import deploy
from tampu.errors import RunnerDiedError
from tampu.server.options import server_options
from tampu.settings.settings import Settings

STREAMS = 60
TOKENS, MANY_TOKENS = 600, 3000
WORDS = [" la", " li", " lo"]


@pytest.fixture(autouse=True)
def no_threads_left() -> None:
    """Ray's threads stay as long as the connection to the cluster."""


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> str:
    """The path of a model that says the same words again and again."""
    path = tmp_path_factory.mktemp("models") / "endless.gguf"
    template = "{{ messages[-1].content }}z"
    return str(write_scripted(path, WORDS, repeats=3, template=template, context=8192))


@pytest.fixture(scope="module")
def live(model: str) -> Iterator[Live]:
    with ray_cluster([replicas(model, NODES)]) as live:
        yield live


def replicas(model: str, count: int) -> DeployedModel:
    return DeployedModel(model=model, replicas=count, cpus=0.5)


@dataclass
class Stream:
    """A request that a thread reads.

    Attributes:
        number: of the request; it decides of which family it is.
        tokens: of its answer.
        text: at the beginning of its prompt, which no replica has in its cache.
        begun: set when the first piece has come.
    """

    number: int
    live: Live
    tokens: int = TOKENS
    text: str = field(default_factory=lambda: secrets.token_hex(8))
    begun: threading.Event = field(default_factory=threading.Event)

    @property
    def whole(self) -> str:
        """What it ends with, if nothing fails."""
        return "".join(islice(cycle(WORDS), self.tokens)).strip()

    @property
    def path(self) -> str:
        return FAMILIES[self.number % len(FAMILIES)]

    def read(self) -> tuple[str, list[dict[str, Any]]]:
        """The text, and the errors."""
        messages = [{"role": "user", "content": f"{self.text}: what now?"}]
        body = {"model": "endless", "messages": messages, "stream": True}
        is_ollama = self.path.startswith("/api")
        body |= (
            {"options": {"num_predict": self.tokens}} if is_ollama else {"max_tokens": self.tokens}
        )
        with self.live.client.stream("POST", self.path, json=body) as response:
            assert response.status_code == 200, response.read()
            return streamed(self._noted(response.iter_lines()))

    def _noted(self, lines: Iterator[str]) -> Iterator[str]:
        for line in lines:
            self.begun.set()
            yield line


@dataclass
class Load:
    """Streams that threads read.

    Attributes:
        streams: each with what it had in the end.
    """

    streams: list[tuple[Stream, Future[tuple[str, list[dict[str, Any]]]]]]

    def begun(self) -> int:
        """How many have begun."""
        return sum(stream.begun.is_set() for stream, _ in self.streams)

    def ends(self) -> list[tuple[Stream, str, list[dict[str, Any]]]]:
        """Each with its text and its errors, when all have ended."""
        return [(stream, *end.result()) for stream, end in self.streams]


@contextmanager
def loaded(live: Live, count: int, tokens: int = TOKENS) -> Iterator[Load]:
    """Read streams in threads, which have ended when this does."""
    with ThreadPoolExecutor(count) as threads:
        streams = [Stream(number, live, tokens) for number in range(count)]
        yield Load([(each, threads.submit(each.read)) for each in streams])


def actors() -> set[str]:
    """The names of the replicas' actors."""
    named = ray.util.list_named_actors(all_namespaces=True)
    return {each["name"] for each in named if "endless" in each["name"]}


def requests(live: Live) -> list[int]:
    """How many requests each replica has."""
    return [each["requests"] for each in live.loads(live.config.models[0].deployment)]


def check_ends(load: Load) -> int:
    """Check that each stream is whole, or ends with an error; return how many do so."""
    ends = load.ends()
    failed = [(stream, errors) for stream, _, errors in ends if errors]
    assert all(text.strip() == stream.whole for stream, text, errors in ends if not errors)
    for stream, [error] in failed:
        told = error["error"] if stream.path.startswith("/api") else error["error"]["message"]
        assert "has ended" in told
        assert stream.path != "/v1/messages" or error["type"] == "error"
        assert stream.begun.is_set()  # else another replica would have got it
    return len(failed)


def all_serve(live: Live) -> bool:
    return len(requests(live)) == NODES


def test_replicas_that_are_taken_away_finish_their_streams(live: Live, model: str) -> None:
    with loaded(live, 3 * NODES, MANY_TOKENS) as load:
        wait_until(lambda: load.begun() == 3 * NODES, "all streams have begun")
        assert all(requests(live))
        before = actors()
        live.deploy(replicas(model, 1))
        assert check_ends(load) == 0
    wait_until(lambda: len(requests(live)) == 1, "there is one replica")
    live.deploy(replicas(model, NODES))
    wait_until(lambda: all_serve(live), "there are three replicas")
    assert len(before & actors()) == 1  # one stays as it is, with its cache


def test_streams_end_when_all_replicas_and_the_ingress_are_replaced(live: Live, model: str) -> None:
    with loaded(live, 2 * NODES, MANY_TOKENS) as load:
        wait_until(lambda: load.begun() == 2 * NODES, "all streams have begun")
        before = actors()
        live.deploy(replicas(model, NODES), context=2048)
        assert check_ends(load) == 0
    wait_until(lambda: all_serve(live) and not before & actors(), "all replicas are others")
    answer = live.client.post("/v1/completions", json={"model": "endless", "prompt": "a"})
    assert answer.status_code == 200
    live.deploy(replicas(model, NODES))
    wait_until(lambda: all_serve(live), "there are three replicas")


@contextmanager
def asking(live: Live, threads: int, tokens: int, model: str = "endless") -> Iterator[None]:
    """Ask in threads again and again; check at the end that each answer was whole."""
    is_over = threading.Event()
    asked: list[tuple[int, Any]] = []

    def ask(number: int) -> None:
        while not is_over.is_set():
            body = {"model": model, "prompt": f"{number}", "max_tokens": tokens}
            body |= {"ignore_eos": True}
            answer = live.client.post("/v1/completions", json=body)
            found = answer.json()
            asked.append((answer.status_code, found.get("usage", found).get("completion_tokens")))

    with ThreadPoolExecutor(threads) as pool:
        running = [pool.submit(ask, number) for number in range(threads)]
        try:
            yield
        finally:
            is_over.set()
    assert [each.result() for each in running] == [None] * threads
    assert {*asked} == {(200, tokens)}
    assert len(asked) > threads


def test_no_request_is_lost_from_three_replicas_to_one_and_back(live: Live, model: str) -> None:
    with asking(live, 6, tokens=30):
        for count in (1, NODES):
            live.deploy(replicas(model, count))
            wait_until(lambda: len(requests(live)) == count, "there are as many replicas")  # noqa: B023 - it is called here


def test_replicas_are_added_for_requests_that_wait_and_taken_away_without(
    live: Live, model: str
) -> None:
    live.deploy(replicas(model, 1))  # else Ray would begin with as many as there are
    wait_until(lambda: len(requests(live)) == 1, "there is one replica")
    elastic = replace(replicas(model, 1), max_replicas=2, upscale_delay_s=1, downscale_delay_s=1)
    live.deploy(elastic)
    assert len(requests(live)) == 1
    with asking(live, 3 * SLOTS, tokens=TOKENS):
        wait_until(lambda: sum(map(bool, requests(live))) == 2, "two replicas answer")
    wait_until(lambda: len(requests(live)) == 1, "there is one replica again")
    live.deploy(replicas(model, NODES))
    wait_until(lambda: all_serve(live), "there are three replicas")


def test_replicas_are_added_for_more_requests_than_a_model_has_slots(
    live: Live, model: str, tmp_path: Path
) -> None:
    """With recurrent layers it gets fewer than the eight that are wanted."""
    path = write_tiny(tmp_path / "hybrid.gguf", tiny_hybrid(), weights=hybrid_weights())
    hybrid = DeployedModel(
        model=str(path), max_replicas=2, cpus=0.5, upscale_delay_s=1, downscale_delay_s=1
    )
    small = {"HOME": "/nonexistent", "TAMPU_STATE_CACHE": "30000"}
    here = dataclasses.replace(live, settings=Settings.from_environment(small))
    here.deploy(hybrid)
    [found] = here.loads(hybrid.deployment)
    assert found["slots"] == 2
    with asking(here, 4, tokens=200, model="hybrid"):
        wait_until(lambda: len(here.loads(hybrid.deployment)) == 2, "two replicas answer")
    live.deploy(replicas(model, NODES))
    wait_until(lambda: all_serve(live), "there are three replicas")


def kill_replica(_: Live) -> None:
    ray.kill(ray.get_actor(min(actors()), namespace="serve"))


def kill_process(_: Live) -> None:
    """Kill the process of a replica's model, not the replica."""
    ours = psutil.Process().children(recursive=True)
    next(each for each in ours if WORKER in command_of(each)).kill()


def kill_node(live: Live) -> None:
    """Kill a node that has a replica."""
    free = available_resources_per_node()
    node = next(each for each in live.nodes if free[each.node_id].get("CPU", 0) < 1)
    live.cluster.remove_node(node, allow_graceful=False)


@pytest.mark.parametrize("kill", [kill_process, kill_replica, kill_node])
def test_what_dies_ends_its_own_streams_alone(live: Live, kill: Callable[[Live], None]) -> None:
    """What had sent nothing yet is asked of another process or another replica."""
    with loaded(live, STREAMS) as load:
        wait_until(lambda: min(requests(live)) > SLOTS, "each replica has some that wait")
        wait_until(lambda: load.begun() >= NODES * SLOTS, "the slots are in use")
        kill(live)
        assert 0 < check_ends(load) <= 2 * SLOTS  # a node may have two replicas
    answer = live.client.post("/v1/completions", json={"model": "endless", "prompt": "a"})
    assert answer.status_code == 200
    wait_until(lambda: all_serve(live), "there are three replicas again")


def test_a_node_without_memory_for_a_model_is_one_line(live: Live, tmp_path: Path) -> None:
    large = str(write_scripted(tmp_path / "large.gguf", WORDS, context=2**20))
    config = ClusterConfig(
        models=(replicas(large, 1),), port=live.config.port, slots=1024, context=2**20
    )
    with pytest.raises(RunnerDiedError, match=r"do not start: .*does not fit on CPU") as caught:
        deploy(config, server_options(SETTINGS, []), SETTINGS)
    assert "\n" not in str(caught.value)
