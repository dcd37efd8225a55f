"""`POST /api/chat`, statement by statement; what it shares with generate is in test_generate.py.

Elsewhere: what reaches the template (tests/server/ollama/test_ollama_chat.py), pictures
(tests/clients), a begun answer (tests/chat/test_prompt.py), tool calls of each family
(tests/chat/output).
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from typing import Any

import httpx
import pytest
from support.contract import JSON, Answer, Case, listed

pytestmark = pytest.mark.server

USER = [{"role": "user", "content": "x"}]
PARAMETERS = {"type": "object", "properties": {"a": {"type": "integer"}, "b": {"type": "integer"}}}
TOOL = {"type": "function", "function": {"name": "add", "parameters": PARAMETERS}}
EMPTY = {"role": "assistant", "content": ""}
MANY = [{"role": "system", "content": "rules"}] + [
    {"role": role, "content": f"{number} words " * 5}
    for number in range(20)
    for role in ("user", "assistant")
]


def chat(holds: Callable[[Any], bool] | Callable[[Any], re.Match[str] | None], **body: Any) -> Case:
    return Case("/api/chat", {"model": "talker", "messages": USER, **body}, holds)


def refused(*told: str, **body: Any) -> Case:
    return chat(lambda a: a.refuses(400, *told), **body)


def shown(text: str, **body: Any) -> Case:
    """What a model is given is this."""
    return chat(
        lambda a: a.json["_debug_info"]["rendered_template"].strip() == text,
        _debug_render_only=True, **body,
    )  # fmt: skip


def called(**body: Any) -> dict[Any, Any]:
    """The lines of an answer that thinks, speaks and calls."""
    return {"model": "caller", "tools": [TOOL], **body}


def kinds(answer: Answer) -> list[Any]:
    """What each line's message has besides its role, but for empty ones."""
    found = [[name for name in line["message"] if line["message"][name]] for line in answer.lines]
    return ["".join(names[1:]) for names in found if names[1:]]


def call_of(answer: Answer) -> Any:
    lines = answer.lines if answer.response.text.count("\n") else [answer.json]
    [call] = [call for line in lines for call in line["message"].get("tool_calls", [])]
    return call


CASES = {
    "a model is required": refused("model is required", model=None),
    "a model that is not here is 404": chat(
        lambda a: a.refuses(404, "model 'nothing' not found"), model="nothing"
    ),
    "no messages load": chat(
        lambda a: a.kind == JSON and (a.json["done_reason"], a.json["message"]) == ("load", EMPTY),
        messages=[],
    ),
    "no messages and no keep_alive unload": chat(
        lambda a: (a.json["done_reason"], a.json["message"]) == ("unload", EMPTY),
        messages=[], keep_alive=0,
    ),
    "a model for embeddings is unloaded too": chat(
        lambda a: a.json.get("done_reason") == "unload",
        model="embedder", messages=[], keep_alive=0,
    ),
    "a model for embeddings does not chat": refused(
        '"embedder" does not support chat', model="embedder"
    ),
    "roles are in any case": shown(
        "system: s\nuser: u\nassistant: a\ntool: t\ncontrol: c\nassistant:",
        messages=[{"role": role, "content": role[0].lower()}
                  for role in ("System", "USER", "assistant", "tool", "control")],
    ),
    "an unknown role is refused": refused(
        "messages[0].role must be system", messages=[{"role": "critic", "content": "c"}]
    ),
    "tools need a model that calls": refused("does not support tools", tools=[TOOL]),
    "think needs a model that thinks": refused('"talker" does not support thinking', think="low"),
    "a thinker thinks unless it is told not to": chat(
        lambda a: a.joined("thinking") == "Let me see.", model="thinker"
    ),
    "a line has a message with content": chat(
        lambda a: all(
            set(line) == {"model", "created_at", "message", "done"}
            and set(line["message"]) == {"role", "content"} for line in a.lines[:-1]
        ) and a.joined("content") == "Hello, world."
    ),
    "the last line's message is empty": chat(
        lambda a: a.last["message"] == EMPTY and a.last["done"] is True and "context" not in a.last
        and a.last["eval_count"] == 5 and a.last["done_reason"] == "stop"
    ),
    "content is there though it is empty": chat(
        lambda a: all("content" in line["message"] for line in a.lines), **called()
    ),
    "thoughts, then content, then calls": chat(
        lambda a: [kind for place, kind in enumerate(kinds(a)) if kind not in kinds(a)[:place]]
        == ["thinking", "content", "tool_calls"], **called(),
    ),
    "a call comes whole, its arguments an object in the model's order": chat(
        lambda a: json.dumps(call_of(a)["function"]["arguments"]) == '{"b": 2, "a": 1}'
        and (call_of(a)["function"]["name"], call_of(a)["function"]["index"]) == ("add", 0),
        **called(),
    ),
    "a call has an id": chat(
        lambda a: re.fullmatch(r"call_[0-9a-z]{8}", call_of(a)["id"]), **called()
    ),
    "two calls are numbered": chat(
        lambda a: [(call["function"]["name"], call["function"]["index"])
                   for call in a.json["message"]["tool_calls"]] == [("add", 0), ("sub", 1)],
        model="pair", tools=[TOOL, {"function": {"name": "sub", "parameters": PARAMETERS}}],
        stream=False,
    ),
    "a call is no reason to be done": chat(
        lambda a: a.json["done_reason"] == "stop" and call_of(a), **called(stream=False)
    ),
    "without streaming all is in one message": chat(
        lambda a: {name: a.json["message"][name] for name in ("role", "content", "thinking")}
        == {"role": "assistant", "content": "It is four.", "thinking": "Let me see."}
        and len(a.json["message"]["tool_calls"]) == 1, **called(stream=False),
    ),
    "a tool without a type is a function": chat(
        lambda a: call_of(a), **called(tools=[{"function": TOOL["function"]}])
    ),
    "a tool's result comes back": chat(
        lambda a: a.status == 200,
        **called(messages=[
            *USER,
            {"role": "assistant", "content": "", "tool_calls": [
                {"id": "call_1", "function": {"index": 0, "name": "add", "arguments": {"a": 1}}}
            ]},
            {"role": "tool", "content": "1", "tool_name": "add", "tool_call_id": "call_1"},
        ]),
    ),
    "a call's arguments are no text": refused("arguments", **called(messages=[
        {"role": "assistant", "tool_calls": [{"function": {"name": "add", "arguments": "{}"}}]}
    ])),
    "thoughts of before are given back": Case(
        "/api/chat",
        {"model": "thinker", "_debug_render_only": True, "messages": [
            *USER, {"role": "assistant", "content": "", "thinking": "so", "tool_calls": [
                {"function": {"name": "add", "arguments": {}}}
            ]},
        ]},
        lambda a: "<think>\nso\n</think>" in a.json["_debug_info"]["rendered_template"],
    ),
    "a begun answer goes on": shown(
        "user: x\nassistant:And", messages=[*USER, {"role": "assistant", "content": "And"}]
    ),
    "of too many messages the oldest are dropped": chat(
        lambda a: a.status == 200 and a.json["truncated"] > 0,
        model="brief", messages=MANY, stream=False,
    ),
    "too many messages are refused without truncation": refused(
        "context", model="brief", messages=MANY, truncate=False
    ),
    "the end of the context is length without a shift": chat(
        lambda a: (a.json["done_reason"], a.json["limit"]) == ("length", "context")
        and a.json["eval_count"] < 64,
        model="short", shift=False, stream=False, options={"num_predict": 100},
    ),
    "format holds after the thoughts": chat(
        lambda a: json.loads(a.json["message"]["content"]) in (1, 2),
        model="thinker", stream=False, format={"enum": [1, 2]}, options={"num_predict": 200},
    ),
    "images need a model that sees": refused(
        "does not support images", messages=[{"role": "user", "content": "x", "images": ["aGk="]}]
    ),
    "an image as a data URI": refused(
        "the image format is not supported", model="demo",
        messages=[{"role": "user", "content": "x", "images": ["data:image/png;base64,aGk="]}],
    ),
    "the entropy of each token comes with its logprob": chat(
        lambda a: [score["entropy"] >= 0 for score in a.json["logprobs"]] == [True] * 4,
        logprobs=True, entropy=True, stream=False, options={"num_predict": 4},
    ),
    "entropy needs logprobs": chat(
        lambda a: a.refuses(400, "entropy needs logprobs"), entropy=True, stream=False
    ),
    "logprobs come with their tokens": chat(
        lambda a: [len(score["top_logprobs"]) for score in a.json["logprobs"]] == [2] * 4,
        logprobs=True, top_logprobs=2, stream=False,
    ),
    "keep_alive is a duration": refused("keep_alive", keep_alive="soon"),
    "options have types": refused("temperature", options={"temperature": "hot"}),
}  # fmt: skip


@listed(CASES)
def test_chat(client: httpx.Client, case: Case) -> None:
    case.check(client)


def test_a_models_messages_and_its_system_message_come_first(client: httpx.Client) -> None:
    made = {
        "model": "begun", "from": "talker", "system": "own", "stream": False,
        "messages": [{"role": "user", "content": "hi"}, {"role": "assistant", "content": "ho"}],
    }  # fmt: skip
    assert client.post("/api/create", json=made).status_code == 200
    own = "user: hi\nassistant: ho\n"
    shown(f"system: own\n{own}user: x\nassistant:", model="begun").check(client)
    given = [{"role": "system", "content": "given"}, *USER]
    text = f"{own}system: given\nuser: x\nassistant:"
    shown(text, model="begun", messages=given).check(client)


def test_each_line_has_the_counts_so_far_where_they_are_wanted(client: httpx.Client) -> None:
    body = {"model": "talker", "messages": [{"role": "user", "content": "x"}]}
    plain = [json.loads(line) for line in client.post("/api/chat", json=body).text.splitlines()]
    assert not any("timings" in line for line in plain)
    response = client.post("/api/chat", json=body | {"timings_per_token": True})
    *lines, last = [json.loads(line) for line in response.text.splitlines()]
    counts = [line["timings"]["predicted_n"] for line in lines]
    assert counts == sorted(counts)
    assert 0 < counts[-1] <= last["eval_count"]
    told = lines[0]["timings"]
    assert told["cache_n"] == last["prompt_eval_cached_count"]
    assert told["cache_n"] + told["prompt_n"] == last["prompt_eval_count"]


def test_lines_with_counts_say_what_of_the_prompt_did_not_fit(client: httpx.Client) -> None:
    body = {"model": "brief", "messages": MANY}
    response = client.post("/api/chat", json=body | {"timings_per_token": True})
    *lines, last = [json.loads(line) for line in response.text.splitlines()]
    assert {line["truncated"] for line in lines} == {last["truncated"]}
    assert last["truncated"] > 0
    plain = client.post("/api/chat", json=body).text.splitlines()
    assert not any("truncated" in json.loads(line) for line in plain[:-1])
