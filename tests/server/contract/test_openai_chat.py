"""`POST /v1/chat/completions`, statement by statement.

What all families share: test_families.py. Each field alone: test_fields_of_openai.py. Through the
client package, with images and with real calls: tests/clients. What reaches the template: here,
over a model that only repeats.
"""

from __future__ import annotations

import json
from typing import Any

import httpx
import pytest
from openai.types.chat import ChatCompletion, ChatCompletionChunk
from support.sse import data_of

from tampu.engine.prompts import ChatPrompt
from tests.server.conftest import Site

pytestmark = pytest.mark.server

PATH = "/v1/chat/completions"
USER = [{"role": "user", "content": "x"}]
NUMBERS = {"type": "object", "properties": {"a": {"type": "integer"}, "b": {"type": "integer"}}}
TOOLS = [{"type": "function", "function": {"name": "add", "parameters": NUMBERS}}]
PAIR = {"model": "pair", "tools": [*TOOLS, {"type": "function", "function": {"name": "sub"}}]}
CALLER = {"model": "caller", "tools": TOOLS}


def ask(client: httpx.Client, status: int = 200, **more: Any) -> httpx.Response:
    body = {"model": "talker", "messages": USER, "temperature": 0} | more
    response = client.post(PATH, json=body)
    assert response.status_code == status, response.text
    return response


def whole(client: httpx.Client, **more: Any) -> Any:
    """Return the answer; the package's own model finds nothing wrong with it."""
    answer = ask(client, **more).json()
    ChatCompletion.model_validate(answer, strict=True)
    return answer


def stream(client: httpx.Client, **more: Any) -> list[Any]:
    """Return the chunks; the package's own model finds nothing wrong with them."""
    chunks = data_of(ask(client, stream=True, **more))
    for chunk in chunks:
        ChatCompletionChunk.model_validate(chunk, strict=True)
    return chunks


def deltas(chunks: list[Any]) -> list[Any]:
    return [choice["delta"] for chunk in chunks for choice in chunk["choices"]]


def test_answer_is_a_completion_with_a_choice_and_usage(client: httpx.Client) -> None:
    answer = whole(client)
    assert answer["id"].startswith("chatcmpl-")
    assert (answer["object"], answer["model"]) == ("chat.completion", "talker")
    assert answer["choices"] == [
        {
            "index": 0,
            "message": {"role": "assistant", "content": "Hello, world."},
            "logprobs": None,
            "finish_reason": "stop",
        }
    ]
    usage = answer["usage"]
    assert usage["total_tokens"] == usage["prompt_tokens"] + usage["completion_tokens"]
    assert usage["prompt_tokens_details"]["cached_tokens"] <= usage["prompt_tokens"]


def test_response_has_the_requested_model_name(client: httpx.Client) -> None:
    assert whole(client, model="talker:latest")["model"] == "talker:latest"


def test_reasoning_tokens_are_counted(client: httpx.Client) -> None:
    usage = whole(client, model="thinker")["usage"]
    assert 2 <= usage["completion_tokens_details"]["reasoning_tokens"] < usage["completion_tokens"]


def test_a_budget_of_reasoning_holds_before_a_format_too(client: httpx.Client) -> None:
    form = {"type": "json_schema", "json_schema": {"name": "x", "schema": {"enum": ["yes"]}}}
    answer = whole(client, model="tryer", response_format=form, think_budget=1)
    message = answer["choices"][0]["message"]
    assert (message["content"], message["reasoning"]) == ('"yes"', "Hm")


def test_calls_have_ids_and_arguments_as_text_and_no_content(client: httpx.Client) -> None:
    [choice] = whole(client, **PAIR)["choices"]
    assert choice["finish_reason"] == "tool_calls"
    assert choice["message"]["content"] is None
    calls = choice["message"]["tool_calls"]
    assert [(call["index"], call["type"]) for call in calls] == [(0, "function"), (1, "function")]
    assert [call["function"]["name"] for call in calls] == ["add", "sub"]
    assert list(json.loads(calls[0]["function"]["arguments"]).items()) == [("b", 2), ("a", 1)]
    assert len({call["id"] for call in calls}) == 2
    assert all(call["id"].startswith("call_") for call in calls)


def test_stream_starts_with_the_role_and_ends_with_the_reason(client: httpx.Client) -> None:
    chunks = stream(client)
    assert {chunk["object"] for chunk in chunks} == {"chat.completion.chunk"}
    assert deltas(chunks)[0] == {"role": "assistant", "content": None}
    assert deltas(chunks)[-1] == {}
    reasons = [chunk["choices"][0]["finish_reason"] for chunk in chunks]
    assert reasons[-1] == "stop"
    assert set(reasons[:-1]) == {None}
    assert "".join((delta.get("content") or "") for delta in deltas(chunks)) == "Hello, world."


def test_a_stream_has_one_id_and_one_time(client: httpx.Client) -> None:
    chunks = stream(client, n=2)
    assert len({(chunk["id"], chunk["created"], chunk["model"]) for chunk in chunks}) == 1


def test_reasoning_and_content_are_never_in_the_same_chunk(client: httpx.Client) -> None:
    found = deltas(stream(client, model="thinker"))
    assert not [delta for delta in found if delta.get("content") and "reasoning" in delta]
    assert "".join(delta.get("reasoning", "") for delta in found) == "Let me see."
    assert "".join((delta.get("content") or "") for delta in found) == "It is four."


def test_a_streamed_call_is_its_name_first_and_then_its_arguments(client: httpx.Client) -> None:
    chunks = stream(client, **PAIR)
    assert chunks[-1]["choices"][0]["finish_reason"] == "tool_calls"
    pieces = [piece for delta in deltas(chunks) for piece in delta.get("tool_calls", ())]
    for index, name in enumerate(("add", "sub")):
        first, *more = [piece for piece in pieces if piece["index"] == index]
        assert (first["type"], first["function"]) == ("function", {"name": name, "arguments": ""})
        assert all(set(piece) == {"index", "function"} for piece in more)
        arguments = "".join(piece["function"]["arguments"] for piece in more)
        assert json.loads(arguments) == {"b": 2, "a": 1}


def test_requested_usage_is_a_last_chunk_without_choices(client: httpx.Client) -> None:
    *chunks, last = stream(client, n=2, stream_options={"include_usage": True})
    assert last["choices"] == []
    assert last["usage"]["completion_tokens"] == 2 * 5
    assert {json.dumps(chunk["usage"]) for chunk in chunks} == {"null"}
    for options in ({}, {"stream_options": {"include_usage": False}}, {"stream_options": None}):
        assert not [chunk for chunk in stream(client, **options) if "usage" in chunk]


def test_each_choice_is_complete_with_and_without_streaming(client: httpx.Client) -> None:
    answer = whole(client, n=3)
    assert [choice["index"] for choice in answer["choices"]] == [0, 1, 2]
    chunks = stream(client, n=3)
    for index in range(3):
        mine = [one for chunk in chunks for one in chunk["choices"] if one["index"] == index]
        assert mine[0]["delta"]["role"] == "assistant"
        assert mine[-1]["finish_reason"] == "stop"
        text = "".join((one["delta"].get("content") or "") for one in mine)
        assert text == answer["choices"][index]["message"]["content"] == "Hello, world."


def test_a_streams_log_probabilities_are_those_of_the_whole_answer(client: httpx.Client) -> None:
    for more in ({}, {"model": "thinker"}, CALLER):
        wanted = {**more, "logprobs": True, "top_logprobs": 2}
        answer = whole(client, **wanted)["choices"][0]["logprobs"]["content"]
        chunks = stream(client, **wanted)
        streamed = [
            score
            for chunk in chunks
            for score in (chunk["choices"][0].get("logprobs") or {"content": ()})["content"]
        ]
        assert streamed == answer
        for score in answer:
            assert set(score) == {"token", "logprob", "bytes", "top_logprobs"}
            assert bytes(score["bytes"]).decode() == score["token"]


def test_input_tokens_can_be_counted(client: httpx.Client) -> None:
    counted = client.post(f"{PATH}/input_tokens", json={"model": "talker", "messages": USER}).json()
    assert counted == {
        "object": "response.input_tokens",
        "input_tokens": whole(client)["usage"]["prompt_tokens"],
    }


@pytest.mark.parametrize(
    ("format", "text"),
    [
        ({"type": "regex", "regex": "[ab]{3}c"}, {"aaac", "bbbc"}),
        ({"type": "choices", "choices": ["yes", "no"]}, {"yes", "no"}),
        ({"type": "gbnf", "gbnf": 'root ::= "one" | "two"'}, {"one", "two"}),
        ({"type": "lark", "lark": 'start: "left" | "right"'}, {"left", "right"}),
        ({"type": "json_schema", "json_schema": {"schema": {"const": 5}}}, {"5"}),
    ],
    ids=lambda value: value["type"] if isinstance(value, dict) else "",
)
def test_an_answer_follows_a_grammar(
    client: httpx.Client, format: dict[str, Any], text: set[str]
) -> None:
    assert whole(client, response_format=format)["choices"][0]["message"]["content"] in text


NOTHING = {"type": "object", "properties": {}, "additionalProperties": False}
FIXED = [
    {"type": "function", "function": {"name": name, "parameters": NOTHING}}
    for name in ("add", "sub")
]
ONE = {"type": "function", "function": {"name": "sub"}}


@pytest.mark.parametrize(
    ("choice", "names"),
    [
        ("auto", ["add", "sub"]),
        (None, ["add", "sub"]),
        ("none", []),
        ("required", ["add"]),
        (ONE, ["sub"]),
        ({"type": "allowed_tools", "allowed_tools": {"mode": "required", "tools": [ONE]}}, ["sub"]),
    ],
    ids=["auto", "not given", "none", "required", "named", "allowed"],
)
def test_tool_choice_is_followed(
    client: httpx.Client, choice: str | dict[str, Any] | None, names: list[str]
) -> None:
    asked = {"model": "pair", "tools": FIXED, "reasoning_effort": "none", "max_tokens": 400}
    message = whole(client, **asked, tool_choice=choice)["choices"][0]["message"]
    assert [call["function"]["name"] for call in message.get("tool_calls", ())] == names


@pytest.mark.parametrize(
    ("more", "told"),
    [
        ({"response_format": {"type": "json_schema", "json_schema": {
            "schema": {"type": "thing"}}}}, "type"),
        ({"logit_bias": {"99999": 1}}, "99999"),
        ({"messages": [{"role": "user", "content": "long " * 300}]}, "is too long"),
    ],
)  # fmt: skip
def test_error_before_generation_has_its_status_in_a_stream_too(
    client: httpx.Client, more: dict[str, Any], told: str
) -> None:
    assert told in ask(client, 400, stream=True, **more).json()["error"]["message"]


def asked(site: Site, **more: Any) -> tuple[ChatPrompt, Any]:
    """Return the prompt and the options that a request comes to, over a model that repeats it."""
    body = {"model": "thinker", "messages": USER} | more
    [response] = site.call(("POST", PATH, {"json": body}))
    assert response.status_code == 200, response.text
    [(_, runner)] = site.start.runners
    prompt, options = runner.requests[-1]
    assert isinstance(prompt, ChatPrompt)
    return prompt, options


@pytest.mark.parametrize(
    ("more", "expected"),
    [
        ({}, {"temperature": 1.0, "top_p": 1.0}),
        ({"temperature": 0.5, "top_p": 0.25}, {"temperature": 0.5, "top_p": 0.25}),
        ({"max_tokens": 7}, {"max_tokens": 7}),
        ({"max_completion_tokens": 8, "max_tokens": 7}, {"max_tokens": 8}),
        ({"stop": "a"}, {"stop": ("a",)}),
        ({"stop": ["a", "b"]}, {"stop": ("a", "b")}),
        ({"seed": 5}, {"seed": 5}),
        ({"top_k": 3, "min_p": 0.1}, {"top_k": 3, "min_p": 0.1}),
        ({"options": {"top_k": 3, "typical_p": 0.5}}, {"top_k": 3, "typical_p": 0.5}),
        ({"options": {"top_k": 3}, "top_k": 4}, {"top_k": 4}),
        ({"options": {"think_budget": 5}}, {"think_budget": 5}),
        ({"top_n_sigma": 1, "xtc_threshold": 0.2}, {"top_n_sigma": 1.0, "xtc_threshold": 0.2}),
        ({"dry_multiplier": 0.8, "dry_sequence_breakers": ["a"]},
         {"dry_multiplier": 0.8, "dry_sequence_breakers": ("a",)}),
        ({"presence_penalty": 1, "frequency_penalty": 2},
         {"presence_penalty": 1.0, "frequency_penalty": 2.0}),
        ({"logit_bias": {"5": -100}}, {"logit_bias": {5: -100.0}}),
    ],
    ids=lambda value: json.dumps(value)[:60],
)  # fmt: skip
def test_an_option_means(site: Site, more: dict[str, Any], expected: Any) -> None:
    _, options = asked(site, **more)
    assert {name: getattr(options, name) for name in expected} == expected


@pytest.mark.parametrize(
    ("effort", "think"),
    [("none", False), ("minimal", "low"), ("low", "low"), ("medium", "medium"), ("high", "high"),
     ("xhigh", "max"), ("max", "max"), (None, None)],
)  # fmt: skip
def test_an_effort_means(site: Site, effort: str | None, think: bool | str | None) -> None:
    prompt, _ = asked(site, reasoning_effort=effort)
    assert prompt.think == think


def test_load_options_are_accepted(site: Site) -> None:
    asked(site, num_ctx=512, keep_alive="1h")
    [(_, runner)] = site.start.runners
    assert runner.options.context == 512


FUNCTION = {"name": "add", "arguments": '{"a": 1}'}
CALL = {"id": "c1", "type": "function", "function": FUNCTION}


@pytest.mark.parametrize(
    ("message", "expected"),
    [
        ({"role": "user", "content": [{"type": "text", "text": text} for text in "ab"]},
         {"role": "user", "content": "a\nb"}),
        ({"role": "developer", "content": "rules"}, {"role": "system", "content": "rules"}),
        ({"role": "assistant", "content": None, "tool_calls": [CALL]},
         {"role": "assistant", "content": "", "tool_calls": [
             CALL | {"function": FUNCTION | {"arguments": {"a": 1}}}]}),
        ({"role": "tool", "tool_call_id": "c1", "name": "add", "content": "5"},
         {"role": "tool", "content": "5", "name": "add", "tool_call_id": "c1"}),
        ({"role": "assistant", "content": "a", "reasoning": "b"},
         {"role": "assistant", "content": "a", "reasoning_content": "b"}),
        ({"role": "assistant", "content": "a", "reasoning_content": "b"},
         {"role": "assistant", "content": "a", "reasoning_content": "b"}),
        ({"role": "assistant", "content": [{"type": "refusal", "refusal": "no"}]},
         {"role": "assistant", "content": "no"}),
    ],
    ids=["parts of text", "developer", "calls without content", "result of a tool", "reasoning",
         "reasoning_content", "refusal"],
)  # fmt: skip
def test_a_message_reaches_the_template_as(
    site: Site, message: dict[str, Any], expected: dict[str, Any]
) -> None:
    prompt, _ = asked(site, messages=[message, *USER])
    assert prompt.messages[0] == expected


@pytest.mark.parametrize(
    ("part", "told"),
    [
        ({"type": "input_audio", "input_audio": {"data": "x", "format": "wav"}}, "base64"),
        ({"type": "file", "file": {"file_id": "x"}}, "file"),
        ({"type": "image_url", "image_url": {"url": "https://example.com/x.png"}}, "not fetched"),
        ({"type": "image_url", "image_url": {"url": "file:///etc/passwd"}}, "not fetched"),
        ({"type": "video_url", "video_url": {"url": "https://a.b/x.mp4"}}, "not fetched"),
        ({"type": "video_url", "video_url": {"url": "data:video/mp4;base64,h!"}}, "base64"),
        ({"type": "video_url", "video_url": {"url": "data:video/mp4;base64,"}}, "video is empty"),
        ({"type": "video_url"}, "video_url needs video_url with a url"),
        ({"text": "x"}, "no type"),
    ],
    ids=[
        *("audio", "file", "address", "path", "address of a video", "not base64", "no video"),
        *("no video_url", "no type"),
    ],
)
def test_a_part_that_cannot_be_read_is_refused(
    client: httpx.Client, part: dict[str, Any], told: str
) -> None:
    error = ask(client, 400, messages=[{"role": "user", "content": [part]}]).json()["error"]
    assert told in error["message"]
    assert "messages[0].content[0]" in error["message"]
