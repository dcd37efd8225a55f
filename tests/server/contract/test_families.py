"""What holds for every API family that chats, each statement through each family's fields.

What only one family has stands in its own file; errors of all families: test_errors.py.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import httpx
import pytest
from support.sse import data_of, named_of

pytestmark = pytest.mark.server

USER = [{"role": "user", "content": "x"}]
NUMBERS = {"type": "object", "properties": {"a": {"type": "integer"}, "b": {"type": "integer"}}}
FUNCTIONS = [{"name": name, "parameters": NUMBERS} for name in ("add", "sub")]


@dataclass
class Answer:
    """An answer, whatever the family."""

    text: str = ""
    reasoning: str = ""
    calls: list[tuple[str, Any]] = field(default_factory=list)
    finish: str = ""
    prompt_tokens: int = 0
    generated_tokens: int = 0


@dataclass(frozen=True)
class Family:
    """How a family sends a chat and reads its answer.

    Attributes:
        path: Of the route.
        body: What each request has.
        tools: The two functions, as the family describes them.
        limit: The most tokens of an answer, as fields of the request.
        stop: A stop string, the same way.
        budget: A limit on reasoning tokens, the same way.
        whole: Reads an answer without a stream.
        streamed: Reads a stream.
        finishes: Its words for the end of the answer, for the limit and for a call.
    """

    path: str
    body: dict[str, Any]
    tools: list[dict[str, Any]]
    limit: Callable[[int], dict[str, Any]]
    stop: Callable[[str], dict[str, Any]]
    budget: Callable[[int], dict[str, Any]]
    whole: Callable[[Any], Answer]
    streamed: Callable[[httpx.Response], Answer]
    finishes: tuple[str, str, str]

    def ask(self, client: httpx.Client, model: str = "talker", **more: Any) -> httpx.Response:
        body = self.body | {"model": model, "stream": False} | more
        response = client.post(self.path, json=body)
        assert response.status_code == 200, response.text
        return response

    def both(self, client: httpx.Client, model: str = "talker", **more: Any) -> list[Answer]:
        """Return the answer without a stream and with one."""
        whole = self.whole(self.ask(client, model, **more).json())
        return [whole, self.streamed(self.ask(client, model, **more, stream=True))]


def _options(name: str) -> Callable[[Any], dict[str, Any]]:
    return lambda value: {"options": {"temperature": 0, name: value}}


def _field(name: str) -> Callable[[Any], dict[str, Any]]:
    return lambda value: {name: value}


def _ollama(*lines: Any) -> Answer:
    messages = [line["message"] for line in lines]
    calls = [call["function"] for one in messages for call in one.get("tool_calls", ())]
    return Answer(
        "".join((one.get("content") or "") for one in messages),
        "".join(one.get("thinking", "") for one in messages),
        [(call["name"], call["arguments"]) for call in calls],
        lines[-1]["done_reason"],
        lines[-1]["prompt_eval_count"],
        lines[-1]["eval_count"],
    )


def _chat(answer: Any) -> Answer:
    [choice] = answer["choices"]
    message, usage = choice["message"], answer["usage"]
    calls = [call["function"] for call in message.get("tool_calls", ())]
    return Answer(
        message["content"] or "",
        message.get("reasoning", ""),
        [(call["name"], json.loads(call["arguments"])) for call in calls],
        choice["finish_reason"],
        usage["prompt_tokens"],
        usage["completion_tokens"],
    )


def _chat_stream(response: httpx.Response) -> Answer:
    *chunks, last = data_of(response)
    message: dict[str, Any] = {"content": "", "reasoning": "", "tool_calls": []}
    for chunk in chunks:
        delta = chunk["choices"][0]["delta"]
        message["content"] += delta.get("content") or ""
        message["reasoning"] += delta.get("reasoning", "")
        for piece in delta.get("tool_calls", ()):
            if "name" in piece["function"]:
                message["tool_calls"].append({"function": {**piece["function"]}})
            else:
                call = message["tool_calls"][piece["index"]]["function"]
                call["arguments"] += piece["function"]["arguments"]
    finish = chunks[-1]["choices"][0]["finish_reason"]
    choices = [{"message": message, "finish_reason": finish}]
    return _chat({"choices": choices, "usage": last["usage"]})


def _response(answer: Any) -> Answer:
    items = answer["output"]
    parts = [part for item in items for part in item.get("content") or ()]
    summaries = [part for item in items for part in item.get("summary") or ()]
    calls = [item for item in items if item["type"] == "function_call"]
    return Answer(
        "".join(part["text"] for part in parts),
        "".join(part["text"] for part in summaries),
        [(call["name"], json.loads(call["arguments"])) for call in calls],
        (answer["incomplete_details"] or {"reason": answer["status"]})["reason"],
        answer["usage"]["input_tokens"],
        answer["usage"]["output_tokens"],
    )


def _response_stream(response: httpx.Response) -> Answer:
    events = named_of(response)
    answer = _response(events[-1]["response"])
    deltas = [event for event in events if event["type"] == "response.output_text.delta"]
    answer.text = "".join(event["delta"] for event in deltas)
    return answer


def _message(answer: Any) -> Answer:
    blocks, usage = answer["content"], answer["usage"]
    calls = [block for block in blocks if block["type"] == "tool_use"]
    return Answer(
        "".join(block.get("text", "") for block in blocks),
        "".join(block.get("thinking", "") for block in blocks),
        [(call["name"], call["input"]) for call in calls],
        answer["stop_reason"],
        usage["input_tokens"] + (usage["cache_read_input_tokens"] or 0),
        usage["output_tokens"],
    )


def _message_stream(response: httpx.Response) -> Answer:
    blocks: list[Any] = []
    last: Any = None
    for event in named_of(response):
        match event["type"]:
            case "content_block_start":
                blocks.append({**event["content_block"], "partial_json": ""})
            case "content_block_delta":
                for name, text in event["delta"].items():
                    if name in ("text", "thinking", "partial_json"):
                        blocks[-1][name] += text
            case "message_delta":
                last = event
    for block in blocks:
        block["input"] = json.loads(block["partial_json"] or "null")
    reason = last["delta"]["stop_reason"]
    return _message({"content": blocks, "stop_reason": reason, "usage": last["usage"]})


_WRAPPED = [{"type": "function", "function": function} for function in FUNCTIONS]
FAMILIES = {
    "ollama": Family(
        "/api/chat",
        {"messages": USER, "options": {"temperature": 0}},
        _WRAPPED,
        _options("num_predict"),
        lambda text: _options("stop")([text]),
        _options("think_budget"),
        _ollama,
        lambda response: _ollama(*map(json.loads, response.text.splitlines())),
        ("stop", "length", "stop"),
    ),
    "openai": Family(
        "/v1/chat/completions",
        {"messages": USER, "temperature": 0, "stream_options": {"include_usage": True}},
        _WRAPPED,
        _field("max_completion_tokens"),
        _field("stop"),
        _field("think_budget"),
        _chat,
        _chat_stream,
        ("stop", "length", "tool_calls"),
    ),
    "responses": Family(
        "/v1/responses",
        {"input": "x", "temperature": 0},
        [{"type": "function", **function} for function in FUNCTIONS],
        _field("max_output_tokens"),
        lambda text: {"stop": [text]},
        _field("think_budget"),
        _response,
        _response_stream,
        ("completed", "max_output_tokens", "completed"),
    ),
    "anthropic": Family(
        "/v1/messages",
        {"messages": USER, "max_tokens": 60, "temperature": 0, "thinking": {"type": "adaptive"}},
        [{"name": one["name"], "input_schema": one["parameters"]} for one in FUNCTIONS],
        _field("max_tokens"),
        lambda text: {"stop_sequences": [text]},
        lambda tokens: {"thinking": {"type": "enabled", "budget_tokens": tokens}},
        _message,
        _message_stream,
        ("end_turn", "max_tokens", "tool_use"),
    ),
}


@pytest.fixture(params=list(FAMILIES))
def family(request: pytest.FixtureRequest) -> Family:
    return FAMILIES[request.param]


def test_answer_is_the_same_with_and_without_a_stream(client: httpx.Client, family: Family) -> None:
    whole, streamed = family.both(client)
    assert whole == streamed
    assert (whole.text, whole.finish) == ("Hello, world.", family.finishes[0])


def test_tokens_are_counted(client: httpx.Client, family: Family) -> None:
    counted = client.post("/api/tokenize", json={"model": "talker", "messages": USER})
    for answer in family.both(client):
        assert answer.generated_tokens == 5
        assert answer.prompt_tokens == len(counted.json()["tokens"])


def test_reasoning_is_separate_from_the_text(client: httpx.Client, family: Family) -> None:
    for answer in family.both(client, "thinker"):
        assert (answer.reasoning, answer.text) == ("Let me see.", "It is four.")


@pytest.mark.parametrize("budget", [0, 1])
def test_reasoning_ends_when_its_budget_is_used_up(
    client: httpx.Client, family: Family, budget: int
) -> None:
    for answer in family.both(client, "tryer", **family.budget(budget)):
        assert answer.reasoning == "Hm"[: 2 * budget]
        assert answer.text.endswith("Yes.")  # what it says after an end it did not expect


def test_reasoning_within_its_budget_is_unchanged(client: httpx.Client, family: Family) -> None:
    for answer in family.both(client, "thinker", **family.budget(1024)):
        assert (answer.reasoning, answer.text) == ("Let me see.", "It is four.")


def test_calls_come_in_order_with_their_arguments(client: httpx.Client, family: Family) -> None:
    for answer in family.both(client, "pair", tools=family.tools):
        assert (answer.text, answer.finish) == ("", family.finishes[2])
        assert [name for name, _ in answer.calls] == ["add", "sub"]
        assert [*answer.calls[0][1].items()] == [("b", 2), ("a", 1)]


def test_call_follows_reasoning_and_text(client: httpx.Client, family: Family) -> None:
    for answer in family.both(client, "caller", tools=family.tools):
        assert (answer.reasoning, answer.text) == ("Let me see.", "It is four.")
        assert answer.calls == [("add", {"b": 2, "a": 1})]


def test_reached_length_limit_is_reported(client: httpx.Client, family: Family) -> None:
    for answer in family.both(client, **family.limit(2)):
        assert (answer.finish, answer.generated_tokens) == (family.finishes[1], 2)


def test_stop_string_is_not_part_of_the_answer(client: httpx.Client, family: Family) -> None:
    for answer in family.both(client, **family.stop(" world")):
        assert answer.text == "Hello,"
        assert answer.finish in (family.finishes[0], "stop_sequence")
