"""Calls stream in each API as their model writes them, word by word."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

import pytest
from support.sse import data_of, named_of

ARGUMENTS = '{"city": "Zürich HB", "days": [1, 2.50], "o": {"k": null}}'
SAID = f'Ok <tool_call>{{"name": "f", "arguments": {ARGUMENTS}}}</tool_call>'
BROKEN = '<tool_call>{"name": "f", "arguments": {"a": 1, "b": oops}}</tool_call>'
FUNCTION = {"name": "f", "parameters": {"type": "object"}}
TOOL = {"type": "function", "function": FUNCTION}
CHAT = "/v1/chat/completions"


def user(text: str) -> list[Any]:
    return [{"role": "user", "content": text}]


def pieces_of_chat(post: Callable[..., Any], said: str) -> tuple[list[Any], str]:
    """Return the pieces of calls in a stream of OpenAI's chats, and its finish_reason."""
    chunks = data_of(post(CHAT, model="m", messages=user(said), tools=[TOOL], stream=True))
    choices = [chunk["choices"][0] for chunk in chunks]
    pieces = [piece for one in choices for piece in one["delta"].get("tool_calls", ())]
    return pieces, choices[-1]["finish_reason"]


def test_a_chat_streams_a_call_as_its_name_and_its_arguments_word_by_word(
    post: Callable[..., Any],
) -> None:
    [first, *more], reason = pieces_of_chat(post, SAID)
    assert first["function"] == {"name": "f", "arguments": ""}
    assert first["id"].startswith("call_")
    assert {(*piece, *piece["function"]) for piece in more} == {("index", "function", "arguments")}
    fragments = [piece["function"]["arguments"] for piece in more]
    assert "".join(fragments) == ARGUMENTS
    assert len(fragments) == len(ARGUMENTS.split(" "))
    assert reason == "tool_calls"


def test_a_response_streams_a_call_word_by_word(post: Callable[..., Any]) -> None:
    body = {"model": "m", "input": SAID, "tools": [{"type": "function", **FUNCTION}]}
    events = named_of(post("/v1/responses", **body, stream=True))
    kind = "response.function_call_arguments"
    fragments = [event["delta"] for event in events if event["type"] == f"{kind}.delta"]
    assert "".join(fragments) == ARGUMENTS
    assert len(fragments) == len(ARGUMENTS.split(" "))
    [done] = [event for event in events if event["type"] == f"{kind}.done"]
    assert (done["name"], done["arguments"]) == ("f", ARGUMENTS)
    item = events[-1]["response"]["output"][-1]
    assert (item["arguments"], item["status"]) == (ARGUMENTS, "completed")
    whole = post("/v1/responses", **body).json()["output"][-1]
    assert (whole["name"], whole["arguments"]) == ("f", ARGUMENTS)


def test_a_message_of_anthropics_streams_a_call_word_by_word(post: Callable[..., Any]) -> None:
    body = {"model": "m", "max_tokens": 99, "messages": user(SAID),
            "tools": [{"name": "f", "input_schema": {"type": "object"}}]}  # fmt: skip
    events = named_of(post("/v1/messages", **body, stream=True))
    deltas = [event["delta"] for event in events if event["type"] == "content_block_delta"]
    fragments = [delta["partial_json"] for delta in deltas if "partial_json" in delta]
    assert "".join(fragments) == ARGUMENTS
    assert len(fragments) == len(ARGUMENTS.split(" "))
    starts = [event["content_block"] for event in events if event["type"] == "content_block_start"]
    assert (starts[-1]["type"], starts[-1]["name"], starts[-1]["input"]) == ("tool_use", "f", {})
    whole = post("/v1/messages", **body).json()["content"][-1]
    assert (whole["name"], whole["input"]) == ("f", json.loads(ARGUMENTS))


def test_without_parallel_calls_nothing_of_a_second_call_is_sent(post: Callable[..., Any]) -> None:
    body = {"model": "m", "messages": user(SAID + SAID), "tools": [TOOL], "stream": True}
    chunks = data_of(post(CHAT, **body, parallel_tool_calls=False))
    pieces = [
        piece for chunk in chunks for piece in chunk["choices"][0]["delta"].get("tool_calls", ())
    ]
    assert {piece["index"] for piece in pieces} == {0}
    assert "".join(piece["function"]["arguments"] for piece in pieces) == ARGUMENTS


def test_arguments_that_are_not_json_are_text_and_in_a_stream_as_they_were_written(
    post: Callable[..., Any],
) -> None:
    pieces, reason = pieces_of_chat(post, BROKEN)
    arguments = "".join(piece["function"]["arguments"] for piece in pieces)
    assert (arguments, reason) == ('{"a": 1, "b": oops}', "stop")
    body = {"model": "m", "messages": user(BROKEN), "tools": [TOOL], "stream": False}
    [choice] = post(CHAT, **body).json()["choices"]
    assert "tool_calls" not in choice["message"]
    assert BROKEN.startswith(choice["message"]["content"])
    assert arguments in choice["message"]["content"]
    assert post("/api/chat", **body).json()["message"]["content"] == choice["message"]["content"]


@pytest.mark.parametrize("path", ["/v1/responses", "/v1/messages"])
def test_broken_arguments_are_text_in_every_answer_that_is_not_streamed(
    post: Callable[..., Any], path: str
) -> None:
    tools: list[Any] = [{"type": "function", **FUNCTION}]
    body: dict[str, Any] = {"input": BROKEN}
    if path == "/v1/messages":
        tools = [{"name": "f", "input_schema": {"type": "object"}}]
        body = {"messages": user(BROKEN), "max_tokens": 99}
    answer = post(path, model="m", tools=tools, **body).json()
    assert "oops" in json.dumps(answer)
    assert "function_call" not in json.dumps(answer.get("output"))
    assert "tool_use" not in json.dumps(answer.get("content"))
