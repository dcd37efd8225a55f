"""Tools that only their provider can run: agents send them always, the model is not shown them."""

from __future__ import annotations

import json
from typing import Any, get_args

import httpx
import pytest
from anthropic.types import tool_param, tool_union_param
from openai.types.responses import Response
from support.fields import type_of
from support.serving import Server
from support.sse import named_of

pytestmark = [pytest.mark.client, pytest.mark.server]

USER = [{"role": "user", "content": "x"}]
NUMBERS = {"type": "object", "properties": {"a": {"type": "integer"}, "b": {"type": "integer"}}}
ADD = {"type": "function", "name": "add", "parameters": NUMBERS}
KINDS = (
    "web_search", "file_search", "code_interpreter", "image_generation", "mcp", "custom",
    "local_shell", "shell", "apply_patch", "computer", "tool_search",
)  # fmt: skip
CHAT: dict[str, Any] = {
    "messages": USER,
    "tools": [
        {"type": "function", "function": {"name": "add", "parameters": NUMBERS}},
        {"type": "custom", "custom": {"name": "x"}},
        {"type": "web_search"},
    ],
}
RESPONSE: dict[str, Any] = {
    "input": "x",
    "tools": [ADD, {"type": "custom", "name": "x"}, {"type": "web_search"}],
}
MESSAGE: dict[str, Any] = {
    "messages": USER,
    "max_tokens": 99,
    "tools": [
        {"name": "add", "input_schema": NUMBERS},
        {"type": "web_search_20250305", "name": "web_search"},
        {"type": "bash_20250124", "name": "bash"},
    ],
}
WANTED = [
    ("/v1/chat/completions", CHAT, "custom, web_search"),
    ("/v1/chat/completions/input_tokens", CHAT, "custom, web_search"),
    ("/v1/responses", RESPONSE, "custom:x, web_search"),
    ("/v1/responses/input_tokens", RESPONSE, "custom:x, web_search"),
    ("/v1/messages", MESSAGE, "web_search_20250305:web_search, bash_20250124:bash"),
    ("/v1/messages/count_tokens", MESSAGE, "web_search_20250305:web_search, bash_20250124:bash"),
]
FORCED = [
    ("/v1/chat/completions", CHAT, {"type": "custom", "custom": {"name": "x"}}),
    ("/v1/responses", RESPONSE, {"type": "web_search"}),
    ("/v1/responses", RESPONSE, {"type": "custom", "name": "x"}),
    ("/v1/responses", RESPONSE | {"tools": [{"type": "web_search"}]}, "required"),
    ("/v1/messages", MESSAGE, {"type": "tool", "name": "web_search"}),
]


def post(client: httpx.Client, path: str, body: dict[str, Any], **more: Any) -> httpx.Response:
    return client.post(path, json={"model": "pair", "temperature": 0} | body | more)


@pytest.mark.parametrize("is_streaming", [False, True])
@pytest.mark.parametrize(("path", "body", "listed"), WANTED)
def test_a_request_with_tools_that_are_not_functions_is_answered_with_a_warning(
    client: httpx.Client, path: str, body: dict[str, Any], listed: str, is_streaming: bool
) -> None:
    response = post(client, path, body, stream=is_streaming)
    assert response.status_code == 200, response.text
    told = f'299 tampu "tools left out, only functions are supported: {listed}"'
    assert response.headers["warning"] == told
    if "tokens" not in path:
        assert "add" in response.text


@pytest.mark.parametrize(("path", "body"), [(path, body) for path, body, _ in WANTED[1::2]])
def test_the_model_is_shown_the_functions_alone(
    client: httpx.Client, path: str, body: dict[str, Any]
) -> None:
    functions = body | {"tools": body["tools"][:1]}
    alone = post(client, path, functions)
    assert post(client, path, body).json() == alone.json()
    assert "warning" not in alone.headers


def test_one_line_of_the_log_names_the_tools_left_out(
    client: httpx.Client, contract_server: Server
) -> None:
    post(
        client, "/v1/responses", RESPONSE | {"tools": [{"type": "web_search"}, {"type": "of_log"}]}
    )
    lines = [line for line in contract_server.log.read_text().splitlines() if "of_log" in line]
    assert len(lines) == 1
    assert "tools left out, only functions are supported: web_search, of_log" in lines[0]


@pytest.mark.parametrize(("path", "body", "choice"), FORCED)
def test_a_forced_tool_that_is_not_a_function_is_refused(
    client: httpx.Client, path: str, body: dict[str, Any], choice: Any
) -> None:
    response = post(client, path, body, tool_choice=choice)
    assert response.status_code == 400
    assert "tool_choice" in response.json()["error"]["message"]


@pytest.mark.parametrize("kind", KINDS)
def test_every_kind_of_tool_of_a_response_may_be_sent(client: httpx.Client, kind: str) -> None:
    answer = post(client, "/v1/responses", RESPONSE | {"tools": [ADD, {"type": kind}]})
    assert answer.status_code == 200
    assert kind in answer.headers["warning"]


def test_every_kind_of_tool_of_the_anthropic_package_may_be_sent(client: httpx.Client) -> None:
    own = tool_param.ToolParam
    kinds = [type_of(kind) for kind in get_args(tool_union_param.ToolUnionParam) if kind is not own]
    tools = [{"type": kind, "name": "x"} for kind in kinds]
    response = post(client, "/v1/messages", MESSAGE | {"tools": tools})
    assert response.status_code == 200
    assert kinds[0] in response.headers["warning"]
    assert f"and {len(kinds) - 10} more" in response.headers["warning"]


def test_reasoning_of_a_model_that_cannot_is_not_refused_but_told(client: httpx.Client) -> None:
    body = {"model": "talker", "input": "x", "reasoning": {"effort": "high"}}
    response = client.post("/v1/responses", json=body)
    assert response.status_code == 200
    assert "reasoning.effort has no effect" in response.headers["warning"]


def test_allowed_tools_may_name_tools_that_are_left_out(client: httpx.Client) -> None:
    choice = {"type": "allowed_tools", "mode": "auto", "tools": [
        {"type": "function", "name": "add"}, {"type": "web_search"}]}  # fmt: skip
    items = post(client, "/v1/responses", RESPONSE, tool_choice=choice).json()["output"]
    assert [item["name"] for item in items] == ["add", "sub"]


def test_what_a_header_cannot_carry_is_replaced(client: httpx.Client) -> None:
    tools = [{"type": 'a"b\r\nx: y', "name": "é"}]
    response = post(client, "/v1/responses", RESPONSE | {"tools": tools})
    assert 'a?b??x??y:?"' in response.headers["warning"]
    assert "x" not in response.headers


NAMESPACE = {
    "type": "namespace",
    "name": "crm",
    "description": "Customers.",
    "tools": [
        {"type": "function", "name": "find", "parameters": NUMBERS},
        {"type": "custom", "name": "patch"},
    ],
}


@pytest.mark.parametrize("is_streaming", [False, True])
def test_functions_of_a_namespace_are_called_with_its_name_beside_their_own(
    client: httpx.Client, is_streaming: bool
) -> None:
    body = {"model": "namespaced", "input": "x", "tools": [NAMESPACE], "stream": is_streaming}
    response = client.post("/v1/responses", json=body)
    assert response.headers["warning"].endswith(': custom:patch"')
    answer = named_of(response)[-1]["response"] if is_streaming else response.json()
    Response.model_validate(answer)
    [call] = answer["output"]
    assert (call["namespace"], call["name"]) == ("crm", "find")
    assert json.loads(call["arguments"]) == {"a": 1, "b": 2}


def test_a_call_in_a_namespace_comes_back_under_the_name_that_the_model_knows(
    client: httpx.Client,
) -> None:
    def tokens(**callee: str) -> int:
        call = {"type": "function_call", "call_id": "c", "arguments": "{}", **callee}
        result = {"type": "function_call_output", "call_id": "c", "output": "y"}
        body = {"model": "pair", "input": [*USER, call, result]}
        response = client.post("/v1/responses/input_tokens", json=body)
        return int(response.json()["input_tokens"])

    assert tokens(namespace="crm", name="find") == tokens(name="crm__find")
    assert tokens(namespace="mcp__x__", name="find") == tokens(name="mcp__x__find")


@pytest.mark.parametrize("inside", [5, {"type": "function"}, {"name": "x"}])
def test_an_invalid_tool_of_a_namespace_is_refused_with_its_place(
    client: httpx.Client, inside: Any
) -> None:
    body = {"model": "pair", "input": "x", "tools": [NAMESPACE | {"tools": [inside]}]}
    response = client.post("/v1/responses", json=body)
    assert response.status_code == 400
    assert "tools[0].tools[0]" in response.json()["error"]["message"]
