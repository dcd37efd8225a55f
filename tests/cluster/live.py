"""Three nodes of Ray on this machine, a replica of the built-in model on each: `make ray-test`."""

from __future__ import annotations

import json
import re
import secrets
import socket
from collections.abc import Iterator
from contextlib import ExitStack
from dataclasses import dataclass, field, replace
from typing import Any

import httpx
import pytest
from ray import serve
from ray.cluster_utils import Cluster
from support.traces import Collector, Span, collecting
from support.waiting import wait_until

from tampu.cluster.config import APPLICATION, ClusterConfig, DeployedModel
from tampu.cluster.deploying import check_nodes, connect, deploy, stop
from tampu.errors import ModelNotFoundError, SettingsError
from tampu.server.options import server_options
from tampu.settings.settings import Settings

NODES = 3
STORE_BYTES = 80 * 1024 * 1024
KEY = "k"
QUESTION = [{"role": "user", "content": "What is 27 + 58?"}]
LONG = {"model": "demo", "stream": True, "ignore_eos": True}
FAMILIES = ["/v1/chat/completions", "/api/chat", "/v1/messages"]


@pytest.fixture(autouse=True)
def no_threads_left() -> None:
    """Ray's threads stay as long as the connection to the cluster."""


@dataclass
class Live:
    """A cluster with an application, and a client of this."""

    cluster: Cluster
    client: httpx.Client
    collector: Collector
    nodes: list[Any] = field(default_factory=list)

    def ask(self, path: str, **fields: Any) -> httpx.Response:
        body = {"model": "demo", "max_tokens": 50, "messages": QUESTION} | fields
        return self.client.post(path, json=body)

    def loads(self) -> list[dict[str, Any]]:
        """What each replica tells the router."""
        handle = serve.get_deployment_handle("demo", APPLICATION)
        return handle.broadcast("record_routing_stats").results()

    def running(self) -> int:
        """How many requests all replicas run."""
        return sum(each["requests"] for each in self.loads())

    def generated(self) -> str:
        """How many tokens all answers had that have ended."""
        found = re.search(
            r'^tampu_tokens_total\{kind="generated",.*\} (.*)',
            self.client.get("/metrics").text,
            re.M,
        )
        return found[1] if found else "0.0"


def free_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as server:
        return int(server.getsockname()[1])


@pytest.fixture(scope="module")
def patience() -> Iterator[None]:
    """Ray's limits for its own processes, so that they hold on a machine that does other things."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("RAY_SERVE_PROXY_READY_CHECK_TIMEOUT_S", "120")
        patch.setenv("RAY_SERVE_PROXY_HEALTH_CHECK_TIMEOUT_S", "120")
        yield


@pytest.fixture(scope="module")
def live(patience: None) -> Iterator[Live]:  # noqa: ARG001 - it sets the limits first
    size = {"num_cpus": 1, "object_store_memory": STORE_BYTES}
    cluster = Cluster(initialize_head=True, head_node_args=size | {"include_dashboard": False})
    nodes = [cluster.add_node(**size) for _ in range(NODES - 1)]
    connect(cluster.address)
    settings = Settings.from_environment({"HOME": "/nonexistent", "TAMPU_NUM_PARALLEL": "8"})
    model = DeployedModel(model="demo", replicas=NODES)
    # The nodes are one machine: proxies of them all would share the port.
    config = ClusterConfig(models=(model,), port=free_port(), proxy_location="HeadOnly")
    url, headers = f"http://{config.host}:{config.port}", {"authorization": f"Bearer {KEY}"}
    with (
        collecting() as collector,
        httpx.Client(base_url=url, headers=headers, timeout=120) as client,
    ):
        options = server_options(settings, [config.host])
        options = replace(options, use_keys=(KEY,), otlp_endpoint=collector.url)
        deploy(config, options, settings)
        yield Live(cluster, client, collector, nodes)
        stop()
        cluster.shutdown()


def text_of(answer: dict[str, Any]) -> str:
    """The text of an answer of any family."""
    if "choices" in answer:
        return answer["choices"][0]["message"]["content"]
    if "content" in answer:
        return answer["content"][0]["text"]
    return answer["message"]["content"]


def streamed(lines: Iterator[str]) -> tuple[str, list[dict[str, Any]]]:
    """The text of a stream of any family, and its errors."""
    text, errors = "", []
    for line in lines:
        data = line.removeprefix("data: ")
        if not data.startswith("{"):
            continue
        part = json.loads(data)
        if "error" in part:
            errors.append(part)
        elif "choices" in part:
            text += part["choices"][0]["delta"].get("content") or ""
        elif part.get("type") == "content_block_delta":
            text += part["delta"]["text"]
        elif "message" in part and "role" in part["message"]:
            text += part["message"].get("content") or ""
    return text, errors


@pytest.mark.parametrize("path", FAMILIES)
def test_each_family_answers_and_streams_the_same(live: Live, path: str) -> None:
    answer = live.ask(path, stream=False)
    assert (answer.status_code, text_of(answer.json())) == (200, "85")
    body = {"model": "demo", "max_tokens": 50, "messages": QUESTION, "stream": True}
    with live.client.stream("POST", path, json=body) as response:
        assert streamed(response.iter_lines()) == ("85", [])


def test_embeddings_and_tokens_come_from_the_replicas(live: Live) -> None:
    found = live.client.post("/tokenize", json={"model": "demo", "content": "a b"}).json()
    text = live.client.post("/detokenize", json={"model": "demo", "tokens": found["tokens"]})
    assert text.json() == {"content": "a b"}
    refused = live.client.post("/v1/embeddings", json={"model": "demo", "input": "a"})
    assert refused.status_code == 200


@pytest.mark.parametrize(
    ("change", "status", "told"),
    [
        ({"model": "other"}, 404, "model 'other' not found"),
        ({"temperature": "hot"}, 400, "temperature"),
        ({"messages": [{"role": "user", "content": "word " * 5000}]}, 400, "prompt is too long"),
    ],
)
def test_errors_have_their_status(
    live: Live, change: dict[str, Any], status: int, told: str
) -> None:
    answer = live.ask("/v1/chat/completions", **change)
    assert answer.status_code == status
    assert told in answer.json()["error"]["message"]


def test_no_request_changes_how_replicas_are_loaded(live: Live) -> None:
    answer = live.ask("/api/chat", options={"num_ctx": 100})
    assert answer.status_code == 400
    assert "context=2048" in answer.json()["error"]


def test_a_request_without_a_key_is_refused(live: Live) -> None:
    answer = live.client.get("/v1/models", headers={"authorization": "Bearer no"})
    assert answer.status_code == 401
    assert [each["id"] for each in live.client.get("/v1/models").json()["data"]] == ["demo:latest"]


def test_the_ingress_counts_requests(live: Live) -> None:
    live.ask("/v1/chat/completions")
    told = live.client.get("/metrics").text
    assert 'route="/v1/chat/completions",status="200"' in told
    assert 'tampu_tokens_total{kind="prompt",model="demo"}' in told


def test_a_trace_says_which_replica_computed_a_request(live: Live) -> None:
    trace = secrets.token_hex(16)
    headers = {"traceparent": f"00-{trace}-00f067aa0ba902b7-01"}
    body = {"model": "demo", "messages": QUESTION, "max_tokens": 8}
    live.client.post("/v1/chat/completions", json=body, headers=headers).raise_for_status()

    def spans() -> dict[str, Span]:
        found = {each.name: each for each in live.collector.spans() if each.trace == trace}
        return found if "POST /v1/chat/completions" in found else {}

    found = wait_until(spans, "the spans have arrived")
    assert found["route"].parent == found["answer"].parent == found["chat demo:latest"].id
    assert found["route"].attributes["tampu.replica"]
    assert found["answer"].attributes["tampu.batch.last"] > 0


def test_a_client_that_leaves_cancels_its_request(live: Live) -> None:
    """Ollama's API goes on when the context is full, so that no answer ends by itself."""
    body = LONG | {"messages": QUESTION, "options": {"num_predict": -1}}
    generated, count = live.generated(), 8
    with ExitStack() as stack:
        for _ in range(count):
            response = stack.enter_context(live.client.stream("POST", "/api/chat", json=body))
            next(response.iter_lines())
        wait_until(lambda: live.running() >= count, "replicas run the requests")
    wait_until(lambda: live.running() == 0, "the requests have been cancelled")
    assert live.generated() == generated  # none has ended


def test_each_turn_of_a_conversation_goes_where_the_one_before_was(live: Live) -> None:
    cached = []
    conversations = [[{"role": "user", "content": f"{n}: {'word ' * 30}"}] for n in range(6)]
    for _ in range(3):
        for messages in conversations:
            answer = live.ask("/v1/chat/completions", messages=messages, max_tokens=8).json()
            usage, [choice] = answer["usage"], answer["choices"]
            cached.append(usage["prompt_tokens_details"]["cached_tokens"] / usage["prompt_tokens"])
            messages += [choice["message"], {"role": "user", "content": "And then?"}]
    first, later = cached[:6], cached[6:]
    assert max(first) < 0.3  # the template's beginning, at most
    assert min(later) > 0.5
    wait_until(lambda: any(each["prefixes"] for each in live.loads()), "prefixes are published")


@pytest.mark.usefixtures("live")
def test_a_model_that_no_node_has_is_one_line() -> None:
    settings = Settings.from_environment({"HOME": "/nonexistent"})
    with pytest.raises(ModelNotFoundError, match="does not have model 'absent': run `tampu pull"):
        check_nodes(["absent"], settings)


@pytest.mark.usefixtures("live")
def test_too_many_replicas_are_one_line() -> None:
    config = ClusterConfig(models=(DeployedModel(model="demo", replicas=50),))
    settings = Settings.from_environment({"HOME": "/nonexistent"})
    with pytest.raises(SettingsError, match="need 50 CPUs, and the cluster has 3"):
        deploy(config, server_options(settings, []), settings)


def test_a_node_that_dies_ends_its_own_streams_alone(live: Live) -> None:
    """The last test: a node is gone afterwards."""
    count = 12
    with ExitStack() as stack:
        streams = []
        for number in range(count):
            messages = [{"role": "user", "content": f"{number} {QUESTION[0]['content']}"}]
            body = LONG | {"messages": messages, "max_tokens": 1500}
            response = stack.enter_context(
                live.client.stream("POST", "/v1/chat/completions", json=body)
            )
            lines = response.iter_lines()
            next(lines)
            streams.append(lines)
        assert all(each["requests"] for each in live.loads())
        live.cluster.remove_node(live.nodes[0], allow_graceful=False)
        ends = [streamed(lines) for lines in streams]
    failed = [errors for _, errors in ends if errors]
    assert 0 < len(failed) < count
    told = {errors[0]["error"]["message"] for errors in failed}
    assert all("has ended" in message for message in told), told
    assert live.ask("/v1/chat/completions").status_code == 200
