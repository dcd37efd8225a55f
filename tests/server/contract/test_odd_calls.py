"""Calls in a conversation are what a model wrote: malformed ones too are passed on."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

import pytest

from tests.server.conftest import Site

USER = {"role": "user", "content": "hi"}
MALFORMED = [
    '{"value": ', "not json", "[1,2]", '"x"', '{"a": 1}}', '{"a": 1}{"b": 2}', "{'a': 1}", "NaN",
    '{"p": "a long story', '{"a": "\\ud83d"}',
]  # fmt: skip
READ: list[tuple[Any, Any]] = [
    *((text, text) for text in MALFORMED),
    ('{"a": 1}', {"a": 1}), ({"a": 1}, {"a": 1}), ("", {}), ({}, {}), (None, {}),
    ('{"code": "x\ny"}', {"code": "x\ny"}), ('{"id": 12345678901234567890}',
                                            {"id": 12345678901234567890}),
]  # fmt: skip


def call(arguments: object) -> dict[str, Any]:
    return {"id": "c", "type": "function", "function": {"name": "f", "arguments": arguments}}


def shown(site: Site) -> Any:
    """Return the arguments that the template gets."""
    prompt, _ = site.start.runners[-1][1].requests[-1]
    [arguments] = [
        each["function"]["arguments"]
        for message in prompt.messages
        for each in message.get("tool_calls", ())
    ]
    return arguments


@pytest.mark.parametrize(("arguments", "expected"), READ)
def test_the_template_gets_arguments_as_an_object_or_as_they_were_written(
    site: Site, arguments: Any, expected: Any
) -> None:
    said = {"role": "assistant", "content": None, "tool_calls": [call(arguments)]}
    result = {"role": "tool", "tool_call_id": "c", "content": "bad"}
    chat = {"model": "m", "messages": [USER, said, result]}
    row = ("POST", "/v1/chat/completions", {"json": chat})
    [answer] = site.call(row)
    assert answer.status_code == 200, answer.text
    assert shown(site) == expected


@pytest.mark.parametrize("arguments", [*MALFORMED, {"a": 1}])
async def test_items_of_responses_and_of_conversations_are_passed_on(
    site: Site, arguments: Any
) -> None:
    item = {"type": "function_call", "call_id": "c", "name": "f", "arguments": arguments,
            "status": "incomplete"}  # fmt: skip
    result = {"type": "function_call_output", "call_id": "c", "output": "bad"}

    async with site.started() as client:
        given = [{"role": "user", "content": "hi"}, item, result]
        body = {"model": "m", "input": given}
        first = await client.post("/v1/responses", json=body)
        assert first.status_code == 200, first.text
        assert shown(site) == arguments
        more = {"model": "m", "input": "go on", "previous_response_id": first.json()["id"]}
        assert (await client.post("/v1/responses", json=more)).status_code == 200
        assert shown(site) == arguments
        made = await client.post("/v1/conversations", json={"items": given})
        assert made.status_code == 200, made.text
        last = {"model": "m", "input": "go on", "conversation": made.json()["id"]}
        assert (await client.post("/v1/responses", json=last)).status_code == 200
        assert shown(site) == arguments


def test_a_call_that_was_broken_in_an_answer_may_be_sent_back(
    post: Callable[..., Any], site: Site
) -> None:
    broken = 'so <tool_call>{"name": "f", "arguments": {"a": 1,}}</tool_call>'
    tools = [{"type": "function", "function": {"name": "f"}}]
    body: dict[str, Any] = {"model": "m", "tools": tools, "stream": True}
    asked = {"role": "user", "content": broken}
    lines = post("/v1/chat/completions", messages=[asked], **body).text.splitlines()
    chunks = [json.loads(line[6:]) for line in lines if line.startswith("data: {")]
    pieces = [c for chunk in chunks for c in chunk["choices"][0]["delta"].get("tool_calls", ())]
    text = "".join(piece["function"].get("arguments", "") for piece in pieces)
    assert text == '{"a": 1,}'
    said = {"role": "assistant", "content": "so", "tool_calls": [call(text)]}
    more = [asked, said, {"role": "tool", "tool_call_id": "c", "content": "?"}, USER]
    assert post("/v1/chat/completions", model="m", messages=more).status_code == 200
    assert shown(site) == text
