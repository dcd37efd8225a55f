"""Replicas on three nodes of Ray on this machine: `python -m benchmarks.cluster [MODEL]`.

- conversations: 200 of 6 turns over three replicas; which prompt tokens were computed, with the
  router by prefixes and with Ray's round robin, and by one replica that has as many slots as three.
- full: the same with prompts three times as long and fewer at once, which fill the caches.
- ray: one replica through Ray beside `tampu serve`, in turns: the time to the first token of a
  request alone, and the tokens per second of streams together, of --tokens each.
- scale: three replicas, one and three again under load; whether a request is lost.
- kill: a node killed in the middle of 60 streams; what ends, and when all is as before.

It needs `tampu[ray]`, 4 GB of memory and about ten minutes. MODEL is `demo` or the path of a file
(see `benchmarks.models`); conversations need one that ends its answers.
"""

from __future__ import annotations

import argparse
import http.client
import json
import random
import socket
import statistics
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from functools import partial
from typing import Any

from ray import serve
from ray._private.state import available_resources_per_node
from ray.cluster_utils import Cluster

from benchmarks.server import server
from tampu.cluster.application import ROUTER
from tampu.cluster.config import APPLICATION, ClusterConfig, DeployedModel
from tampu.cluster.deploying import connect, deploy, stop
from tampu.server.options import server_options
from tampu.settings.settings import Settings

PARTS = ("conversations", "full", "ray", "scale", "kill")
NODES, SLOTS = 3, 8
CONVERSATIONS, TURNS, AT_ONCE = 200, 6, 60
FULL_LENGTH, FULL_AT_ONCE = 3, 36
STREAMS, STREAM_TOKENS = 60, 800
PAIRS, SPEED_STREAMS, SPEED_TOKENS, SPEED_ROUNDS = 200, 8, 512, 5
ROUND_ROBIN = "ray.serve.experimental.round_robin_router.RoundRobinRouter"
WORDS = ("alpha", "beta", "gamma", "delta", "epsilon")
CHAT = "/v1/chat/completions"


@dataclass
class Site:
    """A cluster, and what is deployed on it."""

    model: str
    cluster: Cluster
    nodes: list[Any]
    port: int
    tokens: int
    name: str = field(init=False)

    def __post_init__(self) -> None:
        self.name = self.model.rsplit("/", 1)[-1].removesuffix(".gguf")

    def deploy(self, replicas: int, slots: int = SLOTS, router: str = ROUTER) -> None:
        """Deploy replicas of one thread each."""
        model = DeployedModel(model=self.model, replicas=replicas, cpus=0.5)
        settings = Settings.from_environment({"HOME": "/nonexistent", "TAMPU_MAX_QUEUE": "1000"})
        config = ClusterConfig(models=(model,), port=self.port, slots=slots, context=2048)
        deploy(config, server_options(settings, [config.host]), settings, router)
        while len(self.loads()) != replicas:  # those of before finish what they have
            time.sleep(0.2)

    def loads(self) -> list[int]:
        """How many requests each replica that answers has."""
        [given] = [DeployedModel(model=self.model).deployment]
        handle = serve.get_deployment_handle(given, APPLICATION)
        found = handle.broadcast("record_routing_stats").results(return_exceptions=True)
        return [each["requests"] for each in found if isinstance(each, dict)]


@contextmanager
def site(model: str, tokens: int) -> Iterator[Site]:
    """Start three nodes; `tokens` is the length of streams whose speed is measured."""
    size = {"num_cpus": 1, "object_store_memory": 80 * 2**20}
    cluster = Cluster(initialize_head=True, head_node_args=size | {"include_dashboard": False})
    try:
        nodes = [cluster.add_node(**size) for _ in range(NODES - 1)]
        connect(cluster.address)
        yield Site(model, cluster, nodes, free_port(), tokens)
    finally:
        stop()
        cluster.shutdown()


def free_port() -> int:
    """Return a port that nothing uses, outside of those that the system and Ray take by chance."""
    for port in random.sample(range(20_000, 30_000), 100):
        with suppress(OSError), socket.create_server(("127.0.0.1", port)):
            return port
    raise SystemExit("no port is free from 20000 to 29999")


def ask(port: int, path: str, body: object) -> tuple[int, dict[str, Any]]:
    """Return the status and the body of an answer."""
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=300)
    connection.request("POST", path, json.dumps(body), {"Content-Type": "application/json"})
    response = connection.getresponse()
    content = response.read()
    connection.close()
    return response.status, json.loads(content)


@dataclass
class Stream:
    """A streamed answer.

    Attributes:
        first_s: when its first piece came, on the clock of `perf_counter`; 0: none came.
        ended_s: when it said why it ends: tokens such as an end token have no text.
        pieces: how many had text.
        is_whole: whether it has said that it ends with its limit of tokens.
        error: its message; empty: it is whole.
    """

    first_s: float = 0.0
    ended_s: float = 0.0
    pieces: int = 0
    is_whole: bool = False
    error: str = ""

    def read(self, connection: http.client.HTTPConnection, body: dict[str, Any]) -> None:
        """Ask for it, and read it to its end."""
        content = json.dumps(body | {"stream": True})
        connection.request("POST", CHAT, content, {"Content-Type": "application/json"})
        response = connection.getresponse()
        if response.status != 200:
            self.error = response.read().decode()
            return
        for line in response:
            data = line.removeprefix(b"data: ")
            if not data.startswith(b"{"):
                continue
            part = json.loads(data)
            if "error" in part:
                self.error = part["error"]["message"]
            elif part["choices"]:
                self.is_whole = part["choices"][0]["finish_reason"] == "length"
                if part["choices"][0]["finish_reason"]:
                    self.ended_s = time.perf_counter()
                if part["choices"][0]["delta"].get("content"):
                    self.pieces += 1
                    self.first_s = self.first_s or time.perf_counter()


def conversation(port: int, model: str, length: int, seed: int) -> tuple[int, int, int]:
    """Return the tokens of a conversation's prompts, those from a cache, and lost requests.

    `length` says how many times as long as usual its prompts are.
    """
    source = random.Random(seed)
    total = cached = lost = 0
    messages: list[dict[str, str]] = []
    for turn in range(TURNS):
        words = (source.choice(WORDS) for _ in range(10))
        text = " ".join([f"{seed} {turn}:", *words] * length * (4 if turn == 0 else 1))
        messages.append({"role": "user", "content": text})
        body = {"model": model, "messages": messages, "max_tokens": 16, "temperature": 0}
        status, found = ask(port, CHAT, body)
        if status != 200:
            lost += 1
            continue
        usage = found["usage"]
        total += usage["prompt_tokens"]
        cached += usage["prompt_tokens_details"]["cached_tokens"]
        messages.append(found["choices"][0]["message"])
    return total, cached, lost


def conversations(here: Site, length: int = 1, at_once: int = AT_ONCE) -> None:
    """Print how many tokens of prompts were computed, for each way to choose a replica."""
    computed = {}
    rates = {}
    for name, replicas, slots, router in (
        ("one replica with all slots", 1, NODES * SLOTS, ROUTER),
        ("three, by prefixes", NODES, SLOTS, ROUTER),
        ("three, round robin", NODES, SLOTS, ROUND_ROBIN),
    ):
        here.deploy(replicas, slots, router)
        began = time.perf_counter()
        ask_all = partial(conversation, here.port, here.name, length)
        with ThreadPoolExecutor(at_once) as threads:
            found = list(threads.map(ask_all, range(CONVERSATIONS)))
        total, cached, lost = (sum(each) for each in zip(*found, strict=True))
        computed[name], rates[name] = total - cached, cached / total
        print(
            f"{name}: {total} tokens of prompts, {total - cached} computed, hit rate "
            f"{cached / total:.3f}, {lost} lost, {time.perf_counter() - began:.0f} s",
            flush=True,
        )
    alone, prefixes, robin = computed
    print(f"round robin computes {computed[robin] / computed[prefixes]:.2f} times as many")
    print(f"hit rate: {rates[prefixes] / rates[alone]:.3f} of that of one replica", flush=True)


def full(here: Site) -> None:
    """Print the same where the conversations at once fill the caches."""
    conversations(here, FULL_LENGTH, FULL_AT_ONCE)


def first_token_s(port: int, model: str, number: int) -> float:
    """Return the seconds from a request to the first piece of its answer."""
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=60)
    connection.connect()
    found, began = Stream(), time.perf_counter()
    messages = [{"role": "user", "content": f"{number}: what is 27 + 58?"}]
    body = {"model": model, "messages": messages, "max_tokens": 4, "ignore_eos": True}
    found.read(connection, body)
    connection.close()
    return found.first_s - began


def speed(port: int, model: str, streams: int, tokens: int) -> tuple[float, float]:
    """Return the tokens per second of streams together, each with its own prompt; and pieces."""

    def read(number: int) -> Stream:
        found = Stream()
        messages = [{"role": "user", "content": f"{number}: what is 27 + 58?"}]
        body = {"model": model, "messages": messages, "ignore_eos": True}
        connection = http.client.HTTPConnection("127.0.0.1", port, timeout=120)
        found.read(connection, body | {"max_tokens": tokens})
        connection.close()
        return found

    with ThreadPoolExecutor(streams) as threads:
        found = list(threads.map(read, range(streams)))
    if cut := [each.error for each in found if not each.is_whole]:
        raise SystemExit(f"streams are not whole: {cut}")
    seconds = max(each.ended_s for each in found) - min(each.first_s for each in found)
    return streams * tokens / seconds, sum(each.pieces for each in found) / seconds


def beside_serve(here: Site) -> None:
    """Print what Ray adds to the first token, and how fast streams are beside `tampu serve`."""
    here.deploy(1)
    sizes = {"TAMPU_NUM_PARALLEL": f"{SLOTS}", "TAMPU_CONTEXT_LENGTH": "2048", "TAMPU_THREADS": "1"}
    with server(here.model, **sizes) as (_, direct):
        ports = {"tampu serve": direct, "Ray": here.port}
        for port in ports.values():
            for number in range(10):
                first_token_s(port, here.name, number)
        firsts: dict[str, list[float]] = {name: [] for name in ports}
        for number in range(PAIRS):
            for name, port in ports.items():
                firsts[name].append(first_token_s(port, here.name, 10 + number))
        for name, found in firsts.items():
            low, _, high = statistics.quantiles(found, n=4)
            median = statistics.median(found)
            times = f"{median * 1e3:.2f} ms ({low * 1e3:.2f} to {high * 1e3:.2f})"
            print(f"{name}: first token after {times}")
        added = statistics.median(firsts["Ray"]) - statistics.median(firsts["tampu serve"])
        print(f"Ray adds {added * 1e3:.2f} ms at the median", flush=True)
        for streams in (1, SPEED_STREAMS):
            rates: dict[str, list[tuple[float, float]]] = {name: [] for name in ports}
            for _ in range(SPEED_ROUNDS):
                for name, port in ports.items():
                    rates[name].append(speed(port, here.name, streams, here.tokens))
            (ours, pieces), (alone, _) = (
                map(statistics.median, zip(*rates[name], strict=True))
                for name in ("Ray", "tampu serve")
            )
            print(
                f"{streams} streams of {here.tokens} tokens: {ours:.0f} tokens/s through Ray, in "
                f"{pieces:.0f} pieces/s, {alone:.0f} by tampu serve: {ours / alone:.3f}",
                flush=True,
            )


def scale(here: Site) -> None:
    """Print what becomes of requests while replicas go and come."""
    here.deploy(NODES)
    is_over = threading.Event()
    statuses: list[int] = []
    longest: list[float] = []

    def load(number: int) -> None:
        while not is_over.is_set():
            messages = [{"role": "user", "content": f"{number}: what is 27 + 58?"}]
            body = {"model": here.name, "messages": messages, "max_tokens": 40, "ignore_eos": True}
            began = time.perf_counter()
            status, _ = ask(here.port, CHAT, body)
            statuses.append(status)
            longest.append(time.perf_counter() - began)

    with ThreadPoolExecutor(6) as threads:
        running = [threads.submit(load, number) for number in range(6)]
        for count in (1, NODES):
            began = time.perf_counter()
            here.deploy(count)
            print(f"{count} replicas after {time.perf_counter() - began:.1f} s", flush=True)
        is_over.set()
        for each in running:
            each.result()
    lost = sum(status != 200 for status in statuses)
    print(f"{len(statuses)} requests, {lost} lost, the longest {max(longest):.1f} s", flush=True)


def kill(here: Site) -> None:
    """Print what becomes of 60 streams when a node dies, and when all is as before."""
    here.deploy(NODES, slots=STREAMS // 2)  # so many that a new request has one at once
    streams = [Stream() for _ in range(STREAMS)]

    def read(number: int) -> None:
        messages = [{"role": "user", "content": f"{number}: what is 27 + 58?"}]
        body = {"model": here.name, "messages": messages, "ignore_eos": True}
        connection = http.client.HTTPConnection("127.0.0.1", here.port, timeout=300)
        streams[number].read(connection, body | {"max_tokens": STREAM_TOKENS})
        connection.close()

    free = available_resources_per_node()
    node = next(each for each in here.nodes if free[each.node_id].get("CPU", 0) < 1)
    with ThreadPoolExecutor(STREAMS) as threads:
        running = [threads.submit(read, number) for number in range(STREAMS)]
        while not all(each.first_s for each in streams):
            time.sleep(0.01)
        loads = here.loads()
        ended = sum(each.ended_s > 0 for each in streams)
        print(f"all streams have begun, {ended} have ended", flush=True)
        here.cluster.remove_node(node, allow_graceful=False)
        killed = time.perf_counter()
        # Its processes end after the node.
        while not any(each.error for each in streams) and not all(each.ended_s for each in streams):
            time.sleep(0.01)
        print(f"its streams end after {time.perf_counter() - killed:.2f} s", flush=True)
        messages = [{"role": "user", "content": "What is 27 + 58?"}]
        body = {"model": here.name, "messages": messages, "max_tokens": 4}
        status, _ = ask(here.port, CHAT, body)
        print(f"a new request: {status} after {time.perf_counter() - killed:.2f} s", flush=True)
        while len(here.loads()) < NODES:
            time.sleep(0.1)
        print(f"three replicas again after {time.perf_counter() - killed:.1f} s", flush=True)
        for each in running:
            each.result()
    report_ends(streams, loads)


def report_ends(streams: Sequence[Stream], loads: Sequence[int]) -> None:
    """Print how streams have ended."""
    failed = [each.error for each in streams if each.error]
    cut = sum(not each.error and not each.is_whole for each in streams)
    print(f"replicas had {loads} streams; {len(failed)} ended with an error, {cut} too early")
    print(f"messages: {sorted(set(failed))}; 0 hang", flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(description="Replicas on three nodes of Ray.")
    parser.add_argument("model", nargs="?", default="demo")
    parser.add_argument("--only", choices=PARTS, action="append")
    parser.add_argument("--tokens", type=int, default=SPEED_TOKENS, help="of a stream's answer")
    arguments = parser.parse_args()
    parts: dict[str, Callable[[Site], None]] = {
        "conversations": conversations,
        "full": full,
        "ray": beside_serve,
        "scale": scale,
        "kill": kill,
    }
    with site(arguments.model, arguments.tokens) as here:
        for name in arguments.only or PARTS:
            print(f"{name}:", flush=True)
            parts[name](here)


if __name__ == "__main__":
    main()
