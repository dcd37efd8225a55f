"""Tools, roles and parts that are wrong, in every API: refused with their place."""

from __future__ import annotations

from typing import Any

import httpx
import pytest

pytestmark = [pytest.mark.server, pytest.mark.slow]

USER = [{"role": "user", "content": "x"}]
OBJECT = {"type": "object"}
CHATS: dict[str, dict[str, Any]] = {
    "/v1/chat/completions": {"messages": USER},
    "/v1/responses": {"input": USER},
    "/v1/messages": {"messages": USER, "max_tokens": 60},
    "/api/chat": {"messages": USER, "stream": False},
}


def tool(path: str, name: str = "add", schema: Any = OBJECT) -> dict[str, Any]:
    """Return a function in the form of a path's API."""
    if path == "/v1/messages":
        return {"name": name, "input_schema": schema}
    if path == "/v1/responses":
        return {"type": "function", "name": name, "parameters": schema}
    return {"type": "function", "function": {"name": name, "parameters": schema}}


def forced(path: str, name: str = "") -> Any:
    """Return the choice of a tool, or of any, in the form of a path's API."""
    if path == "/v1/messages":
        return {"type": "tool", "name": name} if name else {"type": "any"}
    return {"type": "function", "function": {"name": name}} if name else "required"


def ask(client: httpx.Client, path: str, **more: Any) -> httpx.Response:
    return client.post(path, json={"model": "pair", **CHATS[path], **more})


def message(response: httpx.Response) -> str:
    """Return the message of a refusal."""
    assert response.status_code == 400, response.text
    error = response.json()["error"]
    return error if isinstance(error, str) else str(error["message"])


@pytest.mark.parametrize("path", CHATS)
def test_two_tools_of_one_name_are_refused(client: httpx.Client, path: str) -> None:
    told = message(ask(client, path, tools=[tool(path), tool(path)]))
    assert told == "tools[1]: its name is that of tools[0], 'add'"


@pytest.mark.parametrize("path", CHATS)
def test_a_broken_schema_of_a_tool_is_refused_even_if_no_tool_is_forced(
    client: httpx.Client, path: str
) -> None:
    wrong = {"type": "object", "properties": {"a": {"type": "objekt"}}}
    told = message(ask(client, path, tools=[tool(path), tool(path, "sub", wrong)]))
    assert told == "tools[1]: schema: /properties/a/type: 'objekt' is not a JSON type"


@pytest.mark.parametrize("path", CHATS)
def test_a_keyword_that_is_not_enforced_is_named_in_a_header_where_the_call_follows_the_schema(
    client: httpx.Client, path: str
) -> None:
    ignored = {"type": "object", "not": {"required": ["b"]}, "discriminator": {}}
    tools = [tool(path, "sub"), tool(path, schema=ignored)]
    few = {"options": {"num_predict": 1}}
    assert "warning" not in ask(client, path, tools=tools, **few).headers
    for stream in (False, True):
        response = ask(client, path, tools=tools, tool_choice=forced(path), stream=stream, **few)
        assert response.status_code == 200
        told = response.headers["warning"]
        assert told == '299 tampu "tools[1]: schema: /not: ignored, it cannot be enforced"'


@pytest.mark.parametrize("path", CHATS)
def test_a_choice_that_cannot_be_is_refused_with_the_reason(
    client: httpx.Client, path: str
) -> None:
    def told(tools: list[Any], name: str = "") -> str:
        return message(ask(client, path, tools=tools, tool_choice=forced(path, name)))

    left_out = {"type": "web_search_2", "name": "web_search"}
    shown = "web_search_2:web_search"
    assert told([]) == "tool_choice: there are no tools to call"
    assert told([tool(path)], "mul") == "tool_choice: unknown tool 'mul'"
    assert told([left_out]) == f"tool_choice: only functions can be called, not {shown}"
    assert told([tool(path), left_out], "web_search").endswith(f"can be called, not {shown}")


@pytest.mark.parametrize("path", CHATS)
@pytest.mark.parametrize("other", CHATS)
def test_a_tool_in_the_form_of_another_api_is_refused_with_the_own(
    client: httpx.Client, path: str, other: str
) -> None:
    given = tool(other)
    if given == tool(path):
        return
    told = message(ask(client, path, tools=[given]))
    assert told.startswith("tools[0] must be {")
    assert all(f'"{key}"' in told for key in tool(path))


def test_a_tool_of_a_message_needs_its_schema(client: httpx.Client) -> None:
    told = message(ask(client, "/v1/messages", tools=[{"name": "add"}]))
    assert told == 'tools[0] must be {"name": ..., "input_schema": {...}}'


def test_ollamas_chat_takes_a_choice_and_leaves_out_other_tools(client: httpx.Client) -> None:
    tools = [tool("/api/chat"), tool("/api/chat", "sub"), {"type": "web_search"}]
    options = {"temperature": 0}

    def calls(**more: Any) -> list[str]:
        response = ask(client, "/api/chat", tools=tools, options=options, **more)
        assert response.status_code == 200, response.text
        assert response.headers["warning"].endswith('functions are supported: web_search"')
        found = response.json()["message"].get("tool_calls", [])
        return [call["function"]["name"] for call in found]

    assert calls() == ["add", "sub"]
    assert calls(tool_choice="none") == []
    assert calls(parallel_tool_calls=False) == ["add"]


def test_ollamas_chat_calls_the_tool_that_is_named(client: httpx.Client) -> None:
    nothing = {"type": "object", "properties": {}, "additionalProperties": False}
    tools = [tool("/api/chat", name, nothing) for name in ("add", "sub")]
    choice = forced("/api/chat", "sub")
    answer = ask(client, "/api/chat", tools=tools, tool_choice=choice, think=False).json()
    assert {call["function"]["name"] for call in answer["message"]["tool_calls"]} == {"sub"}


@pytest.mark.parametrize(
    ("path", "more", "told"),
    [
        ("/v1/chat/completions", {"messages": [*USER, {"role": "robot", "content": "x"}]},
         "messages[1].role must be system, developer, user, assistant, tool, not 'robot'"),
        ("/api/chat", {"messages": [{"role": "robot", "content": "x"}]},
         "messages[0].role must be system"),
        ("/v1/responses", {"input": [{"role": "robot", "content": "x"}]},
         "input[0].role must be system"),
        ("/v1/chat/completions", {"messages": [{"role": "user"}]},
         "messages[0].content is missing"),
        ("/v1/chat/completions", {"messages": [{"role": "user", "content": [{"type": "text"}]}]},
         "messages[0].content[0]: text needs text"),
        ("/v1/responses", {"input": [{"role": "user", "content": [{"type": "input_text"}]}]},
         "input[0].content[0]: input_text needs text"),
        ("/v1/responses", {"input": [{"type": "function_call", "name": "add"}]},
         "input[0]: function_call needs call_id, name and arguments"),
        *(("/v1/responses", {"input": [{"role": "user", "content": "x"}, {
            "type": "function_call_output", "call_id": "c", "output": output}]},
           f"input[1].output{told}")
          for output, told in (
              ({"a": 1}, " must be a text or a list of parts"), (5, " must be a text"),
              ([5], " must be a text"), (None, " must be a text"),
              ([{"type": "input_text"}], "[0]: input_text needs text"))),
        ("/v1/messages", {"messages": [{"role": "user", "content": [{"type": "tool_result"}]}]},
         "messages[0].content[0]: tool_result needs tool_use_id"),
        ("/v1/messages", {"messages": [{"role": "user", "content": [{"type": "t" * 99}]}]},
         f"messages[0].content[0]: '{'t' * 49}... is not supported here"),
        ("/v1/chat/completions", {"return_token_ids": True},
         "return_token_ids is not supported: only false"),
    ],
)  # fmt: skip
def test_what_is_wrong_is_told_with_its_place(
    client: httpx.Client, path: str, more: Any, told: str
) -> None:
    assert message(ask(client, path, **more)).startswith(told)


@pytest.mark.parametrize("path", [*CHATS, "/v1/completions", "/api/generate", "/v1/embeddings",
                                  "/api/embed"])  # fmt: skip
def test_truncation_means_the_same_everywhere_and_must_not_contradict_truncate(
    client: httpx.Client, path: str
) -> None:
    texts = {"/v1/embeddings": {"input": "x"}, "/api/embed": {"input": "x"}}
    body: dict[str, Any] = CHATS.get(path) or texts.get(path) or {"prompt": "x"}
    model = {"model": "embedder" if path in texts else "talker", "stream": False}
    for truncation, truncate in (("auto", False), ("disabled", True)):
        given = model | body | {"truncation": truncation, "truncate": truncate}
        told = message(client.post(path, json=given))
        assert told == "truncate and truncation contradict each other: give one"
    told = message(client.post(path, json=model | body | {"truncation": "some"}))
    assert told == "truncation must be auto or disabled"


def test_a_chat_may_be_cut_by_truncation(client: httpx.Client) -> None:
    body = {"model": "talker", "messages": [{"role": "user", "content": "long " * 40}] * 20,
            "options": {"num_ctx": 512}}  # fmt: skip
    assert client.post("/v1/chat/completions", json=body).status_code == 400
    cut = client.post("/v1/chat/completions", json=body | {"truncation": "auto"})
    assert cut.status_code == 200
    assert "were dropped" in cut.headers["warning"]


@pytest.mark.parametrize("path", ["/foo", "/v1/foo", "/api/foo"])
def test_an_unknown_path_says_where_the_known_ones_are(client: httpx.Client, path: str) -> None:
    response = client.get(path)
    assert response.status_code == 404
    assert f"there is no path {path}: /openapi.json lists the paths" in response.text
