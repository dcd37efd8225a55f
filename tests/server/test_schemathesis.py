"""Requests made from the API's own description: none fails, and another's answer never changes."""

from __future__ import annotations

import json
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest
import schemathesis
from hypothesis import HealthCheck, Phase, given, settings
from schemathesis.schemas import BaseSchema
from support.endless import make_endless_model
from support.serving import Server, start_server

pytestmark = [pytest.mark.server, pytest.mark.slow]

EXAMPLES = 15
CANARY = {
    "model": "canary",
    "prompt": "hello",
    "options": {"num_predict": 40, "temperature": 0, "seed": 1},
}
# What takes a model away from under the canary: asked of a server of its own.
MANAGING = r"^/api/(delete|copy|create|blobs)"
# What asks other machines: tests/server/test_every_route.py does so where there is none.
ELSEWHERE = r"^/api/(pull|push)"


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    folder = tmp_path_factory.mktemp("models")
    checkpoint = tmp_path_factory.mktemp("checkpoint")
    make_endless_model(checkpoint, folder / "tiny.gguf")
    (folder / "canary.gguf").write_bytes((folder / "tiny.gguf").read_bytes())
    server = start_server(folder, tmp_path_factory.mktemp("home"), TAMPU_THREADS="1")
    yield server
    server.end()


class Canary(threading.Thread):
    """Asks the same again and again while the others are at work."""

    def __init__(self, url: str) -> None:
        super().__init__()
        self.url = url
        self.texts: list[Any] = []
        self.ended = threading.Event()

    def run(self) -> None:
        with httpx.Client(base_url=self.url, timeout=300) as client:
            while not self.ended.is_set():
                with client.stream("POST", "/api/generate", json=CANARY) as response:
                    lines = [json.loads(line) for line in response.iter_lines()]
                self.texts.append("".join(line["response"] for line in lines))


@pytest.fixture(scope="module")
def canary(server: Server) -> Iterator[Canary]:
    canary = Canary(server.url)
    canary.start()
    yield canary
    canary.ended.set()
    canary.join(60)


@pytest.fixture(scope="module")
def schema(server: Server) -> BaseSchema:
    schema = schemathesis.openapi.from_url(f"{server.url}/openapi.json")
    return schema.exclude(path_regex=MANAGING).exclude(path_regex=ELSEWHERE)


def with_small_answers(body: Any) -> Any:
    """Have a request name a model that is there, mostly, and end soon."""
    if isinstance(body, dict):
        if len(str(body.get("model", ""))) % 3:
            body["model"] = "tiny"
        body["options"] = {"num_predict": 2}
        for name in ("max_tokens", "max_completion_tokens", "max_output_tokens"):
            if isinstance(body.get(name), int):
                body[name] = min(body[name], 2)
        body.pop("n", None)
    return body


def statuses(server: Server, schema: BaseSchema) -> list[Any]:
    """Ask every operation; return the statuses of the answers, all of them described."""
    counted = []

    @settings(
        max_examples=EXAMPLES,
        phases=[Phase.generate],
        deadline=None,
        derandomize=True,
        suppress_health_check=list(HealthCheck),
    )
    def ask(case: Any) -> None:
        case.body = with_small_answers(case.body)
        response = case.call(base_url=server.url, timeout=300)
        counted.append(response.status_code)
        assert response.status_code < 500, (case.path, case.body, response.text)
        assert str(response.status_code) in operation_statuses

    for result in schema.get_all_operations():
        operation = result.ok()
        operation_statuses = set(operation.definition.raw["responses"])
        given(operation.as_strategy())(ask)()
    return counted


def test_no_request_to_manage_models_fails(tmp_path: Path) -> None:
    (tmp_path / "models").mkdir()
    server = start_server(tmp_path / "models", tmp_path, TAMPU_REGISTRY="127.0.0.1:1")
    schema = schemathesis.openapi.from_url(f"{server.url}/openapi.json")
    try:
        assert len(statuses(server, schema.include(path_regex=MANAGING))) > 50
        assert server.process.poll() is None
    finally:
        server.end()


def test_no_request_fails_and_no_other_answer_changes(
    server: Server, schema: BaseSchema, canary: Canary
) -> None:
    assert len(statuses(server, schema)) > 200
    assert len(canary.texts) > 3
    assert set(canary.texts) == {canary.texts[0]}
    assert server.process.poll() is None
