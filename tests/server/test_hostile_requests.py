"""Requests that were made to break a server, on every route that has a place for them.

Beside them an answer is generated again and again: it stays the same, and the server and the
processes of its models live.
"""

from __future__ import annotations

import re
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import httpx
import msgspec
import pytest
from support.canary import CANARY, Canary
from support.cost import cost, yardstick_by_the_clock
from support.endless import make_endless_model
from support.hostile_requests import (
    COMPILED_CASES,
    IMAGE_CASES,
    LONG_TEXTS,
    MESSAGE_CASES,
    MODEL,
    OTHERS,
    PLACES,
    SCHEMA_CASES,
    SCHEMAS,
    TEXT_CASES,
    TEXTS,
    TOOL_CASES,
    Case,
    requests,
)
from support.serving import Server, start_server

from tampu.server.app import create_app
from tampu.server.options import ServerOptions
from tampu.store.catalog import Catalog

pytestmark = [pytest.mark.server, pytest.mark.slow]

SECRETS = re.compile(r"Traceback|0x[0-9a-f]{6}|/home/|/tmp/|/root|site-packages|\.py\b|HOME")
CASES = {
    "text": TEXT_CASES, "image": IMAGE_CASES, "schema": SCHEMA_CASES, "tools": TOOL_CASES,
    "messages": MESSAGE_CASES,
}  # fmt: skip
# Routes whose bodies have a field for something; a new one has to be put into PLACES.
FIELDS = {
    "image": {"images"}, "schema": {"format", "response_format", "output_config"},
    "tools": {"tools"}, "messages": {"messages", "input"},
}  # fmt: skip
MOST_SECONDS = 60.0


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    folder = tmp_path_factory.mktemp("models")
    make_endless_model(tmp_path_factory.mktemp("checkpoint"), folder / "canary.gguf")
    server = start_server(folder, tmp_path_factory.mktemp("home"), TAMPU_THREADS="1")
    httpx.post(f"{server.url}/api/generate", json=MODEL, timeout=300)
    httpx.post(f"{server.url}/api/generate", json=CANARY, timeout=300)
    yield server
    server.end()


@pytest.fixture(scope="module")
def client(server: Server) -> Iterator[httpx.Client]:
    with httpx.Client(base_url=server.url, timeout=MOST_SECONDS) as client:
        yield client


@pytest.fixture(scope="module")
def canary(server: Server) -> Iterator[Canary]:
    with Canary(server.url) as canary:
        yield canary


@pytest.fixture
def ask(server: Server, client: httpx.Client, canary: Canary) -> Callable[[Any, Any], Any]:
    """Ask all requests of a case, and look that nothing else has changed."""
    workers = {process.pid for process in server.workers()}

    def ask(
        case: Case, asked: Iterator[tuple[str, dict[str, Any]]] | list[tuple[str, dict[str, Any]]]
    ) -> None:
        for route, body in asked:
            response = client.post(route, json=body)
            assert response.status_code in case.statuses, (route, response.text[:500])
            if response.status_code == 400:
                told = sentence(response.json()["error"])
                assert case.told in told, route
                assert not SECRETS.search(told), route
        assert {process.pid for process in server.workers()} == workers
        assert server.process.poll() is None
        assert canary.has_not_changed()

    return ask


def sentence(error: Any) -> str:
    told = error if isinstance(error, str) else error["message"]
    assert told
    assert len(told) <= 600
    assert "\n" not in told
    return told


COUNTING = ("chat/completions/input_tokens", "responses/input_tokens", "messages/count_tokens")
# The same words with another meaning, and routes that count tokens and look at no form, or that
# answer what is wrong with one; and one that refuses all images by name.
EXCEPT = {
    "image": {"/api/embeddings"},
    "messages": {
        "/api/create", "/api/embed", "/embedding", "/v1/embeddings", "/v2/embed", "/api/tokenize",
    },
    "schema": {
        *(f"/v1/{name}" for name in COUNTING),
        "/apply-template",
        "/tokenize",
        "/infill",
        "/api/format/check",
    },
}  # fmt: skip


def test_no_route_is_forgotten() -> None:
    routes = create_app(ServerOptions(), Catalog(), None).state.routes
    taking = {route.path for route in routes if route.body is not None}
    assert taking == {*TEXTS, *OTHERS}
    for kind, names in FIELDS.items():
        there = {
            route.path
            for route in routes
            if route.body and names & {field.name for field in msgspec.structs.fields(route.body)}
        }
        assert there - set(PLACES[kind]) <= EXCEPT.get(kind, set()), kind


@pytest.mark.parametrize(
    ("kind", "case"),
    [
        pytest.param(kind, case, id=f"{kind}: {case.name}")
        for kind, cases in CASES.items()
        for case in cases
    ],
)
def test_hostile_request_is_answered_or_refused_on_every_route(
    ask: Callable[[Any, Any], Any], kind: str, case: Case
) -> None:
    ask(case, requests(kind, case))


@pytest.mark.parametrize("case", COMPILED_CASES, ids=lambda case: case.name)
def test_grammar_is_followed_or_refused(ask: Callable[[Any, Any], Any], case: Case) -> None:
    route = "/api/generate"
    body = MODEL | SCHEMAS[route](route, case.value) | {"options": {"num_predict": 3}}
    took_s = cost(lambda: ask(case, [(route, body)]), 1, time.perf_counter)
    assert took_s < 300 * yardstick_by_the_clock()


@pytest.mark.parametrize("name", LONG_TEXTS)
def test_a_text_that_looks_like_one_word_becomes_tokens_in_time(
    client: httpx.Client, canary: Canary, name: str
) -> None:
    """Two seconds, on a machine that does nothing else."""
    answers = []
    asked = MODEL | {"text": LONG_TEXTS[name]}
    took_s = cost(
        lambda: answers.append(client.post("/api/tokenize", json=asked)), 1, time.perf_counter
    )
    assert answers[0].status_code == 200
    assert answers[0].json()["count"] > 10_000
    assert took_s < 400 * yardstick_by_the_clock()
    assert canary.has_not_changed()


def test_ten_thousand_messages_are_cut_to_the_context_and_counted_whole(
    client: httpx.Client, canary: Canary
) -> None:
    messages = [{"role": ("user", "assistant")[i % 2], "content": "x"} for i in range(9_999)]
    body = MODEL | {"messages": messages, "options": {"num_predict": 1}, "stream": False}
    answer = client.post("/api/chat", json=body).json()
    assert answer["truncated"] > 10_000
    counted = client.post("/v1/messages/count_tokens", json=MODEL | {"messages": messages})
    assert counted.json()["input_tokens"] > 2 * len(messages)
    assert canary.has_not_changed()


def test_many_models_that_do_not_exist_are_each_not_found(
    client: httpx.Client, canary: Canary
) -> None:
    def ask(number: Any) -> int:
        body = {"model": f"nothing-{number}", "messages": [{"role": "user", "content": "x"}]}
        return client.post("/api/chat", json=body).status_code

    with ThreadPoolExecutor(8) as pool:
        assert set(pool.map(ask, range(300))) == {404}
    assert canary.has_not_changed()
