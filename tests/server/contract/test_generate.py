"""`POST /api/generate`, statement by statement.

Elsewhere: what reaches a model (tests/server/ollama/test_ollama_generate.py), pictures and the
context (tests/clients/test_ollama_client.py), text that is held back
(tests/runner/test_detokenizer.py).
"""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

import httpx
import pytest
from support.contract import JSON, Answer, Case, listed

pytestmark = pytest.mark.server

HELLO = "Hello, world."


def generate(holds: Callable[[Any], bool], **body: Any) -> Case:
    return Case("/api/generate", {"model": "talker", "prompt": "x", **body}, holds)


def options(holds: Callable[[Any], bool] | Callable[[Any], Any], **given: Any) -> Case:
    model = given.pop("model", "endless")
    return generate(holds, model=model, stream=False, options=given)


def shown(text: str, **body: Any) -> Case:
    """What a model is given is this."""
    return generate(
        lambda a: a.json["_debug_info"]["rendered_template"].strip() == text,
        _debug_render_only=True, **body,
    )  # fmt: skip


def kinds(answer: Answer) -> list[Any]:
    """Which texts each line has."""
    names = ("response", "thinking")
    found = [tuple(name for name in names if line.get(name)) for line in answer.lines]
    return [kind for kind in found if kind]


def refused(*told: str, **body: Any) -> Case:
    return generate(lambda a: a.refuses(400, *told), **body)


CASES = {
    "a model is required": refused("model is required", model=""),
    "a model that is not here is 404": generate(
        lambda a: a.refuses(404, "model 'nothing' not found"), model="nothing"
    ),
    "a model is no path": generate(lambda a: a.refuses(404, "not found"), model="../talker"),
    "top_logprobs is at least 0": refused("top_logprobs", top_logprobs=-1),
    "top_logprobs is at most 20": refused("top_logprobs", top_logprobs=21),
    "no prompt and no keep_alive unload": generate(
        lambda a: a.kind == JSON and (a.json["done_reason"], a.json["response"]) == ("unload", ""),
        prompt="", keep_alive=0,
    ),
    "a model for embeddings is unloaded too": generate(
        lambda a: a.json.get("done_reason") == "unload", model="embedder", prompt="", keep_alive=0,
    ),
    "no prompt loads": generate(
        lambda a: a.kind == JSON and (a.json["done_reason"], a.json["done"]) == ("load", True),
        prompt="",
    ),
    "raw goes with no template": refused("raw mode", raw=True, template="{{ .Prompt }}"),
    "raw goes with no system message": refused("raw mode", raw=True, system="s"),
    "raw goes with no context": refused("raw mode", raw=True, context=[1]),
    "suffix needs a model that inserts": refused("does not support insert", suffix="y"),
    "suffix goes to a model that inserts": generate(
        lambda a: a.json["response"] == HELLO, model="filler", suffix="y", stream=False
    ),
    "think needs a model that thinks": refused('"talker" does not support thinking', think=True),
    "think off needs nothing": generate(lambda a: a.joined("response") == HELLO, think=False),
    "think is a level": generate(
        lambda a: a.joined("thinking") == "Let me see.", model="thinker", think="high"
    ),
    "think is low, medium, high or max": refused("think must be", model="thinker", think="some"),
    "think is not given and a thinker thinks": generate(
        lambda a: a.joined("thinking") == "Let me see.", model="thinker"
    ),
    "thoughts come before the response, in lines of their own": generate(
        lambda a: kinds(a) == sorted(kinds(a), reverse=True)
        and set(kinds(a)) == {("response",), ("thinking",)},
        model="thinker",
    ),
    "a model for embeddings generates nothing": refused(
        '"embedder" does not support generate', model="embedder"
    ),
    "the system message and the prompt go through the template": shown(
        "system: s\nuser: x\nassistant:", system="s"
    ),
    "raw goes as it is": shown("x", raw=True),
    "context goes before the prompt": generate(
        lambda a: a.json["prompt_eval_count"] > 300, context=[3] * 300, stream=False
    ),
    "context must be tokens that there are": refused("token", context=[10**6]),
    "template does not come with a request": refused("template", template="{{ .Prompt }}"),
    "images need a model that sees": refused("does not support images", images=["aGk="]),
    "a line has a piece of the response": generate(
        lambda a: all(
            set(line) == {"model", "created_at", "response", "done"} and line["done"] is False
            for line in a.lines[:-1]
        ) and a.joined("response") == HELLO
    ),
    "the last line has the counts and the durations": generate(
        lambda a: set(a.last) - {"prompt_eval_cached_count"} == {
            "model", "created_at", "response", "done", "done_reason", "context", "total_duration",
            "load_duration", "prompt_eval_count", "prompt_eval_duration", "eval_count",
            "eval_duration",
        } and a.last["response"] == "" and a.last["done"] is True
    ),
    "context is the prompt and the answer": generate(
        lambda a: len(a.last["context"]) == a.last["prompt_eval_count"] + a.last["eval_count"] - 1
    ),
    "raw gives no context": generate(lambda a: "context" not in a.last, raw=True),
    "without streaming all is in one object": generate(
        lambda a: (a.json["response"], a.json["thinking"]) == ("It is four.", "Let me see.")
        and len(a.json["logprobs"]) >= 6 and a.json["done"] is True and a.json["context"],
        model="thinker", stream=False, logprobs=True,
    ),
    "the entropy of each token comes with its logprob": generate(
        lambda a: [score["entropy"] >= 0 for score in a.json["logprobs"]] == [True] * 4,
        logprobs=True, entropy=True, stream=False, options={"num_predict": 4},
    ),
    "logprobs come with their tokens": generate(
        lambda a: [(score["token"], bytes(score["bytes"]).decode(), "top_logprobs" in score)
                   for line in a.lines for score in line.get("logprobs", [])]
        == [(text, text, False) for text in ("Hello", ",", " world", ".")],
        logprobs=True,
    ),
    "top_logprobs lists the likeliest": generate(
        lambda a: [[set(top) for top in score["top_logprobs"]] for score in a.json["logprobs"]]
        == [[{"token", "logprob", "bytes"}] * 2] * 4,
        logprobs=True, top_logprobs=2, stream=False,
    ),
    "the end of the model's answer is stop": generate(lambda a: a.last["done_reason"] == "stop"),
    "a stop string is stop, and is cut off though tokens split it": options(
        lambda a: (a.json["response"], a.json["done_reason"]) == ("Hell", "stop"),
        model="talker", stop=["o, w"],
    ),
    "num_predict is length": options(
        lambda a: (a.json["done_reason"], a.json["eval_count"]) == ("length", 5), num_predict=5
    ),
    "the end of the context is length without a shift": generate(
        lambda a: a.json["done_reason"] == "length" and a.json["eval_count"] < 64,
        model="short", shift=False, stream=False, options={"num_predict": 100},
    ),
    "with a shift it goes on": options(
        lambda a: a.json["eval_count"] == 100, model="short", num_predict=100
    ),
    "a prompt that is too long is cut": generate(
        lambda a: a.status == 200, model="brief", prompt="x " * 400
    ),
    "a prompt that is too long is refused without truncation": refused(
        "context", model="brief", prompt="x " * 400, truncate=False
    ),
    "total_duration holds the others": generate(
        lambda a: a.last["total_duration"] >= a.last["load_duration"]
        + a.last["prompt_eval_duration"] + a.last["eval_duration"] - 1_000_000
    ),
    "load_duration is small and not zero when it is loaded": generate(
        lambda a: 0 < a.last["load_duration"] < 1e9
    ),
    "an answer that only repeats itself ends": options(
        lambda a: (a.json["done_reason"], a.json["response"]) == ("length", "Well!" + " la" * 31),
        model="looper",
    ),
    "one that is bounded may": options(
        lambda a: a.json["eval_count"] == 100, model="looper", num_predict=100
    ),
    "format is json": generate(
        lambda a: isinstance(json.loads(a.json["response"]), dict), model="demo", format="json",
        prompt="Kevin is a driver. Give JSON.", stream=False,
        options={"temperature": 0, "num_predict": 100},
    ),
    "format is a schema": generate(
        lambda a: json.loads(a.json["response"]) in (1, 2), model="endless", stream=False,
        format={"enum": [1, 2]},
    ),
    "format is nothing else": refused("format must be", format="xml"),
    "_debug_render_only counts the images": generate(
        lambda a: a.json["_debug_info"]["image_count"] == 0 and "response" in a.json,
        _debug_render_only=True,
    ),
}  # fmt: skip


@listed(CASES)
def test_generate(client: httpx.Client, case: Case) -> None:
    case.check(client)


def test_cached_prompt_tokens_count_as_prompt_tokens(client: httpx.Client) -> None:
    body = {"model": "talker", "prompt": "this is a prompt", "stream": False}
    first, second = (client.post("/api/generate", json=body).json() for _ in range(2))
    assert first["prompt_eval_count"] == second["prompt_eval_count"] > 0
    assert second["prompt_eval_cached_count"] > 0


def test_model_messages_apply_unless_a_context_is_given(client: httpx.Client) -> None:
    made = {
        "model": "begun", "from": "talker", "system": "own", "stream": False,
        "messages": [{"role": "user", "content": "hi"}, {"role": "assistant", "content": "ho"}],
    }  # fmt: skip
    assert client.post("/api/create", json=made).status_code == 200
    own = "user: hi\nassistant: ho\nuser: x\nassistant:"
    shown(f"system: own\n{own}", model="begun").check(client)
    shown(f"system: given\n{own}", model="begun", system="given").check(client)
    goes_on = generate(
        lambda a: a.json["_debug_info"]["rendered_template"].endswith(
            "system: own\nuser: x\nassistant:"
        ),
        model="begun", context=[3], _debug_render_only=True,
    )  # fmt: skip
    goes_on.check(client)


def test_a_models_own_template_is_applied(client: httpx.Client) -> None:
    template = "{{ range .Messages }}{{ .Role }}: {{ .Content }}{{ end }}"
    made = {"model": "own", "from": "talker", "template": template, "stream": False}
    client.post("/api/create", json=made).raise_for_status()
    shown("user: x", model="own").check(client)
