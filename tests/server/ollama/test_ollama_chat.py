"""`POST /api/chat`: messages in, messages and tool calls out."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any

import pytest
from support.fake_runner import lines_of

from tests.server.conftest import Site

TOOL = {"type": "function", "function": {"name": "f", "parameters": {"type": "object"}}}


def user(text: str) -> list[Any]:
    return [{"role": "user", "content": text}]


def test_the_answer_streams_as_messages(post: Callable[..., Any]) -> None:
    *pieces, last = lines_of(post("/api/chat", model="m", messages=user("hello world")))
    assert [piece["message"] for piece in pieces] == [
        {"role": "assistant", "content": "hello"},
        {"role": "assistant", "content": " world"},
    ]
    assert last["message"] == {"role": "assistant", "content": ""}
    assert (last["done"], last["done_reason"], last["eval_count"]) == (True, "stop", 2)
    assert "context" not in last


def test_without_streaming_the_answer_is_one_message(post: Callable[..., Any]) -> None:
    answer = post("/api/chat", model="m", messages=user("hello world"), stream=False).json()
    assert answer["message"] == {"role": "assistant", "content": "hello world"}
    assert answer["done"] is True


def test_the_conversation_reaches_the_template_in_its_form(
    site: Site, post: Callable[..., Any]
) -> None:
    messages = [
        {"role": "System", "content": "s"},
        {"role": "user", "content": None},
        {
            "role": "assistant",
            "thinking": "hm",
            "tool_calls": [{"id": "c1", "function": {"name": "f", "arguments": {"b": 1, "a": 2}}}],
        },
        {"role": "tool", "content": "42", "tool_name": "f", "tool_call_id": "c1"},
    ]
    post("/api/chat", model="m", messages=messages, tools=[TOOL], think=False)
    prompt, _ = site.start.runners[0][1].requests[0]
    call = {"name": "f", "arguments": {"b": 1, "a": 2}}
    assert prompt.messages == (
        {"role": "system", "content": "s"},
        {"role": "user", "content": ""},
        {
            "role": "assistant",
            "content": "",
            "reasoning_content": "hm",
            "tool_calls": [{"type": "function", "id": "c1", "function": call}],
        },
        {"role": "tool", "content": "42", "name": "f", "tool_call_id": "c1"},
    )
    assert prompt.tools == (TOOL,)
    assert prompt.think is False


def test_tool_call_is_whole_and_separate_from_the_text(post: Callable[..., Any]) -> None:
    said = (
        'I look. <tool_call>{"name": "f", "arguments": {"b": 1, "a": "x y"}}</tool_call> '
        '<tool_call>{"name": "g"}</tool_call>'
    )
    answer = post("/api/chat", model="m", messages=user(said), tools=[TOOL])
    messages = [line["message"] for line in lines_of(answer)]
    assert "".join(message["content"] for message in messages) == "I look."
    calls = [call for message in messages for call in message.get("tool_calls", [])]
    assert [call["function"] for call in calls] == [
        {"name": "f", "arguments": {"b": 1, "a": "x y"}, "index": 0},
        {"name": "g", "arguments": {}, "index": 1},
    ]
    assert list(calls[0]["function"]["arguments"]) == ["b", "a"]
    assert all(re.fullmatch(r"call_[0-9a-f]{8}", call["id"]) for call in calls)
    joined = post("/api/chat", model="m", messages=user(said), tools=[TOOL], stream=False).json()
    assert joined["message"]["content"] == "I look."
    assert len(joined["message"]["tool_calls"]) == 2


def test_without_tools_what_looks_like_a_call_is_text(post: Callable[..., Any]) -> None:
    said = '<tool_call>{"name":"f"}</tool_call>'
    answer = post("/api/chat", model="m", messages=user(said), stream=False).json()
    assert answer["message"] == {"role": "assistant", "content": said}


def test_logprobs_are_kept_when_text_is_held_back(post: Callable[..., Any]) -> None:
    answer = post("/api/chat", model="m", messages=user("a <tool b"), tools=[TOOL], logprobs=True)
    scores = [score["token"] for line in lines_of(answer) for score in line.get("logprobs", [])]
    assert scores == ["a", " <tool", " b"]


@pytest.mark.parametrize(
    ("body", "told"),
    [
        ({}, "model is required"),
        ({"model": "base", "messages": [], "tools": [TOOL]}, "does not support tools"),
        ({"model": "m", "messages": [{"content": "x"}]}, "role"),
        ({"model": "m", "messages": [{"role": "user", "content": 5}]}, "content"),
        ({"model": "m", "messages": "x"}, "messages"),
        ({"model": "m", "messages": user("x") * 10_001}, "at most 10000 messages"),
        ({"model": "m", "messages": user("x"), "tools": [TOOL] * 129}, "128 tools"),
        ({"model": "m", "messages": user("x"), "format": "xml"}, "format must be"),
        ({"model": "m", "messages": user("x"), "think": True}, "does not support thinking"),
        (
            {"model": "m", "messages": [{"role": "user", "content": "x", "images": ["aGk="]}]},
            "does not support images",
        ),
        (
            {"model": "m", "messages": [*user("x"), {"role": "user", "images": ["aGk=", "h!"]}]},
            "invalid base64 in messages[1].images[1]",
        ),
        ({"model": "m", "messages": [{"role": "user", "images": [""]}]}, "the image is empty"),
        (
            {"model": "m", "messages": [{"role": "user", "images": ["aGk="] * 17}]},
            "at most 16 images can be given, not 17",
        ),
        (
            {
                "model": "m",
                "messages": [
                    {
                        "role": "assistant",
                        "tool_calls": [{"function": {"name": "f", "arguments": "{}"}}],
                    }
                ],
            },
            "arguments",
        ),
    ],
)
def test_a_conversation_that_cannot_be_answered_is_refused(
    post: Callable[..., Any],
    body: dict[str, Any],
    told: str,
) -> None:
    response = post("/api/chat", **body)
    assert response.status_code == 400
    assert told in response.json()["error"]


@pytest.mark.parametrize(
    ("keep_alive", "reason"), [(None, "load"), (0, "unload"), ("0s", "unload")]
)
def test_no_messages_load_or_unload_the_model(
    post: Callable[..., Any], keep_alive: int | str | None, reason: str
) -> None:
    answer = post("/api/chat", model="m", messages=[], keep_alive=keep_alive).json()
    assert answer["done_reason"] == reason
    assert answer["message"] == {"role": "assistant", "content": ""}
