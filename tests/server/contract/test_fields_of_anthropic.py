"""Every field of the `anthropic` package: it has an effect, changes nothing, or is refused.

So has each kind of block and of tool that the package knows.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any, get_args

import httpx
import pytest
from anthropic.types import (
    content_block_param,
    message_count_tokens_params,
    message_create_params,
    tool_param,
    tool_result_block_param,
)
from anthropic.types.beta import beta_tool_param
from anthropic.types.beta import message_count_tokens_params as trial_count_params
from anthropic.types.beta import message_create_params as trial_create_params
from support.fields import Route, both, effect, keys_of, nothing, probed, refused, streams, type_of

pytestmark = [pytest.mark.client, pytest.mark.server]

USER = [{"role": "user", "content": "x"}]
NUMBERS = {"type": "object", "properties": {"a": {"type": "integer"}, "b": {"type": "integer"}}}
ADD = {"name": "add", "description": "Add.", "input_schema": NUMBERS}
TOOLS = [ADD, {"name": "sub", "input_schema": {"type": "object"}}]
CALLS = {"model": "pair", "tools": TOOLS}
EPHEMERAL = {"type": "ephemeral"}
FORM = {"type": "json_schema", "schema": {"enum": ["yes"]}}
PIXEL = (
    "iVBORw0KGgoAAAANSUhEUgAAAAEAAAABCAYAAAAfFcSJAAAADUlEQVR42mNk+M9QDwADhgGAWjR9awAAAABJRU5ErkJg"
    "gg=="
)


def text(answer: Any) -> str:
    return "".join(block.get("text", "") for block in answer["content"])


def kinds(answer: Any) -> list[Any]:
    return [block["type"] for block in answer["content"]]


def read(answer: Any) -> Any:
    if "input_tokens" in answer:
        return answer["input_tokens"]
    return answer["usage"]["input_tokens"] + answer["usage"]["cache_read_input_tokens"]


def reads_more(**more: Any) -> Callable[[Route, str], None]:
    """The model is shown more."""
    return effect(lambda ask: read(ask(**more)) > read(ask()))


def thinks(**more: Any) -> Callable[[Route, str], None]:
    """Efforts differ in what the model is shown."""
    return effect(
        lambda ask: len({read(ask(model="tryer", **more, output_config={"effort": effort}))
                         for effort in ("low", "medium", "high")}) == 3
    )  # fmt: skip


SHARED = {
    "cache_control": nothing(EPHEMERAL),
    "messages": both(reads_more(messages=USER * 3), refused([])),
    "model": effect(lambda ask: read(ask(model="thinker")) != read(ask())),
    "output_config": both(
        thinks(),
        refused({"effort": "most"}, named="output_config.effort"),
        refused({"format": {"type": "xml"}}, named="output_config.format"),
    ),
    "speed": nothing("fast", "standard"),
    "system": reads_more(system=[{"type": "text", "text": "be brief", "cache_control": EPHEMERAL}]),
    "thinking": both(
        effect(
            lambda ask: (
                read(ask(model="tryer", thinking={"type": "disabled"}))
                > read(ask(model="tryer", thinking={"type": "adaptive"}))
            )
        ),
        refused({"type": "between_tools"}, named="thinking.type"),
        refused({"type": "enabled", "budget_tokens": -1}, named="thinking.budget_tokens"),
    ),
    "tool_choice": both(
        effect(lambda ask: read(ask(**CALLS)) > read(ask(**CALLS, tool_choice={"type": "none"}))),
        refused({"type": "maybe"}, {"type": "any"}),
    ),
    "tools": effect(lambda ask: read(ask(**CALLS)) > read(ask(model="pair"))),
    "user_profile_id": nothing("somebody"),
    "workspace_id": nothing("wrkspc_1"),
}
MESSAGE = SHARED | {
    "container": refused("container_1"),
    "diagnostics": nothing({"previous_message_id": "msg_1"}),
    "inference_geo": nothing("eu"),
    "max_tokens": both(
        effect(lambda ask: (text(ask(max_tokens=2)), ask(max_tokens=2)["stop_reason"])
               == ("Hello,", "max_tokens")),
        refused(0, -1),
    ),
    "metadata": nothing({"user_id": "somebody"}),
    "output_config": both(
        SHARED["output_config"],
        effect(lambda ask: json.loads(text(ask(output_config={"format": FORM}))) == "yes"),
    ),
    "service_tier": nothing("auto", "standard_only"),
    "stop_sequences": both(
        effect(lambda ask: text(ask(stop_sequences=["x", ","])) == "Hello"),
        refused(["x"] * 17, [""], ["y" * 1025]),
    ),
    "stream": streams(b"event: message_stop\ndata: {\"type\":\"message_stop\"}\n\n"),
    "thinking": both(
        SHARED["thinking"],
        effect(
            lambda ask: ask(model="tryer", thinking={"type": "enabled", "budget_tokens": 1})[
                "usage"]["output_tokens_details"]["thinking_tokens"]
            < ask(model="tryer", thinking={"type": "enabled"})[
                "usage"]["output_tokens_details"]["thinking_tokens"]
        ),
        effect(
            lambda ask: ask(model="tryer", thinking={"type": "adaptive", "display": "omitted"})[
                "content"][0]["thinking"] == ""
        ),
        refused({"type": "enabled", "display": "all"}, named="thinking.display"),
    ),
    "tool_choice": both(
        SHARED["tool_choice"],
        effect(lambda ask: kinds(ask(**CALLS)) == ["tool_use", "tool_use"]),
        effect(lambda ask: kinds(ask(**CALLS, tool_choice={
            "type": "auto", "disable_parallel_tool_use": True})) == ["tool_use"]),
    ),
}  # fmt: skip
# Of what is in trial, without what is known otherwise.
IN_TRIAL = {
    "betas": nothing(["x-2026-01-01"]),  # a header; nobody sends it in a body
    "billing_policy": nothing("standard"),
    "compaction": refused({"trigger": 1}),
    "context_management": both(
        nothing({"edits": []}, {"edits": [{"type": "clear_thinking_20251015", "keep": "all"}]}),
        refused(
            {"edits": [{"type": "clear_thinking_20251015"}]},
            {"edits": [{"type": "clear_tool_uses_20250919"}]},
            {"edits": [{"type": "compact_20260112"}]},
            {"edits": "all"},
        ),
    ),
    "mcp_servers": refused([{"type": "url", "url": "https://example.com", "name": "x"}]),
    "output_config": refused({"task_budget": {"total": 5}}, named="output_config.task_budget"),
}
IN_TRIAL_OF_MESSAGES = {
    "fallback_credit_token": nothing("token"),
    "fallbacks": nothing([{"model": "looper"}]),
    "thread": refused("thread_1", {"id": "thread_1"}),
}
# What the package does not know any more, and clients of earlier versions send.
EARLIER = {
    "temperature": both(
        effect(lambda ask: text(ask(temperature=20, max_tokens=5, options={"seed": 1}))
               != text(ask())),
        refused(-1),
    ),
    "top_k": both(effect(lambda ask: text(ask(temperature=20, top_k=1)) == text(ask())),
                  refused(-2)),
    "top_p": both(effect(lambda ask: text(ask(temperature=20, top_p=0)) == text(ask())),
                  refused(2)),
}  # fmt: skip
TOOL = {
    "allowed_callers": both(nothing(["direct"]), refused(["code_execution_20260120"])),
    "cache_control": nothing(EPHEMERAL),
    "defer_loading": both(nothing(False), refused(True)),
    "description": reads_more(tools=[ADD | {"description": "Add two whole numbers."}]),
    "eager_input_streaming": nothing(True, False),
    "input_examples": refused([{"a": 1, "b": 2}]),
    "input_schema": both(
        reads_more(tools=[ADD | {"input_schema": NUMBERS | {"required": ["a"]}}]), refused("x")
    ),
    "name": reads_more(tools=[ADD | {"name": "addition_of_two"}]),
    "strict": nothing(True),
    "type": nothing("custom"),
}
IMAGE = {"type": "base64", "media_type": "image/png", "data": PIXEL}
RESULT = {"type": "tool_result", "tool_use_id": "toolu_1", "content": "5"}
# Each kind of block: one that is read, or what the refusal names.
BLOCKS = {
    "text": {"type": "text", "text": "y", "cache_control": EPHEMERAL, "citations": None},
    "thinking": {"type": "thinking", "thinking": "y", "signature": "s"},
    "redacted_thinking": {"type": "redacted_thinking", "data": "x"},
    "tool_use": {"type": "tool_use", "id": "toolu_1", "name": "add", "input": {"a": 1}},
    "tool_result": RESULT,
    "image": "images",
    "document": "document",
    "search_result": "search_result",
    "server_tool_use": "server_tool_use",
    "web_search_tool_result": "web_search_tool_result",
    "web_fetch_tool_result": "web_fetch_tool_result",
    "code_execution_tool_result": "code_execution_tool_result",
    "bash_code_execution_tool_result": "bash_code_execution_tool_result",
    "text_editor_code_execution_tool_result": "text_editor_code_execution_tool_result",
    "tool_search_tool_result": "tool_search_tool_result",
    "container_upload": "container_upload",
}
PARTS = {
    "text": {"type": "text", "text": "y"},
    "image": "images",
    "search_result": "only text",
    "document": "only text",
    "tool_reference": "only text",
    "browser_state": "only text",
}


@pytest.mark.parametrize(
    ("table", "kinds"),
    [
        (MESSAGE, (message_create_params.MessageCreateParamsNonStreaming,
                   message_create_params.MessageCreateParamsStreaming)),
        (SHARED, (message_count_tokens_params.MessageCountTokensParams,)),
        (TOOL, (tool_param.ToolParam,)),
        (MESSAGE | IN_TRIAL | IN_TRIAL_OF_MESSAGES, (
            trial_create_params.MessageCreateParamsNonStreaming,
            trial_create_params.MessageCreateParamsStreaming)),
        (SHARED | IN_TRIAL, (trial_count_params.MessageCountTokensParams,)),
        (TOOL, (beta_tool_param.BetaToolParam,)),
    ],
    ids=["messages", "count_tokens", "tool", "trial of messages", "trial of count_tokens",
         "trial of tool"],
)  # fmt: skip
def test_every_field_that_the_package_knows_is_in_the_table(
    table: dict[Any | str, Any], kinds: tuple[type, ...]
) -> None:
    assert sorted(table) == keys_of(*kinds)


def test_every_kind_of_block_that_the_package_knows_is_in_the_tables() -> None:
    assert sorted(BLOCKS) == sorted(map(type_of, get_args(content_block_param.ContentBlockParam)))
    assert sorted(PARTS) == sorted(map(type_of, get_args(tool_result_block_param.Content)))


@probed(MESSAGE | EARLIER)
def test_a_field_of_a_message(client: httpx.Client, name: str) -> None:
    plain = {"model": "talker", "messages": USER, "max_tokens": 9, "temperature": 0}
    (MESSAGE | EARLIER)[name](Route(client, "/v1/messages", plain), name)


@probed(IN_TRIAL | IN_TRIAL_OF_MESSAGES)
def test_a_field_in_trial(client: httpx.Client, name: str) -> None:
    plain = {"model": "talker", "messages": USER, "max_tokens": 9, "temperature": 0}
    (IN_TRIAL | IN_TRIAL_OF_MESSAGES)[name](Route(client, "/v1/messages", plain), name)


@probed(SHARED)
def test_a_field_of_a_count_of_tokens(client: httpx.Client, name: str) -> None:
    plain = {"model": "talker", "messages": USER}
    SHARED[name](Route(client, "/v1/messages/count_tokens", plain), name)


class ToolRoute(Route):
    """Puts the fields into a tool."""

    def post(self, **more: Any) -> httpx.Response:
        if not {"tools"} >= set(more):
            more = {"tools": [ADD | more]}
        return super().post(**more)


@probed(TOOL)
def test_a_field_of_a_tool(client: httpx.Client, name: str) -> None:
    plain = {"model": "caller", "messages": USER, "tools": [ADD], "max_tokens": 9, "temperature": 0}
    TOOL[name](ToolRoute(client, "/v1/messages", plain), name)


def blocks(client: httpx.Client, role: str, block: dict[Any | str, Any]) -> httpx.Response:
    messages = [*USER, {"role": role, "content": [{"type": "text", "text": "x"}, block]}]
    body = {"model": "tryer", "messages": messages, "max_tokens": 9, "temperature": 0}
    return client.post("/v1/messages", json=body)


@pytest.mark.parametrize("kind", BLOCKS)
def test_a_block_is_read_or_refused_by_its_kind(client: httpx.Client, kind: str) -> None:
    block = BLOCKS[kind]
    if isinstance(block, dict):
        role = "user" if kind == "tool_result" else "assistant"
        response = blocks(client, role, block)
        assert response.status_code == 200, response.text
        return
    response = blocks(client, "user", {"type": kind, "source": IMAGE})
    assert response.status_code == 400
    assert block in response.json()["error"]["message"]


@pytest.mark.parametrize("kind", PARTS)
def test_a_part_of_a_tools_result_is_read_or_refused(client: httpx.Client, kind: str) -> None:
    given = {"type": kind, "source": IMAGE} if isinstance(PARTS[kind], str) else PARTS[kind]
    response = blocks(client, "user", RESULT | {"content": [given]})
    if isinstance(PARTS[kind], dict):
        assert response.status_code == 200
        return
    assert response.status_code == 400
    assert PARTS[kind] in response.json()["error"]["message"]


@pytest.mark.parametrize(
    ("source", "told"),
    [
        ({"type": "url", "url": "https://example.com/x.png"}, "URLs are not fetched"),
        ({"type": "file", "file_id": "file_1"}, "source of type base64"),
        ({"type": "base64", "media_type": "image/tiff", "data": PIXEL}, "image/tiff"),
        ({"type": "base64", "media_type": "image/png", "data": "?"}, "base64"),
    ],
)
def test_unavailable_image_is_refused(
    client: httpx.Client, source: dict[str, str], told: str
) -> None:
    response = blocks(client, "user", {"type": "image", "source": source})
    assert response.status_code == 400
    assert told in response.json()["error"]["message"]
