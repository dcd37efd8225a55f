"""What clients of llama-server are used to, in OpenAI's API."""

from __future__ import annotations

import json
from typing import Any

import httpx
import openai
import pytest
from support.serving import Server
from support.sse import blocks_of, data_of
from support.tiny_model import VOCABULARY

pytestmark = [pytest.mark.client, pytest.mark.server]

USER: list[Any] = [{"role": "user", "content": "x"}]
CHAT: dict[str, Any] = {"model": "talker", "messages": USER, "temperature": 0}
COMPLETION: dict[str, Any] = {"model": "talker", "prompt": "x", "temperature": 0}
HELLO = VOCABULARY  # the token of the first word that the model says
TIMINGS = [
    "cache_n", "prompt_n", "prompt_ms", "prompt_per_token_ms", "prompt_per_second",
    "predicted_n", "predicted_ms", "predicted_per_token_ms", "predicted_per_second",
]  # fmt: skip


def post(client: httpx.Client, path: str, body: dict[str, Any], **more: Any) -> Any:
    response = client.post(path, json=body | more)
    assert response.status_code == 200, response.text
    return response.json()


def said(answer: Any) -> str:
    [choice] = answer["choices"]
    return choice["text"] if "text" in choice else choice["message"]["content"]


@pytest.mark.parametrize(
    ("path", "body"),
    [
        ("/chat/completions", CHAT),
        ("/chat/completions/input_tokens", CHAT),
        ("/embeddings", {"model": "embedder", "input": "x", "encoding_format": "float"}),
        ("/responses", {"model": "talker", "input": "x"}),
        ("/messages", CHAT | {"max_tokens": 9}),
        ("/models", None),
        ("/models/talker", None),
    ],
)
def test_a_path_may_lack_its_version(client: httpx.Client, path: str, body: Any) -> None:
    method = "GET" if body is None else "POST"
    answers = [client.request(method, prefix + path, json=body) for prefix in ("", "/v1")]
    assert [answer.status_code for answer in answers] == [200, 200]
    short, long = (answer.json() for answer in answers)
    assert short.keys() - {"models"} == long.keys()  # llama-server's list, in the short one alone


def test_the_openai_package_works_with_the_address_alone(contract_server: Server) -> None:
    with openai.OpenAI(base_url=contract_server.url, api_key="none") as client:
        answer = client.chat.completions.create(model="talker", messages=USER, temperature=0)
        assert answer.choices[0].message.content == "Hello, world."
        assert "talker:latest" in [model.id for model in client.models.list()]
        found = client.embeddings.create(model="embedder", input=["x", "y"])
        assert [each.index for each in found.data] == [0, 1]


@pytest.mark.parametrize(
    ("method", "path", "status"),
    [
        ("POST", "/chat/completions", 400), ("POST", "/v1/completions", 400),
        ("GET", "/chat/completions", 405), ("GET", "/v1/nothing", 404), ("GET", "/nothing", 404),
        ("GET", "/chat", 404), ("DELETE", "/api/chat", 405),
    ],
)  # fmt: skip
def test_every_error_is_json(client: httpx.Client, method: str, path: str, status: int) -> None:
    response = client.request(method, path, content=b"{")
    assert response.status_code == status
    error = response.json()["error"]
    is_openai = path.startswith(("/v1", "/chat"))
    assert (error["message"] if is_openai else error) != ""
    assert response.headers["content-type"].startswith("application/json")


@pytest.mark.parametrize(
    ("path", "body"), [("/v1/chat/completions", CHAT), ("/v1/completions", COMPLETION)]
)
def test_minus_one_means_no_limit(client: httpx.Client, path: str, body: dict[str, Any]) -> None:
    looping = post(client, path, body, model="looper", max_tokens=-1)
    assert looping["usage"]["completion_tokens"] > 16
    assert post(client, path, body, max_tokens=-1)["choices"][0]["finish_reason"] == "stop"
    response = client.post(path, json=body | {"max_tokens": -2})
    assert response.status_code == 400


@pytest.mark.parametrize(
    "bias",
    [
        {str(HELLO): -100}, {"x": 100}, [[HELLO, -100]], [[HELLO, False]], [["x", 100.0]],
        [["y", -1], ["x", 100]],
    ],
    ids=json.dumps,
)  # fmt: skip
def test_biases_are_of_tokens_or_texts(client: httpx.Client, bias: Any) -> None:
    assert said(post(client, "/v1/chat/completions", CHAT)).startswith("Hello")
    biased = post(client, "/v1/chat/completions", CHAT, logit_bias=bias, max_tokens=4)
    assert not said(biased).startswith("Hello")


def test_false_forbids_the_tokens_of_a_text(client: httpx.Client) -> None:
    bias = [["x", 100], ["x", False]]
    biased = post(client, "/v1/chat/completions", CHAT, logit_bias=bias, max_tokens=4)
    assert said(biased).startswith("Hello")


@pytest.mark.parametrize(
    "bias",
    [
        {"Hello": "x"}, {"Hello": True}, {"Hello": 101}, {"": 1}, {"x" * 1_025: 1}, {"-1": 1},
        [[True, 1]], [["Hello"]], [5], [[1.5, 1]], [[-1, 1]], [[5, None]], "Hello",
    ],
    ids=lambda bias: json.dumps(bias)[:40],
)  # fmt: skip
def test_an_invalid_bias_is_refused_by_its_name(client: httpx.Client, bias: Any) -> None:
    response = client.post("/v1/chat/completions", json=CHAT | {"logit_bias": bias})
    assert response.status_code == 400
    assert "logit_bias" in response.json()["error"]["message"]


@pytest.mark.parametrize(
    ("path", "body"), [("/v1/chat/completions", CHAT), ("/v1/completions", COMPLETION)]
)
def test_an_answer_has_timings(client: httpx.Client, path: str, body: dict[str, Any]) -> None:
    answer = post(client, path, body)
    chunks = data_of(client.post(path, json=body | {"stream": True}))
    usage = {"stream": True, "stream_options": {"include_usage": True}}
    with_usage = data_of(client.post(path, json=body | usage))
    for ended in (answer, chunks[-1], with_usage[-1]):
        timings = ended["timings"]
        drafts = ["draft_n", "draft_n_accepted"] if "draft_n" in timings else []
        assert [*timings] == TIMINGS + drafts
        assert timings["predicted_n"] == answer["usage"]["completion_tokens"]
        assert timings["cache_n"] + timings["prompt_n"] == answer["usage"]["prompt_tokens"]
        for part, count in (
            ("prompt", timings["prompt_n"]), ("predicted", timings["predicted_n"] - 1)
        ):  # fmt: skip
            ms = timings[f"{part}_ms"]
            assert ms > 0
            assert timings[f"{part}_per_token_ms"] == pytest.approx(ms / max(count, 1))
            assert timings[f"{part}_per_second"] == pytest.approx(1000 * count / ms)
    assert not any("timings" in chunk for chunk in chunks[:-1])


@pytest.mark.parametrize(
    ("path", "body"), [("/v1/chat/completions", CHAT), ("/v1/completions", COMPLETION)]
)
def test_one_token_has_no_rate(client: httpx.Client, path: str, body: dict[str, Any]) -> None:
    timings = post(client, path, body, max_tokens=1)["timings"]
    assert timings["predicted_n"] == 1
    assert timings["predicted_per_second"] == timings["predicted_per_token_ms"] == 0


LONG = {"model": "talker", "num_ctx": 512, "num_batch": 64, "stream": True}
STREAMS: list[Any] = [
    ("/v1/chat/completions", LONG | {"messages": [{"role": "user", "content": "ab" * 90}]}),
    ("/v1/completions", LONG | {"prompt": "cd" * 90}),
    ("/completion", LONG | {"prompt": "ef" * 90}),
    ("/v1/responses", LONG | {"input": "gh" * 90}),
]


def events_of(response: httpx.Response) -> list[Any]:
    blocks = [block["data"] for block in blocks_of(response)]
    return [json.loads(block) for block in blocks if block != "[DONE]"]


@pytest.mark.parametrize(("path", "body"), STREAMS)
def test_a_stream_tells_how_much_of_the_prompt_is_computed(
    client: httpx.Client, path: str, body: dict[str, Any]
) -> None:
    for has_cache in (False, True):
        events = events_of(client.post(path, json=body | {"return_progress": True}))
        found = [event["prompt_progress"] for event in events if "prompt_progress" in event]
        first, last = found[0], found[-1]
        assert first["processed"] == first["cache"]
        assert not has_cache or first["cache"] > 0
        assert last["processed"] == last["total"] == first["total"]
        assert len(found) >= (2 if has_cache else 4)  # 180 tokens and more, 64 at a time
        processed = [one["processed"] for one in found]
        assert processed == sorted({*processed})
        assert not any("timings" in event for event in events if "prompt_progress" in event)


@pytest.mark.parametrize(("path", "body"), STREAMS)
def test_each_piece_of_a_stream_has_timings_where_they_are_wanted(
    client: httpx.Client, path: str, body: dict[str, Any]
) -> None:
    wanted = {"timings_per_token": True, "return_progress": True}
    told = [one["timings"] for one in events_of(client.post(path, json=body | wanted))
            if "timings" in one]  # fmt: skip
    assert len(told) > 3
    assert (told[0]["prompt_n"], told[0]["prompt_ms"], told[0]["predicted_n"]) == (0, 0, 0)
    for name in ("prompt_n", "prompt_ms", "predicted_n"):
        values = [one[name] for one in told]
        assert values == sorted(values)
    assert told[-1]["predicted_n"] >= 4
    alone = events_of(client.post(path, json=body | {"timings_per_token": True}))
    assert not any("prompt_progress" in event for event in alone)
    assert sum("timings" in event for event in alone) > 1


def test_the_timings_of_several_choices_are_of_all(client: httpx.Client) -> None:
    one, two = (post(client, "/v1/chat/completions", CHAT, n=n)["timings"] for n in (1, 2))
    assert two["predicted_n"] == 2 * one["predicted_n"]


def test_the_prompt_is_shown_where_it_is_wanted(client: httpx.Client) -> None:
    shown = post(client, "/v1/chat/completions", CHAT, verbose=True)["__verbose"]
    assert shown["prompt"].endswith("user: x\nassistant:")
    assert "__verbose" not in post(client, "/v1/chat/completions", CHAT, verbose=False)


@pytest.mark.parametrize("is_streaming", [False, True])
def test_reasoning_has_both_of_its_names(client: httpx.Client, is_streaming: bool) -> None:
    body = CHAT | {"model": "thinker", "stream": is_streaming}
    response = client.post("/v1/chat/completions", json=body)
    if is_streaming:
        found = [chunk["choices"][0]["delta"] for chunk in data_of(response)]
    else:
        found = [response.json()["choices"][0]["message"]]
    for name in ("reasoning", "reasoning_content"):
        assert "".join(message.get(name, "") for message in found) == "Let me see."


@pytest.mark.parametrize(
    ("more", "is_kept", "is_kept_in_streams"),
    [
        ({"reasoning_format": "none"}, True, True),
        ({"reasoning_format": "deepseek-legacy"}, False, True),
        ({"reasoning_format": "deepseek"}, False, False),
        ({"reasoning_format": "auto"}, False, False),
        ({"separate_reasoning": False}, True, True),
    ],
)
def test_reasoning_may_stay_in_the_content(
    client: httpx.Client, more: dict[str, Any], is_kept: bool, is_kept_in_streams: bool
) -> None:
    body = CHAT | {"model": "thinker"} | more
    [choice] = post(client, "/v1/chat/completions", body)["choices"]
    streamed = client.post("/v1/chat/completions", json=body | {"stream": True})
    found = [chunk["choices"][0]["delta"] for chunk in data_of(streamed) if chunk["choices"]]
    for messages, kept in (([choice["message"]], is_kept), (found, is_kept_in_streams)):
        content = "".join(message.get("content") or "" for message in messages)
        reasoning = "".join(message.get("reasoning_content", "") for message in messages)
        assert content.startswith("<think>Let me see.</think>") == kept
        assert reasoning == ("" if kept else "Let me see.")
