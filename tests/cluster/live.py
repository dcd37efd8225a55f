"""Three nodes of Ray on this machine, a replica of the built-in model on each: `make ray-test`."""

from __future__ import annotations

import base64
import os
import secrets
import subprocess
import sys
from collections.abc import Iterator
from contextlib import ExitStack
from io import BytesIO
from typing import Any

import httpx
import psutil
import pytest
from PIL import Image
from support.ray_cluster import (
    FAMILIES,
    NODES,
    SETTINGS,
    SLOTS,
    Live,
    counted,
    ray_cluster,
    streamed,
    text_of,
)
from support.scripted import write_scripted
from support.tiny_adapter import write_tiny_adapter
from support.tiny_model import write_tiny
from support.traces import Span
from support.waiting import wait_until

from tampu.cluster.config import ClusterConfig, DeployedModel
from tampu.cluster.deploying import check_nodes, deploy
from tampu.errors import ModelNotFoundError, SettingsError
from tampu.server.options import server_options

QUESTION = [{"role": "user", "content": "What is 27 + 58?"}]
ENDLESS = {"model": "endless", "messages": QUESTION, "stream": True, "max_tokens": 8000}
CLIENT = "00f067aa0ba902b7"  # the span of a client
ADAPTERS = ("poet", "clerk")  # of the model `tiny`
TEMPLATE = "{{ messages[-1].content }}z"


@pytest.fixture(autouse=True)
def no_threads_left() -> None:
    """Ray's threads stay as long as the connection to the cluster."""


@pytest.fixture(scope="module")
def live(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Live]:
    endless = tmp_path_factory.mktemp("models") / "endless.gguf"
    write_scripted(endless, [" la", " li", " lo"], repeats=3, template=TEMPLATE, context=8192)
    tiny, adapters = write_tiny(endless.with_name("tiny.gguf")), {}
    for seed, name in enumerate(ADAPTERS):
        path = endless.with_name(f"{name}.gguf")
        adapters[name] = str(write_tiny_adapter(path, tiny, seed=seed))
    models = [
        DeployedModel(model="demo", replicas=NODES, cpus=0.3),
        DeployedModel(model=str(endless), replicas=NODES, cpus=0.3),
        DeployedModel(model=str(tiny), replicas=2, cpus=0.3, adapters=adapters),
    ]
    with ray_cluster(models) as live:
        yield live


def ask(live: Live, path: str, **fields: Any) -> httpx.Response:
    body = {"model": "demo", "max_tokens": 50, "messages": QUESTION} | fields
    return live.client.post(path, json=body)


@pytest.mark.parametrize("path", FAMILIES)
def test_each_family_answers_and_streams_the_same(live: Live, path: str) -> None:
    greedy = {"options": {"temperature": 0}} if path.startswith("/api") else {"temperature": 0}
    answer = ask(live, path, stream=False, **greedy)
    assert (answer.status_code, text_of(answer.json())) == (200, "85")
    body = {"model": "demo", "max_tokens": 50, "messages": QUESTION, "stream": True} | greedy
    with live.client.stream("POST", path, json=body) as response:
        assert streamed(response.iter_lines()) == ("85", [])


def test_embeddings_and_tokens_come_from_the_replicas(live: Live) -> None:
    found = live.client.post("/tokenize", json={"model": "demo", "content": "a b"}).json()
    text = live.client.post("/detokenize", json={"model": "demo", "tokens": found["tokens"]})
    assert text.json()["content"] == "a b"
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
    answer = ask(live, "/v1/chat/completions", **change)
    assert answer.status_code == status
    assert told in answer.json()["error"]["message"]


@pytest.mark.parametrize(
    "lora", [{"lora": {"poet": 1.0}}, {"lora": [{"id": 0}]}, {"lora_path": "poet"}]
)
@pytest.mark.parametrize("path", ["/v1/chat/completions", "/v1/responses", "/v1/embeddings"])
def test_an_adapter_that_the_model_does_not_have_is_an_error(
    live: Live, path: str, lora: dict[str, Any]
) -> None:
    said = {"messages": QUESTION} if path == "/v1/chat/completions" else {"input": "a"}
    answer = live.client.post(path, json={"model": "demo", **said, **lora})
    assert answer.status_code == 400
    assert "has no adapter" in answer.json()["error"]["message"]


def test_each_replica_answers_with_the_adapter_that_a_request_chooses(live: Live) -> None:
    def said(model: str, number: int, **fields: Any) -> str:
        body = {"model": model, "prompt": f"the cat {number}", "max_tokens": 12, "temperature": 0}
        answer = live.client.post("/v1/completions", json=body | fields)
        return str(answer.raise_for_status().json()["choices"][0]["text"])

    before = counted(live, "tampu_replica_requests_total", model="tiny")
    for number in range(4):  # prompts that are new, also with an adapter, go to each in turn
        poet, clerk = (said(name, number) for name in ADAPTERS)
        assert said("tiny", number, lora=[{"id": 0}]) == poet
        assert said("tiny", number, lora_path="clerk") == clerk
        assert len({said("tiny", number), poet, clerk}) == 1 + len(ADAPTERS)
    after = counted(live, "tampu_replica_requests_total", model="tiny")
    assert all(after[each] > before[each] for each in after)
    listed = {each["id"]: each for each in live.client.get("/v1/models").json()["data"]}
    assert [listed[name]["parent"] for name in ADAPTERS] == ["tiny", "tiny"]


def test_the_requests_of_a_session_go_to_one_replica(live: Live) -> None:
    def served(**fields: Any) -> set[str]:
        """The replica that a new prompt has come to."""
        before = counted(live, "tampu_replica_requests_total", model="demo")
        messages = [{"role": "user", "content": f"{secrets.token_hex(8)}"}]
        ask(live, "/v1/chat/completions", messages=messages, max_tokens=1, **fields)
        after = counted(live, "tampu_replica_requests_total", model="demo")
        return {each for each in after if after[each] > before[each]}

    found: set[str] = set()
    while len(found) < 2:  # until two hold as little: without a session they take turns
        found |= served()
    session = {"prompt_cache_key": secrets.token_hex(8)}
    assert len(set.union(*(served(**session) for _ in range(6)))) == 1


@pytest.mark.usefixtures("live")
def test_replicas_and_ingress_have_the_priority_of_other_programs() -> None:
    """Ray's own default is nice 15."""
    found = {}
    for process in psutil.process_iter(["cmdline", "nice", "pid"]):
        [name, *_] = process.info["cmdline"] or [""]
        if name.startswith("ray::ServeReplica:tampu:"):
            found[name.rpartition(":")[2]] = process.info["nice"]
    assert found.keys() >= {"demo", "api"}
    assert {*found.values()} == {os.nice(0)}


def test_no_request_changes_how_replicas_are_loaded(live: Live) -> None:
    answer = ask(live, "/api/chat", options={"num_ctx": 100})
    assert answer.status_code == 400
    assert "context=2048" in answer.json()["error"]


def test_a_request_without_a_key_is_refused(live: Live) -> None:
    answer = live.client.get("/v1/models", headers={"authorization": "Bearer no"})
    assert answer.status_code == 401
    models = live.client.get("/v1/models").json()["data"]
    assert {each["id"] for each in models} == {
        "demo:latest",
        "endless:latest",
        "tiny:latest",
        *ADAPTERS,
    }


def test_the_ingress_counts_requests(live: Live) -> None:
    ask(live, "/v1/chat/completions")
    told = live.client.get("/metrics").text
    assert 'route="/v1/chat/completions",status="200"' in told
    assert 'tampu_tokens_total{kind="prompt",model="demo"}' in told


def test_the_ingress_shows_what_each_replica_counts(live: Live) -> None:
    prompt = {"model": "demo", "kind": "prompt"}
    slots = counted(live, "tampu_replica_slots")
    before = counted(live, "tampu_replica_tokens_total", **prompt)
    assert set(slots.values()) == {SLOTS}
    assert len(slots) == sum(each.replicas for each in live.config.models)
    assert len(before) == NODES
    usage = ask(live, "/v1/chat/completions").json()["usage"]
    after = counted(live, "tampu_replica_tokens_total", **prompt)
    assert sum(after.values()) - sum(before.values()) == usage["prompt_tokens"]
    assert sum(after[each] != before[each] for each in after) == 1
    assert sum(counted(live, "tampu_replica_requests_total", model="demo").values()) > 0


def test_a_trace_says_which_replica_computed_a_request(live: Live) -> None:
    trace = secrets.token_hex(16)
    headers = {"traceparent": f"00-{trace}-{CLIENT}-01"}
    body = {"model": "demo", "messages": QUESTION, "max_tokens": 8}
    live.client.post("/v1/chat/completions", json=body, headers=headers).raise_for_status()

    def spans() -> dict[str, Span]:
        found = {each.name: each for each in live.collector.spans() if each.trace == trace}
        return found if "POST /v1/chat/completions" in found else {}

    found = wait_until(spans, "the spans have arrived")
    request, model = found["POST /v1/chat/completions"], found["chat demo"]
    assert (request.parent, model.parent) == (CLIENT, request.id)
    parts = {"route", "queue", "prompt", "answer"}
    assert {each.name for each in found.values() if each.parent == model.id} >= parts
    assert found["route"].attributes["tampu.replica"]
    assert found["answer"].attributes["tampu.batch.last"] > 0


@pytest.mark.parametrize("path", FAMILIES)
def test_a_client_that_leaves_cancels_its_request(live: Live, path: str) -> None:
    endless, count = live.config.models[1].deployment, 6
    generated = live.generated()
    with ExitStack() as stack:
        streams = []  # a stream that nothing refers to is closed
        for _ in range(count):
            response = stack.enter_context(live.client.stream("POST", path, json=ENDLESS))
            streams.append(response.iter_lines())
            next(streams[-1])
        wait_until(lambda: live.running(endless) == count, "replicas run the requests")
    wait_until(lambda: live.running(endless) == 0, "the requests have been cancelled")
    assert live.generated() == generated  # none has ended by itself


def test_each_turn_of_a_conversation_goes_where_the_one_before_was(live: Live) -> None:
    cached = []
    conversations = [[{"role": "user", "content": f"{n}: {'word ' * 30}"}] for n in range(6)]
    for _ in range(3):
        for messages in conversations:
            answer = ask(live, "/v1/chat/completions", messages=messages, max_tokens=8).json()
            usage, [choice] = answer["usage"], answer["choices"]
            cached.append(usage["prompt_tokens_details"]["cached_tokens"] / usage["prompt_tokens"])
            messages += [choice["message"], {"role": "user", "content": "And then?"}]
    first, later = cached[:6], cached[6:]
    assert max(first) < 0.3  # the template's beginning, at most
    assert min(later) > 0.5
    wait_until(lambda: any(each["prefixes"] for each in live.loads()), "prefixes are published")


def test_another_question_about_a_picture_goes_to_the_replica_that_has_seen_it(live: Live) -> None:
    def served(color: str, text: str) -> set[str]:
        """The replica that a question about a picture has come to."""
        before = counted(live, "tampu_replica_requests_total", model="demo")
        content = BytesIO()
        Image.new("RGB", (64, 64), color).save(content, "PNG")
        picture = base64.b64encode(content.getvalue()).decode()
        messages = [{"role": "user", "content": text, "images": [picture]}]
        answer = ask(live, "/api/chat", stream=False, messages=messages)
        answer.raise_for_status()
        after = counted(live, "tampu_replica_requests_total", model="demo")
        return {each for each in after if after[each] > before[each]}

    question = f"{secrets.token_hex(4)}: what color is it?"
    found: dict[str, str] = {}  # the replica of each color
    while len({*found.values()}) < 2:  # until two hold as little: the text would lead to one
        color = f"#{secrets.token_hex(3)}"
        [found[color]] = served(color, question)
    for color in [*found][-2:]:
        assert served(color, question) == {found[color]}
        assert served(color, f"{secrets.token_hex(4)}: and its shape?") == {found[color]}


@pytest.mark.usefixtures("live")
def test_a_model_that_no_node_has_is_one_line() -> None:
    with pytest.raises(ModelNotFoundError, match="does not have model 'absent': run `tampu pull"):
        check_nodes([DeployedModel(model="absent")], SETTINGS)


@pytest.mark.usefixtures("live")
@pytest.mark.parametrize("file", ["/nowhere/poet.gguf", "poet.gguf"])
def test_an_adapter_that_a_node_does_not_have_is_one_line(file: str) -> None:
    with pytest.raises(ModelNotFoundError, match=r"lacks an adapter of model 'demo'.*poet") as told:
        check_nodes([DeployedModel(model="demo", adapters={"poet": file})], SETTINGS)
    assert "\n" not in str(told.value)


@pytest.mark.parametrize("versions", [("2.59.0", "3.11.2"), ("2.60.0", "3.10.1")])
def test_another_version_of_ray_or_python_is_one_line(live: Live, versions: Any) -> None:
    code = f"""
import ray._private.utils
from tampu.cluster.deploying import connect
from tampu.errors import SettingsError
ray._private.utils.compute_version_info = lambda: {versions}
try:
    connect({live.cluster.address!r})
except SettingsError as error:
    print(error)
"""
    done = subprocess.run(
        [sys.executable, "-W", "ignore", "-c", code], capture_output=True, text=True, check=True
    )
    [line] = done.stdout.splitlines()
    assert "has other versions" in line
    assert all(version in line for version in versions)


@pytest.mark.usefixtures("live")
def test_too_many_replicas_are_one_line() -> None:
    config = ClusterConfig(models=(DeployedModel(model="demo", replicas=50),))
    with pytest.raises(SettingsError, match="need 50 CPUs, and the cluster has 3"):
        deploy(config, server_options(SETTINGS, []), SETTINGS)
