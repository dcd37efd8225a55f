"""The tables of llama-server's own routes in docs/api.md say what the server does.

The fields are those of llama-server's README, in November 2026.
"""

from __future__ import annotations

import base64
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import httpx
import numpy as np
import pytest

from tests.clients.questions import picture

pytestmark = [pytest.mark.server, pytest.mark.slow]

ROOT = Path(__file__).parents[3]
COMPLETION = """
    prompt temperature dynatemp_range dynatemp_exponent top_k top_p min_p n_predict n_indent n_keep
    n_cmpl n_cache_reuse stream stop typical_p repeat_penalty repeat_last_n presence_penalty
    frequency_penalty dry_multiplier dry_base dry_allowed_length dry_penalty_last_n
    dry_sequence_breakers xtc_probability xtc_threshold mirostat mirostat_tau mirostat_eta grammar
    json_schema seed ignore_eos logit_bias n_probs min_keep t_max_predict_ms id_slot cache_prompt
    return_tokens samplers timings_per_token return_progress sse_ping_interval post_sampling_probs
    response_fields lora
"""
REQUESTS = {
    "POST /completion": COMPLETION,
    "POST /infill": "input_prefix input_suffix input_extra prompt",
    "POST /tokenize": "content add_special parse_special with_pieces",
    "POST /detokenize": "tokens",
    "POST /apply-template": "messages",
    "POST /embedding": "content embd_normalize",
    "POST /rerank": "query documents top_n",
    "POST /v1/systemone": "state questions files images",
}
ANSWERS = {
    "POST /completion": """content tokens stop generation_settings model prompt stop_type
        stopping_word timings tokens_cached tokens_evaluated truncated completion_probabilities""",
    "GET /props": """default_generation_settings total_slots model_path chat_template
        chat_template_caps modalities media_marker build_info is_sleeping""",
    "GET /slots": "id id_task n_ctx speculative is_processing params next_token",
    "GET /lora-adapters": "id path scale",
    "GET /models": "id object architecture created owned_by meta path status",
}
BODIES: Mapping[str, dict[str, Any]] = {
    "/completion": {"model": "talker", "prompt": "x", "temperature": 0, "n_predict": 3},
    "/infill": {"model": "filler", "input_prefix": "a", "input_suffix": "b", "n_predict": 3},
    "/tokenize": {"model": "talker", "content": "x"},
    "/detokenize": {"model": "talker", "tokens": [300]},
    "/apply-template": {"model": "talker", "messages": [{"role": "user", "content": "x"}]},
    "/embedding": {"model": "embedder", "content": "x"},
    "/rerank": {"model": "talker", "query": "x", "documents": ["y"]},
    "/v1/systemone": {
        "model": "talker", "state": "x", "questions": {"q": {"type": "noul", "instructions": "?"}},
    },
}  # fmt: skip
WRONG: Mapping[str, Any] = {"lora": "x", "state": 7, "logit_bias": 7}  # others: an object
HARMLESS: Mapping[str, Any] = {
    "dynatemp_exponent": 2.0, "n_cache_reuse": 64, "mirostat_tau": 3.0, "mirostat_eta": 0.5,
    "id_slot": 3, "cache_prompt": True, "sse_ping_interval": 5,
}  # fmt: skip
REFUSED: Mapping[str, tuple[Any, Any]] = {  # the values that change nothing, and others
    "dynatemp_range": (0.0, 0.5), "mirostat": (0, 2), "min_keep": (0, 2),
}  # fmt: skip


def table(heading: str) -> dict[str, list[list[str]]]:
    """Return the names in the cells of a table of the docs' section, by its first column."""
    text = (ROOT / "docs/api.md").read_text().split("### Field by field")[1]
    rows = text.split(f"| {heading} |")[1].split("\n\n")[0].splitlines()[2:]
    cells = [[re.findall(r"`([^`]+)`", cell) for cell in row.strip("|").split("|")] for row in rows]
    return {cell[0][0]: cell[1:] for cell in cells}


def fields_of(names: list[str]) -> set[str]:
    """Return the fields among the names of a cell, without routes and queries."""
    return {name for name in names if name[0] not in "/?"}


def post(client: httpx.Client, path: str, **more: Any) -> httpx.Response:
    return client.post(path, json={**BODIES[path], **more})


def shown(response: httpx.Response) -> Any:
    assert response.status_code == 200, response.text
    return response.json()["content"]


def test_the_tables_have_every_field_once() -> None:
    for heading, known in (("request", REQUESTS), ("answer", ANSWERS)):
        found = table(heading)
        assert found.keys() == known.keys()
        for route, cells in found.items():
            names = [name for cell in cells for name in fields_of(cell)]
            answers_probabilities = (heading, route) == ("answer", "POST /completion")
            extra = ["n_probs"] if answers_probabilities else []
            assert sorted(names) == sorted([*known[route].split(), *extra]), route


@pytest.mark.parametrize("route", REQUESTS)
def test_fields_with_an_effect_are_read(client: httpx.Client, route: str) -> None:
    path = route.removeprefix("POST ")
    for name in fields_of(table("request")[route][0]):
        response = post(client, path, **{name: WRONG.get(name, {"x": 1})})
        if name == "json_schema":  # the object is a schema
            response = post(client, path, json_schema="{")
        assert response.status_code == 400, name
        assert name.removeprefix("post_").split("_")[0] in response.text, (name, response.text)


def test_fields_without_an_effect_change_nothing(client: httpx.Client) -> None:
    plain = shown(post(client, "/completion"))
    [_, names, _] = table("request")["POST /completion"]
    assert {*names} == HARMLESS.keys()
    for name, value in HARMLESS.items():
        assert shown(post(client, "/completion", **{name: value})) == plain


@pytest.mark.parametrize("id_slot", [0, 3, 99, -1, -7, None])
def test_any_slot_may_be_asked_for(client: httpx.Client, id_slot: int | None) -> None:
    asked = post(client, "/completion", id_slot=id_slot)
    assert shown(asked) == shown(post(client, "/completion"))
    assert asked.json()["id_slot"] == -1


def test_fields_that_are_refused_are_named(client: httpx.Client) -> None:
    [_, _, names] = table("request")["POST /completion"]
    assert {*names} == REFUSED.keys()
    for name, (same, other) in REFUSED.items():
        assert shown(post(client, "/completion", **{name: same}))
        response = post(client, "/completion", **{name: other})
        assert response.status_code == 400
        assert name in response.json()["error"]["message"]


@pytest.mark.parametrize("path", ["/completion", "/infill"])
def test_a_temperature_below_0_takes_the_best_token(client: httpx.Client, path: str) -> None:
    best, same = (
        post(client, path, model="filler", n_probs=1, temperature=value).json() for value in (0, -1)
    )
    assert same["completion_probabilities"] == best["completion_probabilities"]
    assert same["generation_settings"]["temperature"] == 0


@pytest.mark.parametrize("route", ANSWERS)
def test_answers_have_the_fields_that_are_there(client: httpx.Client, route: str) -> None:
    there, missing = (fields_of(cell) for cell in table("answer")[route])
    method, path = route.split()
    if method == "POST":
        answer = post(client, path, n_probs=1).json()
        there -= {"n_probs"}
    else:
        answer = client.get(path, params={"model": "talker"}).json()
    answer = answer["data"] if path == "/models" else answer
    if path == "/lora-adapters":
        assert answer == []  # tests of features/adapters have the fields of one
        return
    keys = (answer[0] if isinstance(answer, list) else answer).keys()
    assert keys >= there
    assert not keys & missing


def embedded(client: httpx.Client, path: str = "/embedding", **more: Any) -> list[Any]:
    body = {"model": "embedder", **more}
    response = client.post(path, json=body)
    assert response.status_code == 200, response.text
    found = response.json()
    assert [one["index"] for one in found] == [*range(len(found))]
    return [one["embedding"] for one in found]


def test_an_embedding_is_a_list_of_one_vector(client: httpx.Client) -> None:
    body = {"model": "embedder", "input": ["the x", "y"]}
    known = [one["embedding"] for one in client.post("/v1/embeddings", json=body).json()["data"]]
    assert embedded(client, content="the x") == [[known[0]]]
    found = np.array(embedded(client, input=["the x", "y"]))
    np.testing.assert_allclose(found[:, 0], known, atol=1e-6)
    assert embedded(client, content={"prompt_string": "the x"}) == [[known[0]]]


def test_embeddings_have_openais_form_or_llama_servers(client: httpx.Client) -> None:
    known = embedded(client, content=["the x", "y"])
    assert embedded(client, "/embeddings", input=["the x", "y"]) == known
    assert embedded(client, "/embeddings", content=["the x", "y"]) == known
    assert embedded(client, "/v1/embeddings", content=["the x", "y"]) == known
    body = {"model": "embedder", "input": ["the x", "y"]}
    for path, more in (("/v1/embeddings", {}), ("/embeddings", {"encoding_format": "float"})):
        found = client.post(path, json=body | more).json()
        assert [[one["embedding"]] for one in found["data"]] == known


def test_an_embedding_has_the_norm_that_is_wanted(client: httpx.Client) -> None:
    def vector(norm: int, **more: Any) -> Any:
        [[found]] = embedded(client, content="the x", embd_normalize=norm, **more)
        return np.array(found)

    def size(norm: int) -> Any:
        return np.abs(vector(norm))

    raw = vector(-1)
    length = np.linalg.norm(raw)
    assert length != pytest.approx(1, rel=1e-2)
    np.testing.assert_allclose(raw / length, vector(2), atol=1e-5)
    np.testing.assert_allclose(vector(-1, dimensions=3), raw[:3], rtol=1e-5)
    assert (vector(2, dimensions=3) ** 2).sum() == pytest.approx(1, rel=1e-4)

    assert size(0).max() == pytest.approx(32760, rel=1e-4)
    assert size(1).sum() == pytest.approx(1, rel=1e-4)
    assert (size(2) ** 2).sum() == pytest.approx(1, rel=1e-4)
    assert (size(3) ** 3).sum() == pytest.approx(1, rel=1e-4)
    body = {"model": "embedder", "input": "the x", "embd_normalize": -1}
    [found] = client.post("/v1/embeddings", json=body).json()["data"]
    np.testing.assert_allclose(found["embedding"], raw, rtol=1e-5)


@pytest.mark.parametrize(
    ("more", "message"),
    [
        ({"content": "x", "embd_normalize": -2}, "embd_normalize must be -1 to 8"),
        ({"content": "x", "embd_normalize": 9}, "embd_normalize must be -1 to 8"),
        ({}, "input must be a text, tokens"),
        ({"content": "x", "input": "x"}, "content and input"),
    ],
)
def test_a_wrong_embedding_is_refused(
    client: httpx.Client, more: dict[str, Any], message: str
) -> None:
    response = client.post("/embedding", json={"model": "embedder", **more})
    assert response.status_code == 400
    assert message in response.json()["error"]["message"]


def completed(client: httpx.Client, status: int = 200, **more: Any) -> Any:
    body = {"model": "demo", "temperature": 0, "n_predict": 8, **more}
    response = client.post("/completion", json=body)
    assert response.status_code == status, response.text
    return response.json()


def test_a_prompt_may_have_images(client: httpx.Client) -> None:
    image = base64.b64encode(picture()).decode()
    message = {"role": "user", "content": [
        {"type": "image_url", "image_url": {"url": f"data:image/png;base64,{image}"}},
        {"type": "text", "text": "What color is the shape?"},
    ]}  # fmt: skip
    chat = {"model": "demo", "messages": [message], "temperature": 0, "max_tokens": 8}
    known = client.post("/v1/chat/completions", json=chat).json()
    [choice] = known["choices"]

    marker = client.get("/props", params={"model": "demo"}).json()["media_marker"]
    plain = {"model": "demo", "messages": [{"role": "user", "content": "What color is the shape?"}]}
    prompt = client.post("/apply-template", json=plain).json()["prompt"]
    before, question, after = prompt.partition("What color")
    forms: list[dict[str, Any]] = [
        {"prompt": {
            "prompt_string": f"{before}{marker}{question}{after}", "multimodal_data": [image],
        }},
        {"prompt": f"{before}[img-7]{question}{after}", "image_data": [{"id": 7, "data": image}]},
    ]  # fmt: skip
    for form in forms:
        found = completed(client, **form)
        assert found["content"] == choice["message"]["content"]
        assert found["tokens_evaluated"] == known["usage"]["prompt_tokens"]
    with_plain = completed(client, prompt=[forms[0]["prompt"], prompt])
    assert with_plain[0]["content"] == choice["message"]["content"]
    assert with_plain[1]["tokens_evaluated"] < with_plain[0]["tokens_evaluated"]


@pytest.mark.parametrize(
    ("more", "message"),
    [
        ({"prompt": {"prompt_string": "x", "multimodal_data": ["eA=="]}}, "has 1 images, the text"),
        (
            {"prompt": {"prompt_string": "<__media__>", "multimodal_data": ["-"]}},
            "prompt.multimodal_data[0]",
        ),
        (
            {"prompt": {"prompt_string": "<__media__>", "multimodal_data": "eA=="}},
            "prompt.multimodal_data must be a list",
        ),
        (
            {"prompt": {"content": [{"type": "text", "text": "x"}], "multimodal_data": ["eA=="]}},
            "needs prompt_string",
        ),
        ({"prompt": "x", "image_data": [{"id": 7, "data": "eA=="}]}, "[img-ID] must be once"),
        ({"prompt": ["x"], "image_data": [{"id": 7, "data": "eA=="}]}, "a prompt that is a text"),
        ({"prompt": "x", "image_data": ["eA=="]}, "image_data[0] must be"),
        (
            {"model": "talker",
             "prompt": {"prompt_string": "<__media__>", "multimodal_data": ["eA=="]}},
            "does not support images",
        ),
    ],
)  # fmt: skip
def test_a_wrong_image_of_a_prompt_is_refused(
    client: httpx.Client, more: dict[str, Any], message: str
) -> None:
    assert message in completed(client, status=400, **more)["error"]["message"]


def tokenized(client: httpx.Client, **more: Any) -> Any:
    response = client.post("/tokenize", json={"model": "demo", **more})
    assert response.status_code == 200, response.text
    return response.json()


def test_tokens_in_the_form_of_vllm(client: httpx.Client) -> None:
    known = tokenized(client, content="Hello world", add_special=True)["tokens"]
    found = tokenized(client, prompt="Hello world")
    assert found == {
        "count": len(known), "max_model_len": found["max_model_len"],
        "tokens": known, "token_strs": None,
    }  # fmt: skip
    assert found["max_model_len"] > 0
    bare = tokenized(client, prompt="Hello world", add_special_tokens=False, return_token_strs=True)
    assert bare["tokens"] == tokenized(client, content="Hello world")["tokens"]
    assert "".join(bare["token_strs"]).replace("\u2581", " ").strip() == "Hello world"
    body = {"model": "demo", "tokens": bare["tokens"]}
    texts = client.post("/detokenize", json=body).json()
    assert texts["prompt"] == texts["content"]


def test_tokens_of_a_chat_in_the_form_of_vllm(client: httpx.Client) -> None:
    messages = [{"role": "user", "content": "Hello"}]
    found = tokenized(client, messages=messages, add_generation_prompt=True)
    body = {"model": "demo", "messages": messages}
    count = client.post("/v1/chat/completions/input_tokens", json=body).json()["input_tokens"]
    assert found["count"] == len(found["tokens"]) == count


@pytest.mark.parametrize("more", [{}, {"messages": [], "prompt": "x"}])
def test_one_text_is_tokenized(client: httpx.Client, more: dict[str, Any]) -> None:
    response = client.post("/tokenize", json={"model": "demo", **more})
    assert response.status_code == 400
    assert "give one of content, prompt and messages" in response.json()["error"]["message"]


def test_images_of_a_state_reach_the_model(client: httpx.Client) -> None:
    uri = f"data:image/png;base64,{base64.b64encode(picture()).decode()}"
    plain = post(client, "/v1/systemone", model="demo").json()["usage"]["input_tokens"]
    for field in ("images", "files"):
        seen = post(client, "/v1/systemone", model="demo", **{field: [uri]})
        assert seen.status_code == 200, seen.text
        assert seen.json()["usage"]["input_tokens"] > plain + 10
        bare = post(client, "/v1/systemone", model="demo", **{field: [uri.partition(",")[2]]})
        known, same = (each.json()["answers"]["q"]["noul"] for each in (seen, bare))
        # The second prompt is read from the cache: other products, which round otherwise.
        assert same == pytest.approx(known, rel=1e-1)  # a logit of -13.7 to 0.06
        response = post(client, "/v1/systemone", **{field: [uri]})
        assert response.status_code == 400
        assert response.json()["error"] == '"talker" does not support images'
        response = post(client, "/v1/systemone", **{field: ["https://pictures.example/x.png"]})
        assert response.status_code == 400
        assert f"{field}[0] must be a data URI" in response.json()["error"]


@pytest.mark.parametrize("is_list", [True, False], ids=["list", "messages"])
def test_images_in_the_messages_of_a_state_reach_the_model(
    client: httpx.Client, *, is_list: bool
) -> None:
    def asked(*parts: dict[str, Any], model: str = "demo") -> httpx.Response:
        content = [{"type": "text", "text": "Look."}, *parts]
        messages = [{"role": "user", "content": content}, {"role": "assistant", "content": "Yes."}]
        state = messages if is_list else {"messages": messages, "id": 1}
        return post(client, "/v1/systemone", model=model, state=state)

    uri = f"data:image/png;base64,{base64.b64encode(picture()).decode()}"
    image = {"type": "image_url", "image_url": {"url": uri}}
    plain = asked().json()["usage"]["input_tokens"]
    once = asked(image).json()["usage"]["input_tokens"]
    twice = asked(image, image | {"image_url": uri}).json()["usage"]["input_tokens"]
    assert plain + 10 < once < plain + 200  # not the text of the file
    assert twice - once == once - plain
    assert asked(image, model="talker").status_code == 400
    response = asked(image | {"image_url": {"url": "https://pictures.example/x.png"}})
    assert response.status_code == 400
    assert "the image of state message 0 must be a data URI" in response.json()["error"]
