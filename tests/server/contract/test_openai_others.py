"""`/v1/completions`, `/v1/embeddings` and `/v1/models`, statement by statement.

Each field alone: test_fields_of_openai.py.
"""

from __future__ import annotations

import base64
import gzip
import json
import math
import struct
from collections.abc import Callable
from typing import Any
from urllib.parse import quote

import httpx
import pytest
import zstandard
from openai.types import Completion, CreateEmbeddingResponse, Model
from support.sse import data_of
from support.tiny_model import VOCABULARY

pytestmark = pytest.mark.server

HELLO, COMMA = VOCABULARY, VOCABULARY + 1  # the tokens of what the model says first


def complete(client: httpx.Client, status: int = 200, **more: Any) -> httpx.Response:
    body = {"model": "talker", "prompt": "x", "temperature": 0} | more
    response = client.post("/v1/completions", json=body)
    assert response.status_code == status, response.text
    return response


def whole(client: httpx.Client, **more: Any) -> Any:
    answer = complete(client, **more).json()
    Completion.model_validate(answer, strict=True)
    return answer


def texts(answer: Any) -> list[Any]:
    return [choice["text"] for choice in answer["choices"]]


def test_completion_is_a_text_with_a_reason_and_usage(client: httpx.Client) -> None:
    answer = whole(client)
    assert answer["id"].startswith("cmpl-")
    assert (answer["object"], answer["model"]) == ("text_completion", "talker")
    [choice] = answer["choices"]
    assert choice == {
        "text": "Hello, world.", "index": 0, "logprobs": None, "finish_reason": "stop",
    }  # fmt: skip
    usage = answer["usage"]
    assert usage["total_tokens"] == usage["prompt_tokens"] + usage["completion_tokens"]


@pytest.mark.parametrize(
    ("prompt", "expected"),
    [
        ("x", ["Hello, world."]),
        (["x", "y"], ["Hello, world."] * 2),
        ([HELLO], [", world."]),
        ([[HELLO], [HELLO, COMMA]], [", world.", " world."]),
        (["x", [COMMA]], ["Hello, world.", " world."]),
    ],
    ids=["a text", "texts", "tokens", "lists of tokens", "both"],
)
def test_a_prompt_is(client: httpx.Client, prompt: str, expected: list[str]) -> None:
    answer = whole(client, prompt=prompt)
    assert texts(answer) == expected
    assert [choice["index"] for choice in answer["choices"]] == [*range(len(expected))]


def test_default_max_tokens_is_16(client: httpx.Client) -> None:
    assert whole(client, model="endless")["usage"]["completion_tokens"] == 16
    answer = whole(client, model="endless", max_tokens=5)
    assert answer["choices"][0]["finish_reason"] == "length"


def test_stream_has_text_chunks_and_usage_if_requested(client: httpx.Client) -> None:
    chunks = data_of(complete(client, stream=True, n=2))
    assert not [chunk for chunk in chunks if "usage" in chunk]
    assert len({(chunk["id"], chunk["created"]) for chunk in chunks}) == 1
    for index in range(2):
        mine = [one for chunk in chunks for one in chunk["choices"] if one["index"] == index]
        assert "".join(one["text"] for one in mine) == "Hello, world."
        assert [one["finish_reason"] for one in mine][-1] == "stop"
    *chunks, last = data_of(complete(client, stream=True, stream_options={"include_usage": True}))
    assert last["choices"] == []
    assert last["usage"]["completion_tokens"] == 5
    assert {json.dumps(chunk["usage"]) for chunk in chunks} == {"null"}


def test_echo_starts_each_answer_and_stream(client: httpx.Client) -> None:
    assert texts(whole(client, prompt=["x", [HELLO]], echo=True)) == [
        "xHello, world.", "Hello, world.",
    ]  # fmt: skip
    chunks = data_of(complete(client, echo=True, stream=True))
    assert "".join(one["text"] for chunk in chunks for one in chunk["choices"]) == "xHello, world."


def test_log_probabilities_stand_at_their_offsets_in_a_stream_too(client: httpx.Client) -> None:
    scores = whole(client, logprobs=2)["choices"][0]["logprobs"]
    assert scores["tokens"] == ["Hello", ",", " world", "."]
    assert scores["text_offset"] == [0, 5, 6, 12]
    assert all(logprob <= 0 for logprob in scores["token_logprobs"])
    chunks = data_of(complete(client, logprobs=2, stream=True))
    streamed = [one["logprobs"] for chunk in chunks for one in chunk["choices"] if one["logprobs"]]
    for name, values in scores.items():
        assert [value for one in streamed for value in one[name]] == values


def test_suffix_reaches_a_model_with_fill_in_the_middle(client: httpx.Client) -> None:
    assert texts(whole(client, model="filler", suffix="y")) == ["Hello, world."]
    assert "does not support suffix" in complete(client, 400, suffix="y").text


def embed(client: httpx.Client, status: int = 200, **more: Any) -> Any:
    response = client.post("/v1/embeddings", json={"model": "embedder", "input": "a"} | more)
    assert response.status_code == status, response.text
    return response.json()


def test_embeddings_are_a_list_in_the_order_of_the_inputs(client: httpx.Client) -> None:
    answer = embed(client, input=["a cat", "a", "a cat"])
    CreateEmbeddingResponse.model_validate(answer, strict=True)
    assert (answer["object"], answer["model"]) == ("list", "embedder")
    assert [(one["object"], one["index"]) for one in answer["data"]] == [
        ("embedding", 0), ("embedding", 1), ("embedding", 2),
    ]  # fmt: skip
    assert answer["data"][0]["embedding"] == pytest.approx(answer["data"][2]["embedding"], abs=1e-5)
    assert answer["usage"]["prompt_tokens"] == answer["usage"]["total_tokens"] > 3


def test_base64_is_of_little_endian_numbers_of_32_bits(client: httpx.Client) -> None:
    plain = embed(client)["data"][0]["embedding"]
    text = embed(client, encoding_format="base64")["data"][0]["embedding"]
    data = base64.b64decode(text)
    assert [*struct.unpack(f"<{len(data) // 4}f", data)] == pytest.approx(plain, abs=1e-6)


def test_late_chunking_computes_the_inputs_as_one_text(client: httpx.Client) -> None:
    def vectors(**more: Any) -> list[list[float]]:
        return [each["embedding"] for each in embed(client, **more)["data"]]

    apart = vectors(input=["a cat", "sat down"])
    late = vectors(input=["a cat", "sat down"], late_chunking=True)
    assert len(late) == 2
    assert all(math.isclose(math.hypot(*vector), 1, abs_tol=1e-5) for vector in late)
    assert late[1] != pytest.approx(apart[1], abs=1e-3)  # it is after the first
    assert vectors(input=["a cat"], late_chunking=True)[0] == pytest.approx(apart[0], abs=1e-3)
    body = {"model": "embedder", "input": ["a ", ""], "late_chunking": True}
    assert client.post("/v1/embeddings", json=body).status_code == 400
    long = {"model": "embedder", "input": ["a cat " * 9] * 9, "late_chunking": True}
    refused = client.post("/v1/embeddings", json=long).json()["error"]["message"]
    assert "late_chunking is too large" in refused


def test_fewer_dimensions_have_length_one_again(client: httpx.Client) -> None:
    whole = embed(client)["data"][0]["embedding"]
    short = embed(client, dimensions=8)["data"][0]["embedding"]
    length = sum(number**2 for number in whole[:8]) ** 0.5
    assert short == pytest.approx([number / length for number in whole[:8]], abs=1e-5)


def test_an_input_may_be_tokens(client: httpx.Client) -> None:
    assert embed(client, input=[5, 6, 7])["usage"]["prompt_tokens"] == 3
    assert len(embed(client, input=[[5], [6, 7]])["data"]) == 2
    assert "999999" in embed(client, 400, input=[999999])["error"]["message"]


def test_the_models_are_a_list(client: httpx.Client) -> None:
    answer = client.get("/v1/models").json()
    assert answer["object"] == "list"
    for model in answer["data"]:
        Model.model_validate(model, strict=True)
        assert (model["object"], model["owned_by"]) == ("model", "library")
        assert model["created"] > 1_700_000_000
    assert "talker:latest" in [model["id"] for model in answer["data"]]


def test_a_model_has_what_llama_server_says_of_it(client: httpx.Client) -> None:
    listed = {model["id"]: model for model in client.get("/v1/models").json()["data"]}
    talker, demo = listed["talker:latest"], listed["demo:latest"]
    assert talker["architecture"]["input_modalities"] == ["text"]
    assert demo["architecture"] == {
        "input_modalities": ["text", "image"], "output_modalities": ["text"],
    }  # fmt: skip
    info = client.post("/api/show", json={"model": "demo", "verbose": True}).json()["model_info"]
    meta = demo["meta"]
    assert meta["n_vocab"] == len(info["tokenizer.ggml.tokens"])
    assert meta["vocab_type"] == {"llama": 1, "gpt2": 2}[info["tokenizer.ggml.model"]]
    assert meta["n_params"] == info["general.parameter_count"]
    assert meta["n_ctx_train"] == info["gemma3.context_length"]
    assert meta["n_embd"] == info["gemma3.embedding_length"]
    assert meta["size"] > 1_000_000
    assert client.get("/v1/models/demo").json()["meta"] == meta


def test_a_model_s_path_is_the_name_of_its_file(client: httpx.Client) -> None:
    listed = {model["id"]: model for model in client.get("/models").json()["data"]}
    assert listed["talker:latest"]["path"] == "talker.gguf"


def test_the_short_path_has_llama_server_s_list_of_models_too(client: httpx.Client) -> None:
    found = client.get("/models").json()
    assert found["models"] == client.get("/api/tags").json()["models"]
    assert [each["name"] for each in found["models"]] == [each["id"] for each in found["data"]]
    assert "models" not in client.get("/v1/models").json()


@pytest.mark.parametrize("name", ["talker", "talker:latest", quote("talker:latest", safe="")])
def test_a_model_is_found_by_its_name_escaped_or_not(client: httpx.Client, name: str) -> None:
    assert client.get(f"/v1/models/{name}").json()["id"].startswith("talker")


@pytest.mark.parametrize("name", ["nobody", "library/nobody:7b", "library%2Fnobody%3A7b"])
def test_unknown_model_is_404(client: httpx.Client, name: str) -> None:
    response = client.get(f"/v1/models/{name}")
    assert response.status_code == 404
    assert response.json()["error"]["type"] == "not_found_error"


@pytest.mark.parametrize(
    ("coding", "pack"),
    [("zstd", zstandard.ZstdCompressor().compress), ("gzip", gzip.compress)],
    ids=["zstd", "gzip"],
)
@pytest.mark.parametrize("path", ["/v1/responses", "/v1/completions"])
def test_a_body_may_be_compressed(
    client: httpx.Client,
    coding: str,
    pack: Callable[[bytes | bytearray | memoryview[int]], bytes],
    path: str,
) -> None:
    body = {"model": "talker", "prompt" if "comp" in path else "input": "x"}
    response = client.post(
        path, content=pack(json.dumps(body).encode()), headers={"content-encoding": coding}
    )
    assert response.status_code == 200
