"""`POST /api/embed` and `/api/embeddings`, statement by statement."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import httpx
import pytest
from support.contract import JSON, Answer, Case, listed

pytestmark = pytest.mark.server


def embed(holds: Callable[[Any], bool], **body: Any) -> Case:
    return Case("/api/embed", {"model": "embedder", **body}, holds)


def older(holds: Callable[[Any], bool] | Callable[[Any], Any], **body: Any) -> Case:
    return Case("/api/embeddings", {"model": "embedder", **body}, holds)


def refused(*told: str, **body: Any) -> Case:
    return embed(lambda a: a.refuses(400, *told), **body)


def lengths(answer: Answer) -> list[Any]:
    return [math.sqrt(sum(x * x for x in vector)) for vector in answer.json["embeddings"]]


LONG = "word " * 200

CASES = {
    "a model is required": refused("model is required", model=""),
    "a model that is not here is 404": embed(
        lambda a: a.refuses(404, "model 'nothing' not found"), model="nothing"
    ),
    "a text has a vector, of length 1": embed(
        lambda a: a.kind == JSON and lengths(a) == pytest.approx([1.0], abs=1e-5), input="a cat"
    ),
    "texts have a vector each, in order": embed(
        lambda a: lengths(a) == pytest.approx([1.0, 1.0, 1.0], abs=1e-5)
        and a.json["embeddings"][0] == a.json["embeddings"][2] != a.json["embeddings"][1],
        input=["a", "b", "a"],
    ),
    "the answer has these": embed(
        lambda a: set(a.json) == {
            "model", "embeddings", "total_duration", "load_duration", "prompt_eval_count"
        } and a.json["total_duration"] >= a.json["load_duration"] > 0
        and a.json["prompt_eval_count"] > 2 and a.json["model"] == "embedder",
        input="a cat",
    ),
    "an empty text loads": embed(lambda a: a.json["embeddings"] == [], input=""),
    "no texts load": embed(lambda a: a.json["embeddings"] == [], input=[]),
    "no input loads": embed(lambda a: a.json["embeddings"] == []),
    "input is no number": refused("input", input=1),
    "input is no list of numbers": refused("input", input=[1]),
    "input is no object": refused("input", input={"text": "x"}),
    "dimensions cut, and the rest is of length 1 again": embed(
        lambda a: len(a.json["embeddings"][0]) == 8
        and lengths(a) == pytest.approx([1.0], abs=1e-5),
        input="x", dimensions=8,
    ),
    "dimensions of 0 are not given": embed(
        lambda a: len(a.json["embeddings"][0]) == 32, input="x", dimensions=0
    ),
    "dimensions are no more than there are": refused("dimensions", input="x", dimensions=33),
    "what is too long is cut": embed(
        lambda a: a.json["prompt_eval_count"] <= 64, input=LONG, truncate=True
    ),
    "what is too long is refused without truncation": refused(
        "context", input=LONG, truncate=False
    ),
    "one text too long refuses all": refused("context", input=["x", LONG], truncate=False),
    "num_ctx is an option": embed(
        lambda a: a.json["prompt_eval_count"] <= 16, input=LONG, options={"num_ctx": 16}
    ),
    "options have types": refused("num_ctx", input="x", options={"num_ctx": "long"}),
    "keep_alive is a duration": refused("keep_alive", input="x", keep_alive="soon"),
    "a model that generates embeds too": embed(
        lambda a: len(a.json["embeddings"]) == 1, model="demo", input="x"
    ),
    "older: a prompt has a vector": older(
        lambda a: set(a.json) == {"embedding"} and len(a.json["embedding"]) == 32, prompt="a cat"
    ),
    "older: no prompt loads": older(lambda a: a.json == {"embedding": []}, prompt=""),
    "older: a prompt is a text": older(lambda a: a.refuses(400, "prompt"), prompt=["x"]),
    "older: num_ctx is an option": older(
        lambda a: a.status == 200, prompt=LONG, options={"num_ctx": 16}
    ),
    "older: options have types": older(
        lambda a: a.refuses(400, "num_ctx"), prompt="x", options={"num_ctx": "long"}
    ),
    "older: images are refused": older(
        lambda a: a.refuses(400, "images"), prompt="x", images=["AAAA"]
    ),
    "older: keep_alive is a duration": older(
        lambda a: a.refuses(400, "keep_alive"), prompt="x", keep_alive="soon"
    ),
}  # fmt: skip


@listed(CASES)
def test_embed(client: httpx.Client, case: Case) -> None:
    case.check(client)


@pytest.mark.parametrize("path", ["/api/embed", "/api/embeddings"])
def test_keep_alive_and_options_have_their_effect(client: httpx.Client, path: str) -> None:
    body = {"model": "embedder", "input": "x", "prompt": "x", "options": {"num_ctx": 32}}
    client.post(path, json=body | {"keep_alive": -1}).raise_for_status()
    [model] = [m for m in client.get("/api/ps").json()["models"] if m["name"] == "embedder:latest"]
    assert (model["context_length"], model["expires_at"][:2]) == (32, "22")
    client.post(path, json=body | {"keep_alive": 0}).raise_for_status()
    assert "embedder:latest" not in client.get("/api/ps").text
