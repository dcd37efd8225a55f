"""What only counts tokens loads no weights, and needs no place among the models in memory."""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import httpx
import psutil
import pytest
from support.serving import Server, start_server

pytestmark = pytest.mark.server

USER = [{"role": "user", "content": "x"}]
COUNTING: dict[str, dict[str, Any]] = {
    "/api/tokenize": {"text": "x", "pieces": True},
    "/api/tokenize of messages": {"messages": USER},
    "/api/detokenize": {"tokens": [300, 301]},
    "/api/format/check": {"format": {"regex": "[0-9]+"}},
    "/v1/chat/completions/input_tokens": {"messages": USER},
    "/v1/responses/input_tokens": {"input": "x"},
    "/v1/messages/count_tokens": {"messages": USER},
}


@pytest.fixture(scope="module")
def narrow(contract_models: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    """A server with room for one model."""
    home = tmp_path_factory.mktemp("home")
    server = start_server(
        contract_models, home, TAMPU_THREADS="1", TAMPU_NUM_GPU="0", TAMPU_MAX_LOADED_MODELS="1"
    )
    yield server
    server.end()


@pytest.fixture(scope="module")
def narrow_client(narrow: Server) -> Iterator[httpx.Client]:
    with httpx.Client(base_url=narrow.url, timeout=300) as client:
        yield client


def loaded(client: httpx.Client) -> list[str]:
    return [model["name"] for model in client.get("/api/ps").json()["models"]]


def mapped(server: Server, name: str) -> bool:
    """Whether a process of the server's has a model's file in its memory."""
    processes = psutil.Process(server.process.pid).children(recursive=True)
    return any(
        one.path.endswith(f"/{name}.gguf") for child in processes for one in child.memory_maps()
    )


@contextmanager
def busy(client: httpx.Client) -> Iterator[None]:
    """While this is entered a model answers without end, in the only place there is."""
    body = {"model": "endless", "prompt": "x", "options": {"num_predict": 100_000}}
    with client.stream("POST", "/api/generate", json=body) as response:
        next(response.iter_lines())
        yield


@pytest.mark.parametrize("name", COUNTING)
def test_tokenizing_loads_no_weights(
    narrow: Server, narrow_client: httpx.Client, name: str
) -> None:
    body = {"model": "talker", **COUNTING[name]}
    answer = narrow_client.post(name.split(" ")[0], json=body)
    assert answer.status_code == 200, answer.text
    assert loaded(narrow_client) == []
    assert not mapped(narrow, "talker")
    assert "tampu_model_memory_bytes{" not in narrow_client.get("/metrics").text


def test_tokenizing_works_while_another_model_uses_all_memory(
    narrow: Server, narrow_client: httpx.Client
) -> None:
    with busy(narrow_client):
        for name, more in COUNTING.items():
            body = {"model": "thinker", **more}
            assert narrow_client.post(name.split(" ")[0], json=body).status_code == 200
        assert loaded(narrow_client) == ["endless:latest"]
        assert mapped(narrow, "endless")
        assert not mapped(narrow, "thinker")


def test_loaded_model_tokenizes_without_another_process(narrow_client: httpx.Client) -> None:
    body = {"model": "talker", "messages": USER, "max_tokens": 3}
    usage = narrow_client.post("/v1/messages", json=body).json()["usage"]
    counted = narrow_client.post("/v1/messages/count_tokens", json=body).json()
    assert counted["input_tokens"] == usage["input_tokens"] + usage["cache_read_input_tokens"]
    assert loaded(narrow_client) == ["talker:latest"]


def test_detokenizing_returns_the_tokenized_text(narrow_client: httpx.Client) -> None:
    text = "a cat é 猫\n"
    body = {"model": "talker", "text": text, "add_special": False, "pieces": True}
    told = narrow_client.post("/api/tokenize", json=body).json()
    assert told["count"] == len(told["tokens"]) == len(told["pieces"])
    assert [piece["id"] for piece in told["pieces"]] == told["tokens"]
    spelled = b"".join(bytes(piece["bytes"]) for piece in told["pieces"])
    assert spelled.decode().strip() == text.strip()
    body = {"model": "talker", "tokens": told["tokens"]}
    assert narrow_client.post("/api/detokenize", json=body).json() == {"text": text}


def test_control_tokens_are_named_as_the_vocabulary_spells_them(
    narrow_client: httpx.Client,
) -> None:
    text = "x<end_of_turn>"
    body = {"model": "demo", "text": text, "add_special": True, "pieces": True}
    pieces = narrow_client.post("/api/tokenize", json=body).json()["pieces"]
    assert [piece.get("control") for piece in pieces] == ["<bos>", None, "<end_of_turn>"]
    assert [piece["bytes"] == [] for piece in pieces] == [True, False, True]


@pytest.mark.parametrize(
    ("path", "body", "told"),
    [
        ("/api/tokenize", {}, "text or messages"),
        ("/api/tokenize", {"text": "x", "messages": USER}, "text or messages"),
        ("/api/detokenize", {"tokens": [10**6]}, "1000000"),
        ("/api/detokenize", {"tokens": [-1]}, "-1"),
    ],
)
def test_invalid_requests_are_refused(
    narrow_client: httpx.Client, path: str, body: dict[str, Any], told: str
) -> None:
    answer = narrow_client.post(path, json={"model": "talker", **body})
    assert answer.status_code == 400
    assert told in answer.json()["error"]


@pytest.mark.parametrize("path", ["/api/tokenize", "/tokenize"])
def test_many_tokens_are_sent_in_parts(narrow_client: httpx.Client, path: str) -> None:
    """A single text of millions would keep the server from everything else while it is sent."""
    text = "many words " * 5_000
    body = {"model": "talker", "text": text, "pieces": True}
    if path == "/tokenize":
        body = {"model": "talker", "content": text, "with_pieces": True}
    with narrow_client.stream("POST", path, json=body) as response:
        parts = list(response.iter_raw())
    assert response.status_code == 200
    assert response.headers["content-type"] == "application/json; charset=utf-8"
    assert "content-length" not in response.headers
    assert len(parts) > 2
    found = json.loads(b"".join(parts))
    assert len(found["tokens"]) > 4096
    pieces = found["pieces"] if path == "/api/tokenize" else found["tokens"]
    words = [piece.get("text", piece.get("piece")) for piece in pieces]
    assert "".join(words).strip() == text.strip()
