"""Tools of MCP servers: who runs them, and what each API answers."""

from __future__ import annotations

import asyncio
import json
import logging
import re
from pathlib import Path
from typing import Any

import pytest
from support.fake_runner import FakeStart, lines_of
from support.sse import data_of, named_of

from tampu.engine.load_options import LoadOptions
from tampu.server.front.keys import read_keys
from tampu.server.options import ServerOptions
from tests.server.conftest import Site
from tests.server.features.mcp.asking import (
    ALL,
    CHAT,
    FILES,
    MESSAGES,
    OLLAMA,
    RESPONSES,
    SECRET,
    TOOLSET,
    ask,
    body,
    call,
    options,
    said,
    site_of,
    table,
)

pytestmark = pytest.mark.slow


@pytest.mark.parametrize("path", ALL)
def test_a_tool_is_run_and_the_model_goes_on_with_its_result(tooled: Site, path: str) -> None:
    answer = ask(tooled, path, call("add", a=20, b=22))
    assert answer.status_code == 200, answer.text
    assert said(path, answer.json()).endswith("42")
    [(_, runner)] = tooled.start.runners
    first, second = (prompt for prompt, _ in runner.requests)
    assert first.tools[0]["function"]["name"] == "tests__add"
    asked, result = second.messages[-2:]
    assert asked["tool_calls"][0]["function"] == {
        "name": "tests__add", "arguments": {"a": 20, "b": 22},
    }  # fmt: skip
    assert (result["role"], result["content"], result["tool_call_id"]) == (
        "tool", "42", asked["tool_calls"][0]["id"],
    )  # fmt: skip


def test_a_server_over_http_gets_the_headers_of_the_configuration(
    model_folder: Path, tmp_path: Path, http_server: str
) -> None:
    text = table(command=None, args=None, url=http_server)
    site = site_of(model_folder, tmp_path, f'{text}http_headers = {{x-token = "{SECRET}"}}\n')
    assert said(CHAT, ask(site, CHAT, call("header")).json()) == SECRET
    assert said(CHAT, ask(site, CHAT, call("add", a=1, b=2)).json()) == "3"


def test_a_chat_lists_what_was_run_and_has_no_calls_for_the_client(tooled: Site) -> None:
    answer = ask(tooled, CHAT, call("add", a=1, b=2)).json()
    [choice] = answer["choices"]
    assert "tool_calls" not in choice["message"]
    assert choice["finish_reason"] == "stop"
    [ran] = choice["message"]["executed_tools"]
    assert json.loads(ran.pop("arguments")) == {"a": 1, "b": 2}
    assert ran == {
        "index": 0, "type": "mcp", "server_label": "tests", "name": "add", "output": "3",
        "error": None,
    }  # fmt: skip
    assert answer["usage"]["prompt_tokens"] == 6  # of both rounds
    assert answer["usage"]["completion_tokens"] == 4


def test_a_streamed_chat_has_one_beginning_and_one_end(tooled: Site) -> None:
    chunks = data_of(ask(tooled, CHAT, call("add", a=1, b=2), stream=True))
    deltas = [chunk["choices"][0] for chunk in chunks]
    assert [d["finish_reason"] for d in deltas if d["finish_reason"]] == ["stop"]
    assert [d for d in deltas if d["delta"].get("role")] == [deltas[0]]
    [place] = [i for i, d in enumerate(deltas) if "executed_tools" in d["delta"]]
    assert "".join(d["delta"].get("content") or "" for d in deltas[place:]) == "3"


def test_a_stream_of_ollama_has_a_line_of_what_was_run(tooled: Site) -> None:
    lines = lines_of(ask(tooled, OLLAMA, call("add", a=1, b=2), stream=True))
    ran = [tool for line in lines for tool in line["message"].get("executed_tools", ())]
    assert [tool["output"] for tool in ran] == ["3"]
    assert [line["done"] for line in lines].count(True) == 1
    assert not [line for line in lines if "tool_calls" in line["message"]]


def test_a_response_has_the_items_of_openai(tooled: Site) -> None:
    answer = ask(tooled, RESPONSES, call("add", a=1, b=2)).json()
    listed, called, message = answer["output"]
    assert (listed["type"], listed["server_label"]) == ("mcp_list_tools", "tests")
    assert listed["tools"][0]["name"] == "add"
    assert set(listed["tools"][0]["input_schema"]["properties"]) == {"a", "b"}
    assert json.loads(called.pop("arguments")) == {"a": 1, "b": 2}
    assert called == {
        "type": "mcp_call", "id": called["id"], "server_label": "tests", "name": "add",
        "output": "3", "error": None, "approval_request_id": None, "status": "completed",
    }  # fmt: skip
    assert message["content"][0]["text"] == "3"
    assert answer["tools"] == [FILES]


def test_a_streamed_response_has_the_events_of_openai(tooled: Site) -> None:
    events = named_of(ask(tooled, RESPONSES, call("add", a=1, b=2), stream=True))
    assert [event["sequence_number"] for event in events] == [*range(len(events))]
    kinds = [event["type"] for event in events]
    assert kinds.count("response.created") == kinds.count("response.completed") == 1
    called = [event for event in events if event.get("output_index") == 1]
    pieces = [e["delta"] for e in called if e["type"] == "response.mcp_call_arguments.delta"]
    assert json.loads("".join(pieces)) == {"a": 1, "b": 2}
    assert [e["type"] for e in called if not e["type"].endswith("delta")] == [
        "response.output_item.added", "response.mcp_call.in_progress",
        "response.mcp_call_arguments.done", "response.mcp_call.completed",
        "response.output_item.done",
    ]  # fmt: skip


def test_messages_have_the_blocks_of_anthropic(tooled: Site) -> None:
    answer = ask(tooled, MESSAGES, call("add", a=1, b=2)).json()
    use, result, text = answer["content"]
    assert use == {
        "type": "mcp_tool_use", "id": use["id"], "name": "add", "server_name": "tests",
        "input": {"a": 1, "b": 2},
    }  # fmt: skip
    assert result == {
        "type": "mcp_tool_result", "tool_use_id": use["id"], "is_error": False,
        "content": [{"type": "text", "text": "3"}],
    }  # fmt: skip
    assert (text["text"], answer["stop_reason"]) == ("3", "end_turn")


def test_streamed_messages_have_their_blocks_one_after_the_other(tooled: Site) -> None:
    events = named_of(ask(tooled, MESSAGES, call("add", a=1, b=2), stream=True))
    starts = [e["content_block"]["type"] for e in events if e["type"] == "content_block_start"]
    assert starts == ["mcp_tool_use", "mcp_tool_result", "text"]
    order = [e["index"] for e in events if "index" in e]
    assert order == sorted(order)


@pytest.mark.parametrize("path", [RESPONSES, MESSAGES])
def test_what_was_run_may_be_sent_back(tooled: Site, path: str) -> None:
    first = ask(tooled, path, call("add", a=1, b=2)).json()
    if path == RESPONSES:
        more = {"input": [{"role": "user", "content": "x"}, *first["output"],
                          {"role": "user", "content": "Hello"}]}  # fmt: skip
    else:
        said_before = {"role": "assistant", "content": first["content"]}
        asked = {"role": "user", "content": "x"}
        more = {"messages": [asked, said_before, {"role": "user", "content": "Hello"}]}
    answer = ask(tooled, path, "", **more)
    assert said(path, answer.json()) == "Hello"
    _, asked_for, result, words, _ = tooled.start.runners[-1][1].requests[-1][0].messages
    assert asked_for["tool_calls"][0]["function"]["name"] == "tests__add"
    assert (result["role"], result["content"], words["content"]) == ("tool", "3", "3")


def test_a_call_of_a_tool_that_is_not_to_be_run_is_the_clients(
    model_folder: Path, tmp_path: Path
) -> None:
    site = site_of(model_folder, tmp_path, table(run_tools=["fail"]))
    [choice] = ask(site, CHAT, call("add", a=1, b=2)).json()["choices"]
    [wanted] = choice["message"]["tool_calls"]
    assert wanted["function"]["name"] == "tests__add"
    assert choice["finish_reason"] == "tool_calls"
    assert "executed_tools" not in choice["message"]


def test_calls_of_both_kinds_end_the_answer_with_the_clients(tooled: Site) -> None:
    own = {"type": "function", "function": {"name": "mine"}}
    text = call("add", a=1, b=2) + call("mine", server="")
    [choice] = ask(tooled, CHAT, text, tools=[FILES, own]).json()["choices"]
    assert [ran["output"] for ran in choice["message"]["executed_tools"]] == ["3"]
    [wanted] = choice["message"]["tool_calls"]
    assert (wanted["function"]["name"], wanted["index"]) == ("mine", 0)
    assert choice["finish_reason"] == "tool_calls"


def test_only_the_tools_that_are_asked_for_are_offered(tooled: Site) -> None:
    def offered(path: str, tool: dict[str, Any]) -> list[str]:
        assert ask(tooled, path, "x", tools=[tool]).status_code == 200
        prompt, _ = tooled.start.runners[-1][1].requests[-1]
        return [each["function"]["name"] for each in prompt.tools or ()]

    two = ["tests__add", "tests__fail"]
    assert offered(CHAT, FILES | {"allowed_tools": ["add", "fail"]}) == two
    assert offered(OLLAMA, FILES | {"allowed_tools": {"tool_names": ["add"]}}) == two[:1]
    assert offered(RESPONSES, FILES | {"allowed_tools": {"read_only": True}}) == two[:1]
    configs = {"add": {"enabled": True}, "fail": {"enabled": True}}
    some = TOOLSET | {"default_config": {"enabled": False}, "configs": configs}
    assert offered(MESSAGES, some) == two
    assert len(offered(OLLAMA, {"type": "mcp", "function": {"name": "tests"}})) > 2


def test_the_configuration_may_offer_some_tools_only(model_folder: Path, tmp_path: Path) -> None:
    site = site_of(model_folder, tmp_path, table(enabled_tools=["a*"]))
    answer = ask(site, CHAT, "x", tools=[FILES | {"allowed_tools": ["add", "fail"]}])
    assert answer.status_code == 400
    assert "tools[0]: MCP server 'tests' has no tool 'fail'" in answer.text


@pytest.mark.parametrize(
    ("tool", "told"),
    [
        ({"type": "mcp", "server_label": "other"}, "unknown MCP server 'other'"),
        (FILES | {"require_approval": "always"}, "tools[0].require_approval"),
        (FILES | {"headers": {"a": "b"}}, "tools[0].headers"),
        (FILES | {"authorization": "x"}, "tools[0].authorization"),
        (FILES | {"allowed_tools": ["none"]}, "has no tool 'none'"),
        (FILES | {"allowed_tools": 3}, "tools[0].allowed_tools"),
        (FILES | {"allowed_tools": [3]}, "tools[0].allowed_tools"),
        (TOOLSET | {"configs": 3}, "tools[0].configs"),
        (TOOLSET | {"configs": {"none": {}}}, "has no tool 'none'"),
        (TOOLSET | {"default_config": 3}, "tools[0].default_config"),
    ],
)
def test_what_cannot_be_offered_is_refused_by_name(tooled: Site, tool: Any, told: str) -> None:
    path = MESSAGES if tool["type"] == "mcp_toolset" else RESPONSES
    answer = ask(tooled, path, "x", tools=[tool])
    assert answer.status_code == 400, answer.text
    assert told in answer.json()["error"]["message"]


def test_a_server_with_another_address_is_its_providers_and_left_out(tooled: Site) -> None:
    tool = FILES | {"server_url": "https://example.com/mcp"}
    answer = ask(tooled, RESPONSES, "x", tools=[tool])
    assert answer.status_code == 200
    assert "tools left out" in answer.headers["warning"]


def test_more_than_one_choice_is_refused(tooled: Site) -> None:
    answer = ask(tooled, CHAT, "x", n=2)
    assert (answer.status_code, "n must be 1" in answer.text) == (400, True)


def test_a_forced_call_is_forced_once(tooled: Site) -> None:
    text = call("add", a=1, b=2)
    answer = ask(tooled, CHAT, text, tool_choice="required")
    assert said(CHAT, answer.json()) == "3"
    choice = {"type": "mcp", "server_label": "tests", "name": "add"}
    assert said(RESPONSES, ask(tooled, RESPONSES, text, tool_choice=choice).json()) == "3"


def test_a_program_gets_only_the_variables_that_the_configuration_names(
    model_folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TAMPU_API_KEY", SECRET)
    text = table(env_vars=["LANG"]) + 'env = {TOKEN = "x"}\n'
    given = options(tmp_path, text, LANG="C", HOME="/root", AWS_SECRET_ACCESS_KEY=SECRET)
    made = ServerOptions(model=LoadOptions(context=1024), mcp=given)
    site = Site(model_folder, FakeStart(), made)
    names = said(CHAT, ask(site, CHAT, call("variables")).json()).split()
    # Python itself sets this one where the locale is C.
    assert set(names) - {"LC_CTYPE"} == {"LANG", "TOKEN"}
    assert SECRET not in repr(given)


def test_each_call_has_a_line_in_the_log_without_what_was_said(
    tooled: Site, caplog: pytest.LogCaptureFixture
) -> None:
    with caplog.at_level(logging.INFO, "tampu.mcp"):
        ask(tooled, CHAT, call("letters", count=777))
    lines = [record.getMessage() for record in caplog.records if record.name == "tampu.mcp"]
    assert len(lines) == 1
    assert re.fullmatch(
        r"call: server=tests tool=letters key=- state=ok ms=\d+ argument_chars=\d+ "
        r"result_chars=777",
        lines[0],
    )


def test_a_key_may_use_the_servers_that_name_it(model_folder: Path, tmp_path: Path) -> None:
    keys = tmp_path / "keys.toml"
    keys.write_text('[alice]\nkey = "a"\n[bob]\nkey = "b"\n')
    site = site_of(model_folder, tmp_path, table(keys=["ali*"]), keys=read_keys(keys))
    answers = site.call(
        *(
            ("POST", CHAT, {"json": body(CHAT, "x"), "headers": {"authorization": f"Bearer {k}"}})
            for k in "ab"
        )
    )
    assert [answer.status_code for answer in answers] == [200, 403]
    assert "this API key does not allow the MCP server 'tests'" in answers[1].text


def test_tokens_of_tools_are_counted_without_running_them(tooled: Site) -> None:
    path = f"{CHAT}/input_tokens"
    assert ask(tooled, CHAT, "x").status_code == 200
    given = body(CHAT, "x")
    del given["stream"]
    assert tooled.call(("POST", path, {"json": given}))[0].status_code == 200
    prompt, _ = tooled.start.runners[-1][1].requests[-1]
    assert prompt.tools[0]["function"]["name"] == "tests__add"


def test_several_requests_share_a_session(tooled: Site) -> None:
    async def together(client: Any) -> list[str]:
        given = body(CHAT, call("add", a=1, b=2))
        answers = await asyncio.gather(*(client.post(CHAT, json=given) for _ in range(8)))
        return [said(CHAT, answer.json()) for answer in answers]

    assert tooled.run(together) == ["3"] * 8
