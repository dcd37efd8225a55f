"""Requests that offer the tools of an MCP server, to fake models that say what the user says."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

from support.fake_runner import FakeStart
from support.mcp_programs import PROGRAM

from tampu.engine.load_options import LoadOptions
from tampu.server.features.mcp.configuration import MCPOptions, read_mcp_file
from tampu.server.options import ServerOptions
from tests.server.conftest import Site

CHAT = "/v1/chat/completions"
RESPONSES = "/v1/responses"
MESSAGES = "/v1/messages"
OLLAMA = "/api/chat"
ALL = [CHAT, RESPONSES, MESSAGES, OLLAMA]
FILES = {"type": "mcp", "server_label": "tests"}
TOOLSET = {"type": "mcp_toolset", "mcp_server_name": "tests"}
SECRET = "sk-secret"


def call(tool: str, server: str = "tests", **arguments: Any) -> str:
    """Return what a model writes to call a tool."""
    name = f"{server}__{tool}" if server else tool
    return f"<tool_call>{json.dumps({'name': name, 'arguments': arguments})}</tool_call>"


def body(path: str, text: str, tools: Any = None, **more: Any) -> dict[str, Any]:
    """Return a request of an API that offers the server's tools."""
    given = {"model": "m", "tools": [TOOLSET if path == MESSAGES else FILES], "stream": False}
    if tools is not None:
        given["tools"] = tools
    if path == RESPONSES:
        return given | {"input": text} | more
    if path == MESSAGES:
        given["max_tokens"] = 100
    return given | {"messages": [{"role": "user", "content": text}]} | more


def said(path: str, answer: Any) -> str:
    """Return the text of an answer, of whichever API."""
    if path == CHAT:
        return answer["choices"][0]["message"]["content"]
    if path == OLLAMA:
        return answer["message"]["content"]
    parts = answer["content"] if path == MESSAGES else answer["output"]
    if path == RESPONSES:
        parts = [part for item in parts if item["type"] == "message" for part in item["content"]]
    return "".join(part["text"] for part in parts if part["type"] in ("text", "output_text"))


def options(folder: Path, text: str, **variables: str) -> MCPOptions:
    place = folder / "mcp.toml"
    place.write_text(text)
    return read_mcp_file(place, variables.get)


def table(**fields: Any) -> str:
    given = {"command": sys.executable, "args": [str(PROGRAM)], "run_tools": ["*"]}
    given |= {"startup_timeout_sec": 300, "tool_timeout_sec": 300} | fields
    lines = [f"{name} = {json.dumps(value)}" for name, value in given.items() if value is not None]
    return "\n".join(["[mcp_servers.tests]", *lines, ""])


def site_of(model_folder: Path, folder: Path, text: str, **more: Any) -> Site:
    given: dict[str, Any] = {
        "model": LoadOptions(context=1024),
        "mcp": options(folder, text),
    } | more
    return Site(model_folder, FakeStart(), ServerOptions(**given))


def ask(site: Site, path: str, text: str, **more: Any) -> Any:
    return site.call(("POST", path, {"json": body(path, text, **more)}))[0]
