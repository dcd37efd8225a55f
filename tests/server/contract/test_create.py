"""`/api/blobs` and `POST /api/create`, statement by statement.

Elsewhere: quantising and wrong files (tests/store/test_create.py,
tests/server/features/manage/test_transfers.py, test_hostile_files.py).
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable
from pathlib import Path
from typing import Any

import httpx
import pytest
from support.contract import Answer, Case, listed

pytestmark = pytest.mark.server

CONTENT = b"not a model"
DIGEST = hashlib.sha256(CONTENT).hexdigest()


@pytest.fixture(scope="module")
def blob(client: httpx.Client, contract_models: Path) -> str:
    """The digest of a model's file that the server was sent."""
    content = (contract_models / "talker.gguf").read_bytes()
    digest = f"sha256:{hashlib.sha256(content).hexdigest()}"
    client.post(f"/api/blobs/{digest}", content=content).raise_for_status()
    return digest


@pytest.fixture(scope="module")
def no_model(client: httpx.Client) -> str:
    """The digest of a file that is not a model."""
    client.post(f"/api/blobs/sha256:{DIGEST}", content=CONTENT).raise_for_status()
    return f"sha256:{DIGEST}"


def test_uploaded_blob_exists(client: httpx.Client) -> None:
    content = b"a blob"
    path = f"/api/blobs/sha256:{hashlib.sha256(content).hexdigest()}"
    assert client.head(path).status_code == 404
    assert client.post(path, content=content).status_code == 201
    assert client.head(path).status_code == 200
    assert client.head(path.replace(":", "-")).status_code == 200
    assert client.post(path, content=content).status_code == 200


def test_a_blob_may_come_in_chunks(client: httpx.Client) -> None:
    path = f"/api/blobs/sha256:{hashlib.sha256(b'in chunks').hexdigest()}"
    response = client.post(path, content=iter([b"in ", b"chunks"]))
    assert response.status_code == 201, response.text
    assert client.head(path).status_code == 200


BLOBS = {
    "the bytes are those of the digest": Case(
        f"/api/blobs/sha256:{'0' * 64}", b"other", lambda a: a.refuses(400, "the digest is")
    ),
    "a digest has 64 digits": Case(
        f"/api/blobs/sha256:{'0' * 63}", b"x", lambda a: a.refuses(400, "SHA-256")
    ),
    "a digest is SHA-256": Case(
        f"/api/blobs/md5:{'0' * 32}", b"x", lambda a: a.refuses(400, "sha256")
    ),
    "a digest is no path": Case("/api/blobs/sha256:..%2f..%2fetc", b"x", lambda a: a.status == 404),
}


@listed(BLOBS)
def test_blob(client: httpx.Client, case: Case) -> None:
    case.check(client)


def create(holds: Callable[[Any], bool], **body: Any) -> Case:
    return Case("/api/create", {"model": "created", "from": "talker", **body}, holds)


def refused(*told: str, **body: Any) -> Case:
    """Refused with a status of its own, though it would stream."""
    return create(lambda a: a.refuses(400, *told), **body)


def statuses(answer: Answer) -> list[Any]:
    return [line["status"] for line in answer.lines]


CASES = {
    "steps end with success": create(
        lambda a: statuses(a)[-2:] == ["writing manifest", "success"]
        and all(set(line) <= {"status", "digest", "total", "completed"} for line in a.lines)
    ),
    "name will do for model": create(lambda a: a.last == {"status": "success"}, model="",
                                     name="created"),
    "a model is required": refused("model is required", model=""),
    "a model's name is one": refused("name", model="a//b"),
    "nothing to make it of": refused("has no source", **{"from": ""}),
    "a file's digest is one": refused("SHA-256", files={"m.gguf": "sha256:1"}, **{"from": ""}),
    "a file has no path": refused(
        "file", files={"../m.gguf": f"sha256:{DIGEST}"}, **{"from": ""}
    ),
    "a source that is nowhere": create(
        lambda a: "error" in a.last, **{"from": "nowhere/at:all"}
    ),
    "a template is one": refused("TEMPLATE", template="{{ if }}"),
    "parameters have types": refused("top_k", parameters={"top_k": "much"}),
    "parameters are known": refused("top_q", parameters={"top_q": 1}),
    "a type of weights is one": refused("Q9", quantize="Q9"),
    "quantization will do for quantize": refused("Q9", quantization="Q9"),
    "a license may be one text": create(lambda a: a.last == {"status": "success"}, license="MIT"),
    "or some": create(lambda a: a.last == {"status": "success"}, license=["MIT", "BSD"]),
    "what a Modelfile may say": create(
        lambda a: a.last == {"status": "success"}, system="s", template="{{ .Prompt }}",
        messages=[{"role": "user", "content": "hi"}], parameters={"top_k": 3, "stop": ["x"]},
        renderer="qwen3-coder", parser="qwen3-coder", requires="0.19.0",
    ),
    "an adapter's digest is one": refused("SHA-256", adapters={"a.gguf": "sha256:1"}),
    "an adapter is there": create(
        lambda a: "is missing" in a.last["error"], adapters={"a.gguf": f"sha256:{'0' * 64}"}
    ),
    "modelfile is not supported": refused("modelfile is not supported", modelfile="FROM m"),
    "info is not supported": refused("info", info={"model_family": "x"}),
    "remote_host is not supported": refused("remote_host", remote_host="https://x"),
    "a draft model's digest is one": refused("SHA-256", draft_files={"d.gguf": "sha256:1"}),
    "a draft model is there": create(
        lambda a: "is missing" in a.last["error"], draft_files={"d.gguf": f"sha256:{'0' * 64}"}
    ),
    "draft_quantize is not supported": refused("draft_quantize", draft_quantize="q8_0"),
}  # fmt: skip


@listed(CASES)
def test_create(client: httpx.Client, case: Case) -> None:
    case.check(client)


def test_create_reports_existing_layers(client: httpx.Client, blob: str) -> None:
    body = {"model": "of-a-file", "files": {"m.gguf": blob}, "system": "Be kind to all."}
    answer = Answer(client.post("/api/create", json=body))
    assert f"using existing layer {blob}" in statuses(answer)
    system = hashlib.sha256(b"Be kind to all.").hexdigest()
    assert f"creating new layer sha256:{system}" in statuses(answer)
    assert statuses(answer)[-2:] == ["writing manifest", "success"]
    again = Answer(client.post("/api/create", json=body))
    assert f"using existing layer sha256:{system}" in statuses(again)


def test_file_that_is_not_a_model_is_refused(client: httpx.Client, no_model: str) -> None:
    for name in ("m.gguf", "m.txt"):
        body = {"model": "x", "files": {name: no_model}}
        answer = Answer(client.post("/api/create", json=body))
        assert answer.refuses(400), answer


def test_a_model_is_made_of_one_source(client: httpx.Client, blob: str) -> None:
    body = {"model": "x", "from": "talker", "files": {"m.gguf": blob}}
    answer = Answer(client.post("/api/create", json=body))
    assert answer.refuses(400, "give one"), answer
