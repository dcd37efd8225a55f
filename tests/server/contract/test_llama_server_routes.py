"""llama-server's own routes: completion, infill, tokens, templates, and a model's properties."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import httpx
import numpy as np
import pytest
from support.serving import start_server
from support.sse import blocks_of
from support.tiny_model import BOS, EOS, VOCABULARY, letter_token

pytestmark = [pytest.mark.client, pytest.mark.server]

BODY: dict[str, Any] = {"model": "talker", "prompt": "x", "temperature": 0}
WORDS = [VOCABULARY + place for place in range(4)]  # the tokens of what the model says
KEYS = {
    "index", "content", "tokens", "stop", "id_slot", "model", "tokens_predicted",
    "tokens_evaluated", "generation_settings", "prompt", "has_new_line", "truncated", "stop_type",
    "stopping_word", "tokens_cached", "timings",
}  # fmt: skip


def ask(client: httpx.Client, path: str = "/completion", **more: Any) -> Any:
    response = client.post(path, json=BODY | more)
    assert response.status_code == 200, response.text
    return response.json()


def chunks_of(response: httpx.Response) -> list[Any]:
    """Return the objects of a stream, which has no mark at its end."""
    return [json.loads(block["data"]) for block in blocks_of(response)]


def test_an_empty_prompt_is_the_begin_token(client: httpx.Client) -> None:
    assert ask(client, prompt="")["tokens_evaluated"] == 1
    assert [one["tokens_evaluated"] for one in ask(client, prompt=["", "x"])] == [1, 3]
    found = client.post("/v1/completions", json=BODY | {"prompt": ""}).json()
    assert found["usage"]["prompt_tokens"] == 1
    refused: tuple[Any, ...] = (None, [], [[]])
    for wrong in refused:
        response = client.post("/v1/completions", json=BODY | {"prompt": wrong})
        assert response.status_code == 400, wrong
        assert "prompt" in response.json()["error"]["message"]


def test_a_completion_has_llama_servers_fields(client: httpx.Client) -> None:
    answer = ask(client)
    assert answer.keys() == KEYS
    assert answer["content"] == "Hello, world."
    assert answer["prompt"] == "<s> x"
    assert answer["model"] == "talker"
    assert (answer["stop"], answer["stop_type"], answer["truncated"]) == (True, "eos", False)
    assert answer["tokens"] == []
    timings = answer["timings"]
    assert timings["predicted_n"] == answer["tokens_predicted"]
    assert timings["prompt_n"] + timings["cache_n"] == answer["tokens_evaluated"]


def test_completions_without_a_version_are_llama_servers(client: httpx.Client) -> None:
    assert ask(client, "/completions").keys() == KEYS
    assert ask(client, "/v1/completions")["choices"][0]["text"] == "Hello, world."
    response = client.post("/completions", json=BODY | {"n_predict": "x"})
    assert response.json()["error"]["code"] == 400


@pytest.mark.parametrize(
    ("more", "stop_type", "content"),
    [
        ({"n_predict": 2}, "limit", "Hello,"),
        ({"stop": ["wor"]}, "word", "Hello, "),
        ({"n_predict": -1}, "eos", "Hello, world."),
    ],
)
def test_an_answer_says_why_it_ended(
    client: httpx.Client, more: Any, stop_type: str, content: str
) -> None:
    answer = ask(client, **more)
    assert (answer["stop_type"], answer["content"]) == (stop_type, content)
    assert answer["stopping_word"] == more.get("stop", [""])[0]
    assert answer["generation_settings"]["n_predict"] == more.get("n_predict", -1)


def test_without_a_limit_an_answer_ends_where_the_context_is_full(client: httpx.Client) -> None:
    answer = ask(client, model="short")
    assert (answer["stop_type"], answer["truncated"]) == ("limit", True)
    assert answer["tokens_predicted"] + answer["tokens_evaluated"] >= 64


def test_a_stream_has_a_chunk_for_each_piece(client: httpx.Client) -> None:
    response = client.post("/completion", json=BODY | {"stream": True})
    *pieces, last = chunks_of(response)
    assert "".join(piece["content"] for piece in pieces) == "Hello, world."
    assert [token for piece in pieces for token in piece["tokens"]] == [*WORDS, EOS]
    assert not any(piece["stop"] for piece in pieces)
    assert last.keys() == KEYS
    assert last["stop"] is True
    assert last["content"] == ""


def test_tokens_are_returned_where_they_are_wanted(client: httpx.Client) -> None:
    answer = ask(client, return_tokens=True)
    assert answer["tokens"] == [*WORDS, EOS]
    assert answer["tokens_predicted"] == 5
    assert ask(client, return_tokens=True, n_predict=4)["tokens"] == WORDS


@pytest.mark.parametrize("post_sampling_probs", [False, True])
def test_the_end_token_has_its_probability(
    client: httpx.Client, *, post_sampling_probs: bool
) -> None:
    asked: dict[str, Any] = {
        "n_probs": 2,
        "return_tokens": True,
        "post_sampling_probs": post_sampling_probs,
    }
    name = "prob" if post_sampling_probs else "logprob"
    answer = ask(client, **asked)
    *words, end = answer["completion_probabilities"]
    assert [place["id"] for place in (*words, end)] == answer["tokens"] == [*WORDS, EOS]
    assert (end["token"], end["bytes"]) == ("", [])
    assert end[name] == pytest.approx(end[f"top_{name}s"][0][name])
    chunks = chunks_of(client.post("/completion", json=BODY | asked | {"stream": True}))
    assert chunks[-2]["completion_probabilities"] == [end]
    assert [chunk["tokens_predicted"] for chunk in chunks[-2:]] == [5, 5]


def test_fields_are_chosen_by_their_paths(client: httpx.Client) -> None:
    wanted = ["content", "generation_settings/n_predict", "nothing", "content/deeper"]
    answer = ask(client, n_predict=2, response_fields=wanted)
    assert answer == {"content": "Hello,", "generation_settings/n_predict": 2}


def test_the_likeliest_tokens_of_each_place(client: httpx.Client) -> None:
    answer = ask(client, n_probs=3, n_predict=2)
    first, second = answer["completion_probabilities"]
    assert (first["id"], second["id"]) == (WORDS[0], WORDS[1])
    assert bytes(first["bytes"]).decode() == first["token"]
    assert first["logprob"] <= 0
    assert [len(place["top_logprobs"]) for place in (first, second)] == [3, 3]
    assert first["top_logprobs"][0]["id"] == WORDS[0]
    chunks = chunks_of(client.post("/completion", json=BODY | {"n_probs": 3, "stream": True}))
    assert all(len(chunk["completion_probabilities"]) == 1 for chunk in chunks[:-1])


def test_the_probabilities_after_sampling(client: httpx.Client) -> None:
    asked: dict[str, Any] = {"n_probs": 3, "n_predict": 2, "post_sampling_probs": True}
    for place in ask(client, **asked)["completion_probabilities"]:  # at temperature 0
        assert [one["prob"] for one in (place, *place["top_probs"])] == [1.0, 1.0]
        assert place["id"] == place["top_probs"][0]["id"]
    warm = ask(client, **asked, temperature=50, top_k=2, seed=1)["completion_probabilities"]
    for place in warm:
        likeliest = [one["prob"] for one in place["top_probs"]]
        assert len(likeliest) == 2
        assert sum(likeliest) == pytest.approx(1)
        assert place["prob"] in likeliest
        assert "logprob" not in place
    chunks = chunks_of(client.post("/completion", json=BODY | asked | {"stream": True}))
    assert all(chunk["completion_probabilities"][0]["prob"] == 1.0 for chunk in chunks[:-1])


@pytest.mark.parametrize(
    ("prompt", "tokens"),
    [
        ("ab", None), ({"prompt_string": "ab"}, None), (["ab"], None), ([BOS, 260], 2),
        ([BOS, "ab", 260], None), (["ab", 260], None),
    ],
    ids=json.dumps,
)  # fmt: skip
def test_a_prompt_may_have_texts_and_tokens(
    client: httpx.Client, prompt: Any, tokens: int | None
) -> None:
    answer = ask(client, prompt=prompt)
    assert answer["content"] == "Hello, world."
    assert tokens in (None, answer["tokens_evaluated"])


def test_several_prompts_have_a_list_of_answers(client: httpx.Client) -> None:
    answers = ask(client, prompt=["x", [BOS, 260], {"prompt_string": "y"}])
    assert [answer["content"] for answer in answers] == ["Hello, world."] * 3
    assert [answer["index"] for answer in answers] == [0, 1, 2]


@pytest.mark.parametrize(
    "more",
    [
        {"prompt": None}, {"prompt": []}, {"prompt": 5}, {"prompt": [True]}, {"prompt": {}},
        {"prompt": [["x"], 5.5]}, {"prompt": {"prompt_string": "x", "multimodal_data": ["AA"]}},
        {"n_probs": 21}, {"n_probs": -1}, {"post_sampling_probs": 5}, {"n_predict": "x"},
        {"response_fields": 5}, {"temperature": "hot"},
    ],
    ids=lambda more: json.dumps(more)[:40],
)  # fmt: skip
def test_a_wrong_value_is_refused_in_llama_servers_form(client: httpx.Client, more: Any) -> None:
    response = client.post("/completion", json=BODY | more)
    assert response.status_code == 400
    error = response.json()["error"]
    assert (error["code"], error["type"]) == (400, "invalid_request_error")
    assert next(iter(more)) in error["message"]


def test_a_prompt_that_is_too_long_has_its_own_type(client: httpx.Client) -> None:
    response = client.post("/completion", json=BODY | {"prompt": "x" * 2000})
    assert response.status_code == 400
    error = response.json()["error"]
    assert error["type"] == "exceed_context_size_error"
    assert "exceeds the available context size: prompt is too long: " in error["message"]
    assert f"{error['n_prompt_tokens']} tokens > {error['n_ctx']} maximum" in error["message"]


@pytest.mark.parametrize(
    ("path", "kind"),
    [
        ("/chat/completions", "exceed_context_size_error"),
        ("/v1/chat/completions", "invalid_request_error"),
    ],
)
@pytest.mark.parametrize("is_streaming", [False, True])
def test_the_error_of_a_long_conversation_has_its_counts(
    client: httpx.Client, path: str, kind: str, is_streaming: bool
) -> None:
    messages = [{"role": "user", "content": "x" * 5000}]
    body = {"model": "brief", "messages": messages, "stream": is_streaming}
    response = client.post(path, json=body)
    assert response.status_code == 400
    error = response.json()["error"]
    assert (error["type"], error["code"]) == (kind, "context_length_exceeded")
    assert error["n_prompt_tokens"] > error["n_ctx"] == 128


def test_infill_continues_between_two_texts(client: httpx.Client) -> None:
    body = {"input_prefix": "a", "input_suffix": "b", "prompt": "c", "model": "filler"}
    answer = ask(client, "/infill", **body)
    assert answer["content"] == "Hello, world."
    assert answer["prompt"] == "ac"
    extra = [{"filename": "other.py", "text": "de"}]
    longer = ask(client, "/infill", **body, input_extra=extra)
    assert longer["prompt"].startswith("other.py\nde")
    assert longer["tokens_evaluated"] > answer["tokens_evaluated"]


VIM: dict[str, Any] = {  # what llama.vim's and llama.vscode's requests have
    "model": "filler", "input_prefix": "a\n", "input_suffix": "b\n", "prompt": "  c",
    "input_extra": [{"text": "d\n", "time": [1, 2], "filename": "other.py"}],
    "n_predict": 128, "stop": [], "n_indent": 2, "top_k": 40, "top_p": 0.99, "stream": False,
    "samplers": ["top_k", "top_p", "infill"], "cache_prompt": True, "t_max_prompt_ms": 500,
    "t_max_predict_ms": 60_000, "id_slot": 0,
    "response_fields": ["content", "timings/prompt_n", "timings/prompt_ms",
                        "timings/prompt_per_token_ms", "timings/prompt_per_second",
                        "timings/predicted_n", "timings/predicted_ms",
                        "timings/predicted_per_token_ms", "timings/predicted_per_second",
                        "truncated", "tokens_cached"],
}  # fmt: skip


def test_editors_infill_works_unchanged(client: httpx.Client) -> None:
    response = client.post("/infill", json=VIM)
    assert response.status_code == 200, response.text
    assert response.json().keys() == {*VIM["response_fields"]}
    assert response.json()["content"].startswith("Hello, world.")
    nothing = {
        "n_predict": 0, "temperature": 0.0, "samplers": [], "response_fields": [""], "prompt": "",
        "input_prefix": "", "input_suffix": "", "t_max_predict_ms": 1,
    }  # fmt: skip
    prepared = client.post("/infill", json=VIM | nothing)
    assert (prepared.status_code, prepared.json()) == (200, {}), prepared.text


def test_a_line_that_is_indented_less_ends_an_answer(client: httpx.Client) -> None:
    grammar = r'root ::= "if a:\n" "  b\n" "\tc\n" "d\n" "  e"'
    for indent, wanted in ((2, "if a:\n  b\n\t"), (1, "if a:\n  b\n\tc\n"), (3, "if a:\n  ")):
        answer = ask(client, grammar=grammar, n_indent=indent)
        assert (answer["content"], answer["stop_type"]) == (wanted, "limit")
        chunks = chunks_of(
            client.post("/completion", json={**BODY, "grammar": grammar, "n_indent": indent,
                                             "stream": True})
        )  # fmt: skip
        assert "".join(chunk["content"] for chunk in chunks) == wanted
    assert ask(client, grammar=grammar)["content"].endswith("d\n  e")
    last = ask(client, grammar=r'root ::= "a\n" "b"', n_indent=1)  # a complete answer, but cut
    assert (last["content"], last["stop_type"]) == ("a\n", "limit")
    assert ask(client, grammar=r'root ::= "a\n" "\n" "  b"', n_indent=1)["content"] == "a\n"


def test_an_answer_ends_with_a_line_when_its_time_is_over(client: httpx.Client) -> None:
    asked: dict[str, Any] = {"grammar": r'root ::= ("a" "\n"){40}', "n_predict": 64}
    answer = ask(client, **asked, t_max_predict_ms=1)
    assert answer["content"].endswith("\n")
    assert answer["stop_type"] == "limit"
    assert answer["tokens_predicted"] < 64
    for unlimited in (0, -1, 10**9):
        assert ask(client, **asked, t_max_predict_ms=unlimited)["tokens_predicted"] == 64


@pytest.mark.parametrize("extra", [{}, {"filename": "a"}, {"filename": 1, "text": "a"}, 5])
def test_another_file_needs_a_text(client: httpx.Client, extra: Any) -> None:
    body = BODY | {"model": "filler", "input_prefix": "a", "input_extra": [extra]}
    response = client.post("/infill", json=body)
    assert response.status_code == 400
    assert "input_extra" in response.json()["error"]["message"]


def test_infill_needs_a_model_that_can(client: httpx.Client) -> None:
    response = client.post("/infill", json=BODY | {"input_prefix": "a"})
    assert response.status_code == 400
    assert "infill" in response.json()["error"]["message"]


def test_tokens_of_a_text_and_back(client: httpx.Client) -> None:
    plain = ask(client, "/tokenize", content="the x")["tokens"]
    assert plain[0] != BOS
    special = ask(client, "/tokenize", content="the x", add_special=True)["tokens"]
    assert special == [BOS, *plain]
    assert ask(client, "/detokenize", tokens=plain)["content"].strip() == "the x"


def test_a_piece_is_a_text_or_the_bytes_of_a_part_of_a_character(client: httpx.Client) -> None:
    found = ask(client, "/tokenize", content="x é", with_pieces=True)["tokens"]
    assert [token["piece"] for token in found[-2:]] == [[0xC3], [0xA9]]
    assert "x" in [token["piece"].strip() for token in found[:-2]]


def test_biases_of_texts_are_shown_as_those_of_their_tokens(client: httpx.Client) -> None:
    token = letter_token("e")
    for bias in ([["e", -2.5]], {"e": -2.5}, [[token, -2.5]]):
        settings = ask(client, logit_bias=bias, n_predict=1)["generation_settings"]
        assert {"token": token, "bias": -2.5} in settings["logit_bias"]


def test_what_a_model_is_and_how_it_generates(client: httpx.Client) -> None:
    client.post("/api/generate", json={"model": "talker", "options": {"num_ctx": 64}})
    props = client.get("/props", params={"model": "talker"}).json()
    assert props["model_path"] == "talker.gguf"
    assert props["total_slots"] == 8
    assert props["is_sleeping"] is False
    assert "assistant:" in props["chat_template"]
    settings = props["default_generation_settings"]
    assert settings["n_ctx"] == 64
    assert settings["params"]["n_predict"] == -1
    slot = client.get("/slots", params={"model": "talker"}).json()[0]
    assert slot == {"id": 0, "n_ctx": 64, "is_processing": False}


def test_a_models_batches_are_counted(client: httpx.Client) -> None:
    def batches() -> float:
        lines = client.get("/metrics").text.splitlines()
        [found] = [line for line in lines if line.startswith("llamacpp:n_decode_total ")]
        return float(found.split()[1])

    before = batches()
    answer = ask(client)
    generated = batches()
    # The first token comes from the prompt's batch; there is one more for the end.
    assert generated - before >= answer["tokens_predicted"]
    client.post("/v1/embeddings", json={"model": "embedder", "input": ["a", "b"]})
    assert 1 <= batches() - generated <= 2  # two texts may share one


def test_an_empty_text_has_an_embedding(client: httpx.Client) -> None:
    for given in ("", ["a", ""]):
        body = {"model": "embedder", "input": given}
        response = client.post("/v1/embeddings", json=body)
        assert response.status_code == 200
        assert len(response.json()["data"][-1]["embedding"]) == 32


def test_too_large_an_input_to_embed_is_refused(client: httpx.Client) -> None:
    response = client.post("/v1/embeddings", json={"model": "embedder", "input": "word " * 200})
    assert response.status_code == 400
    assert "input[0] is too large: " in response.json()["error"]["message"]


def test_without_pooling_each_token_has_a_vector(contract_models: Path, tmp_path: Path) -> None:
    server = start_server(contract_models, tmp_path, TAMPU_POOLING="none")
    try:
        with httpx.Client(base_url=server.url, timeout=300) as client:
            body = {"model": "embedder", "input": ["ab", ""]}
            found = client.post("/embeddings", json=body).json()
            assert [one["index"] for one in found] == [0, 1]
            counts = [len(one["embedding"]) for one in found]
            assert counts == [len(ask(client, "/tokenize", content="ab")["tokens"]) + 1, 1]
            vectors = np.array([vector for one in found for vector in one["embedding"]])
            assert vectors.shape[1] == 32
            assert (abs(np.linalg.norm(vectors, axis=1) - 1) > 1e-3).all()
            for path in ("/v1/embeddings", "/api/embed", "/api/embeddings"):
                refused = client.post(path, json=body | {"prompt": "ab"})
                assert refused.status_code == 400
                assert "no pooling" in str(refused.json()["error"])
            refused = client.post("/embeddings", json=body | {"dimensions": 8})
            assert refused.status_code == 400
            assert "dimensions" in refused.json()["error"]["message"]
    finally:
        server.end()


@pytest.mark.parametrize("path", ["/props", "/slots"])
def test_an_unknown_model_is_named(client: httpx.Client, path: str) -> None:
    response = client.get(path, params={"model": "nobody"})
    assert response.status_code == 404
    assert "nobody" in response.json()["error"]["message"]


def test_embeddings_take_llama_servers_forms(client: httpx.Client) -> None:
    def vectors(given: Any) -> list[Any]:
        response = client.post("/v1/embeddings", json={"model": "embedder", "input": given})
        assert response.status_code == 200, response.text
        return [one["embedding"] for one in response.json()["data"]]

    [plain] = vectors("the x")
    assert vectors({"prompt_string": "the x"}) == [plain]
    parts = [{"type": "text", "text": "the "}, {"type": "text", "text": "x"}]
    assert vectors(["the x", {"content": parts}]) == [plain, plain]
    assert len(vectors([260, 261, "x"])) == 1
    assert len(vectors([[260, "x"], [260], "x"])) == 3


@pytest.mark.parametrize(
    "given", [{}, {"content": "x"}, {"content": [{"type": "image_url"}]}, [{}], [{"content": []}]]
)
def test_another_form_of_an_input_is_refused(client: httpx.Client, given: Any) -> None:
    response = client.post("/v1/embeddings", json={"model": "embedder", "input": given})
    assert response.status_code == 400
    assert "input" in response.json()["error"]["message"]
