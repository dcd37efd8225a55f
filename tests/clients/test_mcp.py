"""Real MCP servers, over stdio and over HTTP, whose tools the built-in model is made to call.

The clients are the packages `openai`, `anthropic` and `ollama`. The model does not end a forced
call by itself, so each test asks for one call alone.
"""

from __future__ import annotations

import json
import re
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any, cast

import anthropic
import ollama
import openai
import pytest
from support.mcp_programs import PROGRAM, served_over_http
from support.serving import Server, start_server

from tests.clients.questions import WARM

pytestmark = [pytest.mark.client, pytest.mark.server]

SERVERS = ["local", "remote", "documented"]
CONFIGURATION = """
[mcp_servers.local]
command = {command}
args = [{program}]
enabled_tools = ["get_*", "add"]
run_tools = ["get_*"]

[mcp_servers.remote]
url = "{url}"
enabled_tools = ["get_weather"]
run_tools = ["get_weather"]

[mcp_servers.documented]
command = {command}
args = ["weather.py"]
cwd = "{folder}"
run_tools = ["get_weather"]
"""
PAGE = (Path(__file__).parents[2] / "docs" / "mcp.md").read_text(encoding="utf-8")
BLOCKS = re.findall(r"^```python\n(.*?)^```$", PAGE, re.M | re.S)
[DOCUMENTED] = [block for block in BLOCKS if "@server" in block]


@pytest.fixture(scope="module")
def server(models: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    folder = tmp_path_factory.mktemp("home")
    with served_over_http(folder) as url:
        place = folder / "mcp.toml"
        command, program = json.dumps(sys.executable), json.dumps(str(PROGRAM))
        (folder / "weather.py").write_text(DOCUMENTED)
        given = {"command": command, "program": program, "url": url, "folder": folder}
        place.write_text(CONFIGURATION.format(**given))
        server = start_server(models, folder, TAMPU_MCP_FILE=str(place))
        yield server
        server.end()


@pytest.fixture(scope="module")
def client(server: Server) -> Iterator[openai.OpenAI]:
    with openai.OpenAI(base_url=f"{server.url}/v1", api_key="none", max_retries=0) as client:
        yield client


def tool(name: str) -> dict[str, Any]:
    return {"type": "mcp", "server_label": name}


def checked(arguments: str, output: str) -> None:
    """Check that the tool got the model's own arguments, and that this is its result."""
    assert output == f"{json.loads(arguments)['city']}: 31 degrees"


@pytest.mark.parametrize("name", SERVERS)
def test_a_response_has_the_call_and_its_result(client: openai.OpenAI, name: str) -> None:
    given: Any = {
        "model": "demo", "input": WARM, "temperature": 0, "max_output_tokens": 120,
        "tools": [tool(name)], "parallel_tool_calls": False,
        "tool_choice": {"type": "mcp", "server_label": name, "name": "get_weather"},
    }  # fmt: skip
    answer: Any = client.responses.create(**given)
    listed, call, *rest = answer.output
    assert (listed.type, listed.server_label) == ("mcp_list_tools", name)
    assert "get_weather" in [each.name for each in listed.tools]
    assert (call.type, call.name, call.status, call.error) == (
        "mcp_call", "get_weather", "completed", None,
    )  # fmt: skip
    checked(call.arguments, call.output)
    assert [each.type for each in rest] == ["message"]
    assert "31 degrees" in answer.output_text
    with client.responses.stream(**given) as stream:
        kinds = [event.type for event in stream]
    assert "response.mcp_call.completed" in kinds
    assert stream.get_final_response().output[1].model_dump(exclude={"id"}) == call.model_dump(
        exclude={"id"}
    )


def test_a_chat_is_answered_with_the_result(client: openai.OpenAI) -> None:
    answer = client.chat.completions.create(
        model="demo", messages=WARM, temperature=0, tools=cast("Any", [tool("local")]),
        tool_choice={"type": "function", "function": {"name": "local__get_weather"}},
        parallel_tool_calls=False,
    )  # fmt: skip
    choice: Any = answer.choices[0]
    [ran] = choice.message.executed_tools
    assert (ran["server_label"], ran["name"], ran["error"]) == ("local", "get_weather", None)
    checked(ran["arguments"], ran["output"])
    assert (choice.finish_reason, choice.message.tool_calls) == ("stop", None)
    assert "31 degrees" in choice.message.content


@pytest.mark.parametrize("name", ["remote"])
def test_a_message_has_the_blocks_of_the_call_and_its_result(server: Server, name: str) -> None:
    with anthropic.Anthropic(base_url=server.url, api_key="none", max_retries=0) as client:
        toolset: Any = {"type": "mcp_toolset", "mcp_server_name": name}
        choice: Any = {"type": "tool", "name": f"{name}__get_weather"}
        choice |= {"disable_parallel_tool_use": True}
        answer = client.beta.messages.create(
            model="demo", messages=WARM, max_tokens=120, tools=[toolset], tool_choice=choice,
            extra_body={"temperature": 0},
        )  # fmt: skip
    use, result, text = answer.content
    assert use.type == "mcp_tool_use"
    assert (use.server_name, use.name) == (name, "get_weather")
    assert result.type == "mcp_tool_result"
    assert (result.tool_use_id, result.is_error) == (use.id, False)
    part: Any = result.content[0]
    checked(json.dumps(use.input), part.text)
    assert text.type == "text"


def test_the_client_of_ollama_may_offer_a_servers_tools(server: Server) -> None:
    given: Any = {"type": "mcp", "function": {"name": "remote"}}
    with ollama.Client(server.url) as client:
        answer = client.chat("demo", WARM, tools=[given], options={"top_k": 1})
        plain = client.chat("demo", WARM, options={"top_k": 1})
    assert (answer.prompt_eval_count or 0) > 2 * (plain.prompt_eval_count or 0)  # its description
