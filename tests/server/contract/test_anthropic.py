"""`POST /v1/messages` and its count of tokens, statement by statement.

What all families share: test_families.py. Each field, block and tool alone:
test_fields_of_anthropic.py.
"""

from __future__ import annotations

import json
import re
from itertools import groupby
from typing import Any

import httpx
import pytest
from anthropic.types import Message, RawMessageStreamEvent
from pydantic import TypeAdapter
from support.sse import named_of

from tampu.engine.prompts import ChatPrompt
from tests.server.conftest import Site

pytestmark = pytest.mark.server

PATH = "/v1/messages"
USER = [{"role": "user", "content": "x"}]
NUMBERS = {"type": "object", "properties": {"a": {"type": "integer"}, "b": {"type": "integer"}}}
TOOLS = [{"name": name, "input_schema": NUMBERS} for name in ("add", "sub")]
THINKING = {"type": "enabled", "budget_tokens": 1024}
EVENT = TypeAdapter(RawMessageStreamEvent)
BLOCK = ["content_block_start", "content_block_delta", "content_block_stop"]


def ask(client: httpx.Client, status: int = 200, path: str = PATH, **more: bool) -> httpx.Response:
    body = {"model": "talker", "messages": USER, "max_tokens": 60, "temperature": 0} | more
    response = client.post(path, json=body)
    assert response.status_code == status, response.text
    return response


def whole(client: httpx.Client, **more: Any) -> Any:
    """Return the message; the package's own model finds nothing wrong with it."""
    answer = ask(client, **more).json()
    Message.model_validate(answer, strict=True)
    return answer


def stream(client: httpx.Client, **more: Any) -> list[Any]:
    """Return the events; the package's own models find nothing wrong with them."""
    events = named_of(ask(client, stream=True, **more))
    for event in events:
        EVENT.validate_python(event, strict=True)
    return events


def blocks_of(events: list[Any]) -> list[Any]:
    """Return each block of a stream: how it begins, what is added, and its index."""
    found: list[Any] = []
    for event in events:
        match event["type"]:
            case "content_block_start":
                found.append((event["index"], event["content_block"], []))
            case "content_block_delta":
                assert event["index"] == found[-1][0]
                found[-1][2].append(event["delta"])
            case "content_block_stop":
                assert event["index"] == found[-1][0]
    return found


def test_an_answer_is_a_message_of_blocks(client: httpx.Client) -> None:
    answer = whole(client)
    assert re.fullmatch("msg_[0-9a-f]{24}", answer["id"])
    assert (answer["type"], answer["role"], answer["model"]) == ("message", "assistant", "talker")
    assert answer["content"] == [{"type": "text", "text": "Hello, world."}]
    assert (answer["stop_reason"], answer["stop_sequence"]) == ("end_turn", None)
    usage = answer["usage"]
    assert usage["output_tokens"] == 5
    counted = ask(client, path=f"{PATH}/count_tokens").json()
    read = usage["input_tokens"] + usage["cache_read_input_tokens"]
    assert counted == {"input_tokens": read}


def test_blocks_are_reasoning_then_text_then_calls(client: httpx.Client) -> None:
    answer = whole(client, model="caller", tools=TOOLS, thinking=THINKING)
    thought, text, call = answer["content"]
    assert (thought["type"], thought["thinking"]) == ("thinking", "Let me see.")
    assert thought["signature"]
    assert text == {"type": "text", "text": "It is four."}
    assert (call["type"], call["name"], call["input"]) == ("tool_use", "add", {"b": 2, "a": 1})
    assert call["id"].startswith("toolu_")
    assert answer["stop_reason"] == "tool_use"
    assert answer["usage"]["output_tokens_details"]["thinking_tokens"] >= 2


@pytest.mark.parametrize(
    ("more", "reason", "sequence"),
    [
        ({}, "end_turn", None),
        ({"max_tokens": 2}, "max_tokens", None),
        ({"stop_sequences": ["x", " world"]}, "stop_sequence", " world"),
        ({"model": "pair", "tools": TOOLS}, "tool_use", None),
    ],
    ids=["its end", "its length", "a stop sequence", "a call"],
)
def test_a_message_stops_for(
    client: httpx.Client, more: dict[str, Any], reason: str, sequence: str | None
) -> None:
    answer = whole(client, **more)
    assert (answer["stop_reason"], answer["stop_sequence"]) == (reason, sequence)
    [delta] = [one for one in stream(client, **more) if one["type"] == "message_delta"]
    assert delta["delta"] == {"stop_reason": reason, "stop_sequence": sequence}


def test_empty_answer_is_an_empty_text_block(client: httpx.Client) -> None:
    answer = whole(client, stop_sequences=["Hello"])
    assert answer["content"] == [{"type": "text", "text": ""}]
    [(index, begun, deltas)] = blocks_of(stream(client, stop_sequences=["Hello"]))
    assert (index, begun, deltas) == (0, {"type": "text", "text": ""}, [])


@pytest.mark.parametrize(
    ("more", "count"),
    [
        ({}, 1),
        ({"model": "thinker", "thinking": THINKING}, 2),
        ({"model": "caller", "tools": TOOLS, "thinking": THINKING}, 3),
        ({"model": "pair", "tools": TOOLS}, 2),
    ],
    ids=["text", "a thought and text", "a thought, text and a call", "two calls"],
)
def test_the_events_of_a_message_come_in_this_order(
    client: httpx.Client, more: dict[str, Any], count: int
) -> None:
    events = stream(client, **more)
    kinds = [kind for kind, _ in groupby(event["type"] for event in events)]
    assert kinds == ["message_start", *BLOCK * count, "message_delta", "message_stop"]
    assert [index for index, _, _ in blocks_of(events)] == [*range(count)]


def test_stream_starts_with_an_empty_message_and_the_exact_input_count(
    client: httpx.Client,
) -> None:
    first, *_, delta, _ = stream(client)
    message = first["message"]
    assert (message["content"], message["stop_reason"], message["stop_sequence"]) == (
        [],
        None,
        None,
    )
    assert message["usage"]["output_tokens"] == 0
    read = delta["usage"]["input_tokens"] + delta["usage"]["cache_read_input_tokens"]
    assert message["usage"]["input_tokens"] == read
    assert delta["usage"]["output_tokens"] == 5


def test_the_deltas_of_a_stream_make_the_blocks_of_the_whole_message(client: httpx.Client) -> None:
    more: dict[str, Any] = {"model": "caller", "tools": TOOLS, "thinking": THINKING}
    thought, text, call = (block for _, block, _ in blocks_of(stream(client, **more)))
    assert thought == {"type": "thinking", "thinking": "", "signature": ""}
    assert text == {"type": "text", "text": ""}
    assert (call["type"], call["name"], call["input"]) == ("tool_use", "add", {})
    wanted = whole(client, **more)["content"]
    (_, _, thoughts), (_, _, texts), (_, _, calls) = blocks_of(stream(client, **more))
    *told, signed = thoughts
    assert "".join(one["thinking"] for one in told) == wanted[0]["thinking"]
    assert signed == {"type": "signature_delta", "signature": wanted[0]["signature"]}
    assert "".join(one["text"] for one in texts) == wanted[1]["text"]
    assert json.loads("".join(one["partial_json"] for one in calls)) == wanted[2]["input"]


def test_omitted_reasoning_is_empty_blocks(client: httpx.Client) -> None:
    more: dict[str, Any] = {
        "model": "thinker",
        "thinking": {"type": "adaptive", "display": "omitted"},
    }
    first, second = whole(client, **more)["content"]
    assert (first["type"], first["thinking"]) == ("thinking", "")
    assert second["text"] == "It is four."
    (_, _, deltas), _ = blocks_of(stream(client, **more))
    assert [delta["type"] for delta in deltas] == ["signature_delta"]


def test_thinking_is_ignored_for_models_without_it(client: httpx.Client) -> None:
    for thinking in (THINKING, {"type": "adaptive"}, {"type": "disabled"}):
        assert whole(client, thinking=thinking)["content"][0]["type"] == "text"
    more = {"thinking": {"type": "adaptive"}, "output_config": {"effort": "max"}}
    assert whole(client, **more)["content"][0]["type"] == "text"


@pytest.mark.parametrize(
    "headers",
    [{"anthropic-version": "2023-06-01"}, {"anthropic-beta": "x-2024-01-01"}, {"x-api-key": "any"}],
    ids=["version", "beta", "key"],
)
def test_headers_of_its_clients_are_accepted(client: httpx.Client, headers: dict[str, str]) -> None:
    body = {"model": "talker", "messages": USER, "max_tokens": 3}
    assert client.post(PATH, json=body, headers=headers).status_code == 200


def asked(site: Site, **more: Any) -> tuple[ChatPrompt, Any]:
    """Return the messages that reach the template."""
    body = {"model": "thinker", "messages": USER, "max_tokens": 5} | more
    [response] = site.call(("POST", PATH, {"json": body}))
    assert response.status_code == 200, response.text
    prompt, options = site.start.runners[0][1].requests[-1]
    assert isinstance(prompt, ChatPrompt)
    return prompt, options


X = {"role": "user", "content": "x"}
ADD = {"type": "tool_use", "id": "t1", "name": "add", "input": {"a": 1}}
CALLED = {"type": "function", "id": "t1", "function": {"name": "add", "arguments": {"a": 1}}}


def result(id: str, content: str | list[Any], **more: bool) -> dict[Any, Any]:
    return {"type": "tool_result", "tool_use_id": id, "content": content, **more}


@pytest.mark.parametrize(
    ("messages", "expected"),
    [
        ([X], [X]),
        ([{"role": "user", "content": [{"type": "text", "text": "a"},
                                       {"type": "text", "text": "b"}]}],
         [{"role": "user", "content": "a\nb"}]),
        ([{"role": "assistant", "content": [{"type": "thinking", "thinking": "hm",
                                             "signature": "s"},
                                            {"type": "text", "text": "so"}, ADD]}, X],
         [{"role": "assistant", "content": "so", "reasoning_content": "hm",
           "tool_calls": [CALLED]}, X]),
        ([{"role": "assistant", "content": [ADD, ADD | {"id": "t2"}]}, X],
         [{"role": "assistant", "content": "", "tool_calls": [CALLED, CALLED | {"id": "t2"}]}, X]),
        ([{"role": "user", "content": [result("t1", "5"), result("t2", "6")]}, X],
         [{"role": "tool", "tool_call_id": "t1", "content": "5"},
          {"role": "tool", "tool_call_id": "t2", "content": "6"}, X]),
        ([{"role": "user", "content": [result("t1", [{"type": "text", "text": "5"}]),
                                       {"type": "text", "text": "go on"}]}, X],
         [{"role": "tool", "tool_call_id": "t1", "content": "5"},
          {"role": "user", "content": "go on"}, X]),
        ([{"role": "user", "content": [result("t1", "no", is_error=True)]}, X],
         [{"role": "tool", "tool_call_id": "t1", "content": "Error: no"}, X]),
    ],
    ids=["a text", "blocks of text", "a thought, text and a call", "two calls",
         "several results are several messages", "a result and text", "a result that is an error"],
)  # fmt: skip
def test_a_conversation_reaches_the_template_as(
    site: Site, messages: list[Any], expected: list[Any]
) -> None:
    prompt, _ = asked(site, messages=messages)
    assert [*prompt.messages] == expected


@pytest.mark.parametrize(
    "system", ["rules", [{"type": "text", "text": "rules", "cache_control": {"type": "ephemeral"}}]]
)
def test_the_system_prompt_comes_first(site: Site, system: str | list[dict[str, Any]]) -> None:
    prompt, _ = asked(site, system=system)
    assert [*prompt.messages] == [{"role": "system", "content": "rules"}, X]


@pytest.mark.parametrize(
    ("more", "think", "budget"),
    [
        ({}, False, None),
        ({"thinking": {"type": "disabled"}}, False, None),
        ({"thinking": {"type": "adaptive"}}, True, None),
        ({"thinking": {"type": "enabled", "budget_tokens": 2048}}, True, 2048),
        ({"thinking": {"type": "adaptive"}, "output_config": {"effort": "low"}}, "low", None),
        ({"output_config": {"effort": "medium"}}, "medium", None),
        ({"output_config": {"effort": "xhigh"}}, "max", None),
        ({"thinking": {"type": "disabled"}, "output_config": {"effort": "high"}}, False, None),
    ],
    ids=lambda value: json.dumps(value) if isinstance(value, dict) else "",
)
def test_thinking_and_effort_mean(
    site: Site, more: dict[str, Any], think: bool | str, budget: int | None
) -> None:
    prompt, options = asked(site, **more)
    assert (prompt.think, options.think_budget) == (think, budget)
