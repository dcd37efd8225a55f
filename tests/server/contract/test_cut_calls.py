"""A call that `max_tokens` cuts off is said to be cut, in every API, and is never text."""

from __future__ import annotations

import json
import re
from typing import Any

import httpx
import pytest
from support.sse import data_of, named_of

pytestmark = [pytest.mark.client, pytest.mark.server, pytest.mark.slow]

# The tokens of the model `writer`; the call's tag is the second.
ARGUMENTS = '{"b": 2, "a": [1, 3]}'
USER = [{"role": "user", "content": "x"}]
FUNCTION = {"name": "add", "parameters": {"type": "object"}}
TOOLS = [{"type": "function", "function": FUNCTION}]
LIMITS = range(2, 13)


def _chat(client: httpx.Client, limit: int, *, stream: bool) -> httpx.Response:
    return _post(client, "/v1/chat/completions", max_completion_tokens=limit, messages=USER,
                 tools=TOOLS, stream=stream)  # fmt: skip


def _post(client: httpx.Client, path: str, **fields: Any) -> httpx.Response:
    body = {"model": "writer", "temperature": 0, **fields}
    response = client.post(path, json=body)
    assert response.status_code == 200, response.text
    return response


@pytest.mark.parametrize("limit", LIMITS)
def test_in_a_chat(client: httpx.Client, limit: int) -> None:
    [choice] = _chat(client, limit, stream=False).json()["choices"]
    message = choice["message"]
    assert message["content"] in ("Ok.", None)
    calls = message.get("tool_calls") or []
    texts = [call["function"]["arguments"] for call in calls]
    assert all(ARGUMENTS.startswith(text) for text in texts)
    assert choice["finish_reason"] == "length"
    chunks = data_of(_chat(client, limit, stream=True))
    deltas = [chunk["choices"][0]["delta"] for chunk in chunks]
    assert "".join(delta.get("content") or "" for delta in deltas) == "Ok."
    pieces = [piece for delta in deltas for piece in delta.get("tool_calls", ())]
    assert "".join(piece["function"]["arguments"] for piece in pieces) == "".join(texts)
    assert chunks[-1]["choices"][0]["finish_reason"] == "length"


def test_a_limit_after_the_call_cuts_nothing(client: httpx.Client) -> None:
    [choice] = _chat(client, 30, stream=False).json()["choices"]
    [call] = choice["message"]["tool_calls"]
    assert (call["function"]["arguments"], choice["finish_reason"]) == (ARGUMENTS, "tool_calls")


@pytest.mark.parametrize("limit", LIMITS)
def test_in_a_response(client: httpx.Client, limit: int) -> None:
    fields = {"input": "x", "max_output_tokens": limit,
              "tools": [{"type": "function", **FUNCTION}]}  # fmt: skip
    answer = _post(client, "/v1/responses", **fields).json()
    last = named_of(_post(client, "/v1/responses", **fields, stream=True))[-1]
    for response in (answer, last["response"]):
        assert response["status"] == "incomplete"
        assert response["incomplete_details"] == {"reason": "max_output_tokens"}
        message, *calls = response["output"]
        assert message["content"][0]["text"] == "Ok."
        for call in calls:
            is_whole = call["arguments"] == ARGUMENTS
            assert call["status"] == ("completed" if is_whole else "incomplete")
            assert ARGUMENTS.startswith(call["arguments"])


@pytest.mark.parametrize("limit", LIMITS)
def test_in_a_message_of_anthropics(client: httpx.Client, limit: int) -> None:
    fields = {"messages": USER, "max_tokens": limit,
              "tools": [{"name": "add", "input_schema": {"type": "object"}}]}  # fmt: skip
    answer = _post(client, "/v1/messages", **fields).json()
    assert answer["stop_reason"] == "max_tokens"
    text, *calls = answer["content"]
    assert text["text"] == "Ok."
    assert [call["input"] for call in calls] in ([], [{}], [json.loads(ARGUMENTS)])
    events = named_of(_post(client, "/v1/messages", **fields, stream=True))
    deltas = [event["delta"] for event in events if event["type"] == "content_block_delta"]
    assert "".join(delta.get("text", "") for delta in deltas) == "Ok."
    assert ARGUMENTS.startswith("".join(delta.get("partial_json", "") for delta in deltas))


@pytest.mark.parametrize("limit", LIMITS)
def test_in_ollamas_api_it_is_left_out(client: httpx.Client, limit: int) -> None:
    answer = _post(client, "/api/chat", messages=USER, tools=TOOLS, stream=False,
                   options={"num_predict": limit, "temperature": 0}).json()  # fmt: skip
    assert (answer["done_reason"], answer["message"]["content"]) == ("length", "Ok.")
    assert answer["limit"] == "tokens"
    calls = answer["message"].get("tool_calls", [])
    assert [call["function"]["arguments"] for call in calls] in ([], [json.loads(ARGUMENTS)])


@pytest.mark.parametrize(
    "form", [None, {"regex": "Well!( la)*"}, {"gbnf": 'root ::= "Well!" " la"*'}]
)
def test_an_answer_with_a_form_ends_too_when_it_repeats_one_token(
    client: httpx.Client, form: Any
) -> None:
    body = {"model": "looper", "prompt": "x", "stream": False, "format": form}
    answer = client.post("/api/generate", json=body | {"options": {"temperature": 0}}).json()
    assert (answer["response"], answer["done_reason"]) == ("Well!" + " la" * 31, "length")
    assert answer["limit"] == "repetition"


@pytest.mark.parametrize("limit", [1, 2, 3, 5])
@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize("path", ["/v1/chat/completions", "/v1/responses", "/v1/messages",
                                  "/api/chat"])  # fmt: skip
def test_a_forced_call_is_no_text_even_if_it_is_cut_in_its_first_tokens(
    client: httpx.Client, path: str, limit: int, stream: bool
) -> None:
    fields: dict[str, Any] = {"messages": USER, "tools": TOOLS, "tool_choice": "required",
                              "max_tokens": limit}  # fmt: skip
    if path == "/v1/responses":
        fields |= {"input": "x", "tools": [{"type": "function", **FUNCTION}]}
    elif path == "/v1/messages":
        tools = [{"name": "add", "input_schema": {"type": "object"}}]
        fields |= {"tools": tools, "tool_choice": {"type": "any"}}
    elif path == "/api/chat":
        fields |= {"options": {"num_predict": limit}}
    # The model would call another tool, so it writes the characters one by one.
    response = _post(client, path, **fields, model="namespaced", stream=stream)
    texts = re.findall(r'"(?:content|text|output_text|delta)":"([^"]*)"', response.text)
    assert [text for text in texts if text] == []
    assert any(word in response.text for word in ("length", "incomplete", "max_tokens"))
