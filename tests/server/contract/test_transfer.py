"""`/api/pull`, `/api/push`, `/api/copy`, `/api/delete`, statement by statement.

Elsewhere: what registries do (tests/server/features/manage/test_transfers.py, tests/registry,
tests/store).
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import httpx
import pytest
from support.contract import Answer, Case, listed
from support.local_http import Answer as LocalAnswer
from support.registries import RogueRegistry, described, manifest

from tampu.store.manifests import CONFIG_TYPE
from tampu.store.names import Digest

pytestmark = pytest.mark.server

INSECURE = {"insecure": True}
CONFIG = b'{"model_format":"gguf"}'


def case(
    path: str,
    holds: Callable[[Any], Any] | Callable[[Any], bool],
    method: str = "POST",
    **body: Any,
) -> Case:
    return Case(path, body, holds, method=method)


def is_done(answer: Answer) -> bool:
    return (answer.status, answer.response.content) == (200, b"")


CASES = {
    "pull: a model is required": case("/api/pull", lambda a: a.refuses(400, "model is required")),
    "push: a model is required": case("/api/push", lambda a: a.refuses(400, "model is required")),
    "push: what is not here is told": case(
        "/api/push", lambda a: "not found" in a.last["error"], model="me/nothing"
    ),
    "push: name will do": case(
        "/api/push", lambda a: "not found" in a.last["error"], name="me/nothing", username="u",
        password="p", insecure=True,
    ),
    "copy: a source that is not here": case(
        "/api/copy", lambda a: a.refuses(404, 'model "nothing" not found'),
        source="nothing", destination="x",
    ),
    "copy: a source is a name": case(
        "/api/copy", lambda a: a.refuses(400), source="a//b", destination="x"
    ),
    "copy: a destination is a name": case(
        "/api/copy", lambda a: a.refuses(400), source="transferred", destination="a//b"
    ),
    "copy: a destination is required": case(
        "/api/copy", lambda a: a.refuses(400, "destination"), source="transferred"
    ),
    "copy": case("/api/copy", is_done, source="transferred", destination="Me/Copied:v2"),
    "delete: in any case": case("/api/delete", is_done, method="DELETE", model="me/copied:V2"),
    "delete: a model that is not here": case(
        "/api/delete", lambda a: a.refuses(404, "model 'nothing' not found"), method="DELETE",
        model="nothing",
    ),
    "delete: a model is required": case(
        "/api/delete", lambda a: a.refuses(400, "model is required"), method="DELETE"
    ),
    "delete: name will do": case("/api/delete", is_done, method="DELETE", name="transferred"),
}  # fmt: skip


@pytest.fixture(scope="module")
def made_client(client: httpx.Client) -> httpx.Client:
    body = {"model": "transferred", "from": "talker", "stream": False}
    client.post("/api/create", json=body).raise_for_status()
    return client


@listed(CASES)
def test_transfer(made_client: httpx.Client, case: Case) -> None:
    case.check(made_client)


def test_pull_reports_steps_or_only_success_without_streaming(
    client: httpx.Client, contract_models: Path
) -> None:
    weights = (contract_models / "talker.gguf").read_bytes()
    content = manifest([described(weights)], described(CONFIG, CONFIG_TYPE))
    with RogueRegistry(content, (weights, CONFIG)) as registry:
        body = {"model": f"{registry.host}/a/m", **INSECURE}
        lines = Answer(client.post("/api/pull", json=body)).lines
        again = Answer(client.post("/api/pull", json=body)).lines
        whole = Answer(client.post("/api/pull", json=body | {"stream": False}))
        registry.before = lambda _: LocalAnswer(404)
        body = {"model": f"{registry.host}/a/n", **INSECURE}
        missing = Answer(client.post("/api/pull", json=body))
    digest = Digest.of(weights)
    of_weights = [line for line in lines if line.get("digest") == str(digest)]
    assert lines[0] == {"status": "pulling manifest"}
    assert {line["status"] for line in of_weights} == {f"pulling {digest.short}"}
    assert {line["total"] for line in of_weights} == {len(weights)}
    assert all(line.get("completed") != 0 for line in of_weights)
    assert of_weights[-1]["completed"] == len(weights)
    assert [line["status"] for line in lines[-3:]] == [
        "verifying sha256 digest", "writing manifest", "success",
    ]  # fmt: skip
    cached = [line for line in again if line.get("digest") == str(digest)]
    assert cached[-1]["completed"] == cached[-1]["total"] == len(weights)
    assert whole.json == {"status": "success"}
    assert missing.lines == [
        {"status": "pulling manifest"}, {"error": "pull model manifest: file does not exist"},
    ]  # fmt: skip
