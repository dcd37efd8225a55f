"""Every field of the `openai` package's requests: it has an effect, changes nothing, or is refused.

What a field does in full is in the other tests; here each shows that it does something.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

import httpx
import pytest
from openai.types import completion_create_params, embedding_create_params
from openai.types.chat import completion_create_params as chat_params
from openai.types.responses import input_token_count_params, response_create_params
from support.fields import (
    USER,
    Route,
    both,
    effect,
    keys_of,
    nothing,
    probed,
    read,
    refused,
    said,
    streams,
    text,
)
from support.tiny_model import VOCABULARY

pytestmark = [pytest.mark.client, pytest.mark.server]

NUMBERS = {"type": "object", "properties": {"a": {"type": "integer"}, "b": {"type": "integer"}}}
ADD = {"name": "add", "parameters": NUMBERS}
TOOLS: list[dict[str, Any]] = [
    {"type": "function", "function": ADD},
    {"type": "function", "function": {"name": "sub"}},
]
FLAT = [{"type": "function", **tool["function"]} for tool in TOOLS]
CALLS = {"model": "pair", "tools": TOOLS}
FIRST = str(VOCABULARY)  # the token of the first word that a model says
WARM = {"temperature": 20, "max_tokens": 5}
FORM = {"type": "json_schema", "json_schema": {"name": "x", "schema": {"enum": ["yes"]}}}


def calls(answer: Any) -> int:
    return len(answer["choices"][0]["message"].get("tool_calls") or ())


def shows_a_seed(ask: Callable[..., Any]) -> Any:
    first, second, other = (text(ask(**WARM, seed=seed)) for seed in (1, 1, 2))
    return first == second != other


def penalty(name: str) -> Callable[[Route, str], None]:
    """What is said again and again is said less often."""
    looping = {"model": "looper", "max_tokens": 8}
    return effect(lambda ask: text(ask(**looping)) != text(ask(**looping, **{name: 20})))


SHARED = {
    "frequency_penalty": penalty("frequency_penalty"),
    "logit_bias": effect(lambda ask: not text(ask(logit_bias={FIRST: -100})).startswith("Hello")),
    "max_tokens": both(
        effect(lambda ask: ask(max_tokens=2)["choices"][0]["finish_reason"] == "length"),
        nothing(-1),
        refused(0, -2),
    ),
    "model": effect(lambda ask: text(ask(model="looper", max_tokens=3)) != text(ask())),
    "n": both(effect(lambda ask: len(ask(n=2)["choices"]) == 2), refused(0, 129)),
    "presence_penalty": penalty("presence_penalty"),
    "seed": effect(shows_a_seed),
    "stop": both(
        effect(lambda ask: text(ask(stop=",")) == text(ask(stop=["x", ","])) == "Hello"),
        refused(["x"] * 17, [""], "y" * 1025),
    ),
    "stream": streams(b"data: [DONE]\n\n"),
    "stream_options": nothing({"include_usage": True}, {"include_obfuscation": False}),
    "temperature": both(effect(lambda ask: text(ask(**WARM, seed=1)) != text(ask())), refused(-1)),
    "top_p": both(
        effect(lambda ask: text(ask(**WARM, seed=1, top_p=0)) == text(ask())), refused(2)
    ),
    "user": nothing("somebody"),
}
CHAT = SHARED | {
    "audio": refused({"voice": "x", "format": "wav"}),
    "function_call": refused("auto", {"name": "add"}),
    "functions": refused([ADD]),
    "logprobs": effect(
        lambda ask: len(ask(logprobs=True)["choices"][0]["logprobs"]["content"]) == 4
    ),
    "max_completion_tokens": both(
        effect(lambda ask: text(ask(max_completion_tokens=2)) == "Hello,"),
        refused(0, -5),
    ),
    "messages": both(
        effect(lambda ask: read(ask(messages=USER * 3)) > read(ask())), refused([])
    ),
    "metadata": nothing({"a": "b"}),
    "modalities": both(nothing(["text"]), refused(["audio"], ["text", "audio"])),
    "moderation": refused({"model": "omni-moderation-latest"}),
    "parallel_tool_calls": effect(
        lambda ask: (calls(ask(**CALLS)), calls(ask(**CALLS, parallel_tool_calls=False))) == (2, 1)
    ),
    "prediction": both(
        nothing({"type": "content", "content": "Hello, world."}),
        nothing({"type": "content", "content": [{"type": "text", "text": "Hello"}]}),
        refused({"type": "content"}, {"type": "text", "content": "Hello"}, {"content": ["Hello"]}),
    ),
    "prompt_cache_key": nothing("key"),
    "prompt_cache_options": both(
        nothing({"mode": "explicit", "ttl": "30m"}), refused({"prewarm": True})
    ),
    "prompt_cache_retention": nothing("24h"),
    "reasoning_effort": both(
        effect(
            lambda ask: len({read(ask(model="tryer", reasoning_effort=effort))
                             for effort in ("low", "medium", "high")}) == 3
        ),
        refused("most"),
    ),
    "response_format": both(
        effect(lambda ask: json.loads(text(ask(response_format=FORM))) == "yes"),
        refused({"type": "xml"}, {"type": "json_schema"}),
    ),
    "safety_identifier": nothing("hash"),
    "service_tier": nothing("auto", "flex", "priority"),
    "store": nothing(True, False),
    "tool_choice": both(
        effect(lambda ask: calls(ask(**CALLS, tool_choice="none")) == 0),
        refused("maybe", "required", {"type": "custom", "custom": {"name": "x"}}),
    ),
    "tools": both(
        effect(lambda ask: calls(ask(**CALLS)) == 2),
        refused([{"type": "function"}]),
    ),
    "top_logprobs": both(
        effect(lambda ask: [len(one["top_logprobs"]) for one in
                            ask(logprobs=True, top_logprobs=2)["choices"][0]["logprobs"]["content"]]
               == [2] * 4),
        refused(2),
    ),
    "verbosity": both(nothing("medium"), refused("low", "high")),
    "web_search_options": refused({"search_context_size": "low"}),
}  # fmt: skip
COMPLETION = SHARED | {
    "best_of": both(nothing(1), refused(2)),
    "echo": effect(lambda ask: text(ask(echo=True)).startswith("x")),
    "logprobs": both(
        effect(lambda ask: ask(logprobs=1)["choices"][0]["logprobs"]["tokens"][0] == "Hello"),
        refused(21, -1),
    ),
    "prompt": both(
        effect(lambda ask: read(ask(prompt=[[5, 6, 7]])) == 3),
        effect(lambda ask: read(ask(prompt="")) == 1),
        refused([], [[]]),
    ),
    "suffix": both(
        effect(lambda ask: read(ask(model="filler", suffix="y")) > read(ask(model="filler"))),
        refused("y"),
    ),
}
EMBEDDING = {
    "dimensions": both(
        effect(lambda ask: len(ask(dimensions=8)["data"][0]["embedding"]) == 8), refused(-1, 10**6)
    ),
    "encoding_format": both(
        effect(lambda ask: isinstance(ask(encoding_format="base64")["data"][0]["embedding"], str)),
        refused("int8"),
    ),
    "input": both(effect(lambda ask: len(ask(input=["a", ""])["data"]) == 2), refused([])),
    "model": effect(lambda ask: ask(model="talker") != ask()),
    "user": nothing("somebody"),
}


def output(answer: Any) -> list[Any]:
    return [item["type"] for item in answer["output"]]


def scores(answer: Any) -> int:
    return len(answer["output"][0]["content"][0]["logprobs"])


FLAT_CALLS = {"model": "pair", "tools": FLAT}
RESPONSE = {
    "access_programs": nothing({"cyber": "standard"}),
    "background": both(nothing(False), refused(True)),
    "background_options": refused({"completion_window": "2h"}),
    "context_management": refused([{"type": "compaction"}]),
    "conversation": refused(5, {"x": "conv_1"}),  # its effect: clients/test_openai_conversations.py
    "image": refused({"context_compression": "enabled"}),
    "include": both(
        nothing(["reasoning.encrypted_content", "web_search_call.results"]),
        effect(lambda ask: scores(ask(include=["message.output_text.logprobs"])) == 4),
        refused(["everything"]),
    ),
    "input": both(
        effect(lambda ask: ask(input=USER * 3)["usage"]["input_tokens"]
               > ask()["usage"]["input_tokens"]),
        refused("", []),
    ),
    "instructions": effect(
        lambda ask: ask(instructions="be brief")["usage"]["input_tokens"]
        > ask()["usage"]["input_tokens"]
    ),
    "max_output_tokens": both(
        effect(lambda ask: (said(ask(max_output_tokens=2)), ask(max_output_tokens=2)["status"])
               == ("Hello,", "incomplete")),
        refused(0),
    ),
    "max_tool_calls": refused(3),
    "metadata": effect(lambda ask: ask(metadata={"a": "b"})["metadata"] == {"a": "b"}),
    "model": effect(lambda ask: said(ask(model="looper", max_output_tokens=3)) != said(ask())),
    "moderation": refused({"model": "omni-moderation-latest"}),
    "parallel_tool_calls": effect(
        lambda ask: output(ask(**FLAT_CALLS)) == ["function_call"] * 2
        and output(ask(**FLAT_CALLS, parallel_tool_calls=False)) == ["function_call"]
    ),
    "previous_response_id": both(
        effect(lambda ask: ask(previous_response_id=ask()["id"])["usage"]["input_tokens"]
               > ask()["usage"]["input_tokens"]),
        refused("resp_1"),
    ),
    "prompt": refused({"id": "pmpt_1"}),
    "prompt_cache_key": nothing("key"),
    "prompt_cache_options": both(
        nothing({"mode": "explicit", "ttl": "30m"}), refused({"prewarm": True})
    ),
    "prompt_cache_retention": nothing("24h"),
    "reasoning": both(
        effect(
            lambda ask: ask(model="tryer", reasoning={"effort": "high"})["usage"]["input_tokens"]
            != ask(model="tryer", reasoning={"effort": "low"})["usage"]["input_tokens"]
        ),
        refused({"effort": "most"}, named="reasoning.effort"),
        refused({"mode": "pro"}, named="reasoning.mode"),
    ),
    "safety_identifier": nothing("hash"),
    "service_tier": nothing("auto", "flex"),
    "store": effect(lambda ask: [ask(store=store)["store"] for store in (True, False)]
                    == [True, False]),
    "stream": streams(b"\n\n"),
    "stream_options": nothing({"include_obfuscation": False}),
    "temperature": both(
        effect(lambda ask: said(ask(temperature=20, max_output_tokens=5, options={"seed": 1}))
               != said(ask())),
        refused(-1),
    ),
    "text": both(
        effect(lambda ask: said(ask(text={"format": {"type": "json_schema", "name": "x",
                                                     "schema": {"enum": ["yes"]}}})) == '"yes"'),
        refused({"verbosity": "low"}, named="text.verbosity"),
        refused({"format": {"type": "xml"}}, named="text.format"),
    ),
    "tool_choice": both(
        effect(lambda ask: output(ask(**FLAT_CALLS, tool_choice="none")) == ["message"]),
        refused("maybe", {"type": "web_search"}, {"type": "mcp", "server_label": "x"}),
    ),
    "tools": both(
        effect(lambda ask: output(ask(**FLAT_CALLS)) == ["function_call"] * 2),
        refused([{"type": "function"}], [{"name": "add"}]),
    ),
    "top_logprobs": both(
        effect(lambda ask: scores(ask(top_logprobs=2)) == 4), refused(21, -1)
    ),
    "top_p": both(
        effect(lambda ask: said(ask(temperature=20, top_p=0)) == said(ask())), refused(2)
    ),
    "truncation": both(
        effect(lambda ask: said(ask(truncation="auto", input="long " * 600)) == "Hello, world."),
        refused("middle"),
    ),
    "user": nothing("somebody"),
}  # fmt: skip
COUNT = {
    "conversation": refused(5),
    "input": effect(lambda ask: ask(input=USER * 3)["input_tokens"] > ask()["input_tokens"]),
    "instructions": effect(
        lambda ask: ask(instructions="x")["input_tokens"] > ask()["input_tokens"]
    ),
    "model": effect(lambda ask: ask(model="thinker") != ask()),
    "parallel_tool_calls": nothing(True, False),
    "personality": refused("friendly"),
    "previous_response_id": refused("resp_1"),  # its effect: test_stored_responses.py
    "reasoning": effect(
        lambda ask: ask(model="tryer", reasoning={"effort": "high"})
        != ask(model="tryer", reasoning={"effort": "low"})
    ),
    "text": both(nothing({"format": {"type": "text"}}), refused({"verbosity": "low"})),
    "tool_choice": effect(
        lambda ask: ask(**FLAT_CALLS, tool_choice="none")["input_tokens"]
        < ask(**FLAT_CALLS)["input_tokens"]
    ),
    "tools": effect(lambda ask: ask(**FLAT_CALLS) != ask(model="pair")),
    "truncation": nothing("auto", "disabled"),
}  # fmt: skip


@pytest.mark.parametrize(
    ("table", "kinds"),
    [
        (CHAT, (chat_params.CompletionCreateParamsNonStreaming,
                chat_params.CompletionCreateParamsStreaming)),
        (COMPLETION, (completion_create_params.CompletionCreateParamsNonStreaming,
                      completion_create_params.CompletionCreateParamsStreaming)),
        (EMBEDDING, (embedding_create_params.EmbeddingCreateParams,)),
        (RESPONSE, (response_create_params.ResponseCreateParamsNonStreaming,
                    response_create_params.ResponseCreateParamsStreaming)),
        (COUNT, (input_token_count_params.InputTokenCountParams,)),
    ],
    ids=["chat", "completions", "embeddings", "responses", "input_tokens"],
)  # fmt: skip
def test_every_field_that_the_package_knows_is_in_the_table(
    table: dict[Any | str, Any], kinds: tuple[type, ...]
) -> None:
    assert sorted(table) == keys_of(*kinds)


@probed(CHAT)
def test_a_field_of_a_chat(client: httpx.Client, name: str) -> None:
    plain = {"model": "talker", "messages": USER, "temperature": 0}
    CHAT[name](Route(client, "/v1/chat/completions", plain), name)


@probed(COMPLETION)
def test_a_field_of_a_completion(client: httpx.Client, name: str) -> None:
    plain = {"model": "talker", "prompt": "x", "temperature": 0}
    COMPLETION[name](Route(client, "/v1/completions", plain), name)


@probed(EMBEDDING)
def test_a_field_of_an_embedding(client: httpx.Client, name: str) -> None:
    plain = {"model": "embedder", "input": "x"}
    EMBEDDING[name](Route(client, "/v1/embeddings", plain), name)


@probed(RESPONSE)
def test_a_field_of_a_response(client: httpx.Client, name: str) -> None:
    plain = {"model": "talker", "input": "x", "temperature": 0}
    RESPONSE[name](Route(client, "/v1/responses", plain), name)


@probed(COUNT)
def test_a_field_of_a_count_of_tokens(client: httpx.Client, name: str) -> None:
    plain = {"model": "talker", "input": "x"}
    COUNT[name](Route(client, "/v1/responses/input_tokens", plain), name)
