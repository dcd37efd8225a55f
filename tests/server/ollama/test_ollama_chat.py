"""`POST /api/chat`: messages in, messages and tool calls out."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from support.fake_runner import lines_of

from tests.server.conftest import Site

TOOL = {"type": "function", "function": {"name": "f", "parameters": {"type": "object"}}}


def user(text: str) -> list[Any]:
    return [{"role": "user", "content": text}]


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


def test_logprobs_are_kept_when_text_is_held_back(post: Callable[..., Any]) -> None:
    answer = post("/api/chat", model="m", messages=user("a <tool b"), tools=[TOOL], logprobs=True)
    scores = [score["token"] for line in lines_of(answer) for score in line.get("logprobs", [])]
    assert scores == ["a", " <tool", " b"]


def seen(*images: str) -> dict[str, Any]:
    return {"role": "user", "images": images}


@pytest.mark.parametrize(
    ("messages", "more", "told"),
    [
        ("x", {}, "messages"), (user("x") * 10_001, {}, "at most 10000 messages"),
        ([{"role": "user", "content": 5}], {}, "content"),
        (user("x"), {"tools": [TOOL] * 129}, "128 tools"),
        (user("x"), {"format": "xml"}, "format must be"),
        ([*user("x"), seen("aGk=", "h!")], {}, "invalid base64 in messages[1].images[1]"),
        ([seen("")], {}, "the image is empty"),
        ([seen(*["aGk="] * 17)], {}, "at most 16 images and sounds can be given, not 17"),
    ],
)  # fmt: skip
def test_a_conversation_that_cannot_be_answered_is_refused(
    post: Callable[..., Any], messages: Any, more: dict[str, Any], told: str
) -> None:
    response = post("/api/chat", model="m", messages=messages, **more)
    assert response.status_code == 400
    assert told in response.json()["error"]
