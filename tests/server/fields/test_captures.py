"""Values inside the model in responses: with the clients' packages, as in Python, and refused."""

from __future__ import annotations

import base64
import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import numpy as np
import ollama
import openai
import pytest
from safetensors.numpy import load
from support.chat_templates import CHATML
from support.serving import Server, start_server
from support.tiny_model import Tiny, write_tiny

from tampu.engine.captures import Captured
from tampu.engine.engine import Engine

pytestmark = [pytest.mark.client, pytest.mark.server]

LIMIT = 200_000
PROMPT = "the cat is on the list and"
POINTS = ["hidden_states:1", "mlp_outputs"]
LOAD: dict[str, Any] = {"threads": 1, "deterministic": True, "cache_type": "f32"}
GREEDY: dict[str, Any] = {"temperature": 0, "max_tokens": 4}
MESSAGES: list[Any] = [{"role": "user", "content": PROMPT}]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("models")
    write_tiny(folder / "tiny.gguf", template=CHATML)
    write_tiny(folder / "embedder.gguf", Tiny(context=64), pooling=1)
    return folder


@pytest.fixture(scope="module")
def server(folder: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    home = tmp_path_factory.mktemp("home")
    limit = str(LIMIT)
    server = start_server(
        folder,
        home,
        TAMPU_THREADS="1",
        TAMPU_DETERMINISTIC="1",
        TAMPU_KV_CACHE_TYPE="f32",
        TAMPU_MAX_CAPTURE_SIZE=limit,
    )
    yield server
    server.end()


@pytest.fixture(scope="module")
def engine(folder: Path) -> Iterator[Engine]:
    with Engine.load(folder / "tiny.gguf", **LOAD) as engine:
        yield engine


@pytest.fixture(scope="module")
def expected(engine: Engine) -> Captured:
    """The values of a chat, as Python returns them."""
    captured = engine.chat(MESSAGES, capture={"points": POINTS}, **GREEDY).captured
    assert captured is not None
    return captured


def decoded(captured: Any) -> Captured:
    assert isinstance(captured, str)
    data = base64.b64decode(captured, validate=True)
    assert load(data).keys() >= {"positions"}  # Hugging Face's own reader takes it
    return Captured.decoded(data)


def require_same(captured: Any, expected: Captured) -> None:
    found = decoded(captured)
    assert found.positions.tolist() == expected.positions.tolist()
    assert {*found.points} == {*expected.points}
    for name, layers in expected.points.items():
        assert [*found[name]] == [*layers]
        for layer, rows in layers.items():
            np.testing.assert_allclose(found[name][layer], rows, rtol=1e-4, atol=1e-5)


def test_a_chat_has_what_python_captures_streamed_or_whole(
    client: openai.OpenAI, expected: Captured
) -> None:
    asked: dict[str, Any] = {
        "model": "tiny", "messages": MESSAGES, "extra_body": {"include": POINTS}, **GREEDY
    }  # fmt: skip
    [choice] = client.chat.completions.create(**asked).choices
    require_same((choice.model_extra or {})["captured"], expected)
    chunks = [
        chunk.choices[0].model_extra or {}
        for chunk in client.chat.completions.create(stream=True, **asked)
    ]
    assert ["captured" in each for each in chunks] == [False] * (len(chunks) - 1) + [True]
    require_same(chunks[-1]["captured"], expected)


def test_each_choice_of_a_completion_has_its_own(client: openai.OpenAI, engine: Engine) -> None:
    prompts = ["the cat", "a list of"]
    answer = client.completions.create(
        model="tiny", prompt=prompts, n=2, extra_body={"include": POINTS}, **GREEDY
    )
    for choice in answer.choices:
        prompt = prompts[choice.index // 2]
        python = engine.generate(prompt, capture={"points": POINTS}, **GREEDY).captured
        assert python is not None
        require_same((choice.model_extra or {})["captured"], python)


def test_a_response_has_it_and_the_one_that_is_kept_has_not(
    client: openai.OpenAI, http: httpx.Client, expected: Captured
) -> None:
    include: Any = [*POINTS, "message.output_text.logprobs"]
    answer = client.responses.create(
        model="tiny", input=PROMPT, include=include, temperature=0, max_output_tokens=4, store=True
    )
    require_same((answer.model_extra or {})["captured"], expected)
    kept = http.get(f"/v1/responses/{answer.id}").json()
    assert kept["output"][0]["content"][0]["text"] == answer.output_text
    assert "captured" not in kept


def test_ollamas_routes_have_it_in_their_last_line(
    server: Server, http: httpx.Client, engine: Engine, expected: Captured
) -> None:
    options = {"temperature": 0, "num_predict": 4}
    body = {"model": "tiny", "messages": MESSAGES, "options": options, "include": POINTS}
    lines = [json.loads(line) for line in http.post("/api/chat", json=body).text.splitlines()]
    assert not any("captured" in line for line in lines[:-1])
    require_same(lines[-1]["captured"], expected)
    with ollama.Client(server.url) as package:
        assert "captured" not in package.chat("tiny", MESSAGES, options=options)
    raw = {"model": "tiny", "prompt": PROMPT, "raw": True, "stream": False, "options": options}
    given = raw | {"include": ["layer_outputs:-1"], "include_positions": [0, -1]}
    python = engine.capture(PROMPT, "layer_outputs:-1", positions=[0, -1])
    require_same(http.post("/api/generate", json=given).json()["captured"], python)


WEIGHTS: dict[str, Any] = {"include": ["attentions:1", "attentions:0"], "include_heads": [2, 0]}
TEXTS: dict[str, dict[str, Any]] = {
    "/v1/chat/completions": {"messages": MESSAGES, "max_tokens": 1},
    "/v1/completions": {"prompt": PROMPT, "max_tokens": 1},
    "/v1/responses": {"input": PROMPT, "max_output_tokens": 1},
    "/v1/embeddings": {"input": PROMPT, "model": "embedder"},
    "/embedding": {"input": PROMPT, "model": "embedder"},
    "/api/chat": {"messages": MESSAGES, "stream": False, "options": {"num_predict": 1}},
    "/api/generate": {
        "prompt": PROMPT, "raw": True, "stream": False, "options": {"num_predict": 1}
    },
    "/api/embed": {"input": PROMPT, "model": "embedder"},
}  # fmt: skip


@pytest.mark.parametrize("path", TEXTS)
def test_attention_weights_of_chosen_heads(
    http: httpx.Client, engine: Engine, folder: Path, path: str
) -> None:
    answer = http.post(path, json={"model": "tiny", **WEIGHTS, **TEXTS[path]}).json()
    items = answer if isinstance(answer, list) else answer.get("choices") or answer.get("data")
    captured = items[0]["captured"] if items else answer["captured"]
    asked: dict[str, Any] = {"points": WEIGHTS["include"], "heads": [2, 0]}
    if "embed" in path:
        with Engine.load(folder / "embedder.gguf", **LOAD) as embedder:
            expected = embedder.capture(PROMPT, **asked)
    elif "messages" in TEXTS[path] or "/responses" in path:
        expected = engine.capture(MESSAGES, **asked)
    else:
        expected = engine.capture(PROMPT, **asked)
    require_same(captured if isinstance(captured, str) else captured[0], expected)
    assert [len(rows) for rows in expected["attentions"].values()] == [2, 2]


@pytest.mark.parametrize("path", ["/v1/embeddings", "/embedding", "/api/embed"])
def test_embeddings_have_it_of_each_text(http: httpx.Client, folder: Path, path: str) -> None:
    texts = [PROMPT, "a cat"]
    body = {"model": "embedder", "input": texts, "include": ["hidden_states"]}
    answer = http.post(path, json=body).json()
    items = answer if isinstance(answer, list) else answer.get("data")
    captured = [item["captured"] for item in items] if items else answer["captured"]
    with Engine.load(folder / "embedder.gguf", **LOAD) as engine:
        for text, found in zip(texts, captured, strict=True):
            require_same(found, engine.capture(text))


REFUSED = {
    "a name that is no point": ({"include": ["hidden"]}, "include: 'hidden' is not supported"),
    "a layer that is not there": ({"include": ["hidden_states:99"]}, "include: layer 99"),
    "a layer that is no number": ({"include": ["hidden_states:x"]}, "include: 'hidden_states:x'"),
    "a position outside": (
        {"include": ["hidden_states"], "include_positions": [99999]},
        "include_positions: position 99999 is outside",
    ),
    "positions of nothing": ({"include_positions": [1]}, "include_positions needs a point"),
    "heads of nothing": ({"include_heads": [0]}, "include_heads needs attentions in include"),
    "heads of other points": (
        {"include": ["hidden_states"], "include_heads": [0]}, "include_heads needs attentions"
    ),
    "a head that is not there": (
        {"include": ["attentions:1"], "include_heads": [99]},
        "include_heads: there is no head 99",
    ),
    "a head below 0": (
        {"include": ["attentions:1"], "include_heads": [-1]},
        "include_heads: there is no head -1",
    ),
    "no heads": ({"include": ["attentions"], "include_heads": []}, "include_heads is empty"),
    "no positions": (
        {"include": ["hidden_states"], "include_positions": []}, "include_positions is empty"
    ),
    "a point that the model does not have": (
        {"include": ["router_logits"]}, "include: the model has no point 'router_logits'"
    ),
}  # fmt: skip


@pytest.mark.parametrize("path", ["/v1/chat/completions", "/v1/responses", "/api/chat"])
@pytest.mark.parametrize(("given", "told"), [*REFUSED.values()], ids=[*REFUSED])
def test_what_cannot_be_captured_is_named(
    http: httpx.Client, path: str, given: dict[str, Any], told: str
) -> None:
    body = {"model": "tiny", "max_tokens": 2, **given}
    body |= {"input": PROMPT} if path == "/v1/responses" else {"messages": MESSAGES}
    body |= {"options": {"num_predict": 2}} if path == "/api/chat" else {}
    answer = http.post(path, json=body)
    assert answer.status_code == 400, answer.text
    error = answer.json()["error"]
    message = error if isinstance(error, str) else error["message"]
    assert message.startswith(told), message
    if path != "/api/chat":
        assert error["param"] == re.split("[: ]", told)[0]


def test_values_over_the_limit_are_refused_with_their_size_before_anything_is_computed(
    http: httpx.Client,
) -> None:
    def generated() -> str:
        lines = http.get("/metrics").text.splitlines()
        return "\n".join(line for line in lines if line.startswith("tampu_tokens"))

    body = {"model": "tiny", "messages": MESSAGES, "include": ["hidden_states"], "max_tokens": 500}
    before = generated()
    answer = http.post("/v1/chat/completions", json=body)
    assert answer.status_code == 400
    message = answer.json()["error"]["message"]
    assert "positions of 3 points can have" in message
    assert f"bytes, and the limit is {LIMIT}: ask for fewer points" in message
    fewer = body | {"include": ["hidden_states:0"], "max_tokens": 4}
    assert http.post("/v1/chat/completions", json=fewer).status_code == 200
    assert generated() != before
    weights = http.post("/v1/chat/completions", json=body | {"include": ["attentions"]})
    fewer_of = "fewer points, include_heads or include_positions, or for a shorter answer"
    assert fewer_of in weights.json()["error"]["message"]
    # All choices share the limit.
    many = http.post("/v1/chat/completions", json=fewer | {"n": 100})
    assert many.status_code == 400
    assert f"the limit is {LIMIT // 100}:" in many.json()["error"]["message"]
    texts = {"model": "embedder", "input": [PROMPT * 5] * 40, "include": ["hidden_states"]}
    assert http.post("/v1/embeddings", json=texts).status_code == 400


def test_a_server_without_the_setting_refuses_and_names_it(
    plain_client: httpx.Client,
) -> None:
    for path, text in (
        ("/v1/chat/completions", {"messages": MESSAGES}),
        ("/v1/completions", {"prompt": PROMPT}),
        ("/v1/responses", {"input": PROMPT}),
        ("/v1/embeddings", {"input": PROMPT, "model": "embedder"}),
        ("/api/chat", {"messages": MESSAGES}),
        ("/api/generate", {"prompt": PROMPT}),
        ("/api/embed", {"input": PROMPT, "model": "embedder"}),
    ):
        body = {"model": "tiny", "include": ["hidden_states:0"], **text}
        answer = plain_client.post(path, json=body)
        assert answer.status_code == 403, f"{path}: {answer.text}"
        assert "set TAMPU_MAX_CAPTURE_SIZE" in answer.text


@pytest.fixture(scope="module")
def plain_client(folder: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[httpx.Client]:
    """A client of a server as it is by default."""
    server = start_server(folder, tmp_path_factory.mktemp("plain"), TAMPU_THREADS="1")
    with httpx.Client(base_url=server.url, timeout=300) as client:
        yield client
    server.end()
