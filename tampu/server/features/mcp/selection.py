"""Which tools of MCP servers a request asks for, in the form of each API.

OpenAI's `{"type": "mcp", "server_label": ...}`, in chats and in Ollama's API too, and Anthropic's
`{"type": "mcp_toolset", "mcp_server_name": ...}`.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from tampu.errors import RequestError, require
from tampu.server.fields.tools import shortened


@dataclass(frozen=True, slots=True)
class Selection:
    """The tools that one entry of `tools` asks for.

    Attributes:
        server: its name.
        named: the tools that are named, all of which must be there.
        allows: whether a tool of this name is wanted, and one that only reads (`True`).
    """

    server: str
    named: tuple[str, ...]
    allows: Callable[[str, bool], bool]


def selection(tool: Mapping[str, Any], urls: Mapping[str, str], where: str) -> Selection | None:
    """Return what a tool of a request asks for; None: it does not name a server in `urls`.

    An entry with the address of another server is its provider's, as agents send it.

    Raises:
        RequestError: for a server that is not configured, or a field that is not supported.
    """
    match tool:
        case {"type": "mcp", "server_label": str(name)}:
            given = tool.get("server_url")
            if tool.get("connector_id") is not None or given not in (None, urls.get(name)):
                return None
            _check_known(name, urls, where)
            return _openai_selection(name, tool, where)
        case {"type": "mcp", "function": {"name": str(name)}}:  # what Ollama's client lets through
            _check_known(name, urls, where)
            return _openai_selection(name, tool, where)
        case {"type": "mcp_toolset", "mcp_server_name": str(name)}:
            _check_known(name, urls, where)
            return _anthropic_selection(name, tool, where)
    return None


def _check_known(name: str, urls: Mapping[str, str], where: str) -> None:
    known = ", ".join(sorted(urls)) or "none"
    message = f"{where}: unknown MCP server {shortened(name)}; the configured ones: {known}"
    require(name in urls, message)


def _openai_selection(name: str, tool: Mapping[str, Any], where: str) -> Selection:
    for field in ("authorization", "headers"):
        message = f"{where}.{field} is not supported: the configuration of the server has it"
        require(not tool.get(field), message)
    message = f"{where}.require_approval: only never is supported"
    require(tool.get("require_approval") in (None, "never"), message)
    reads_only = False
    match tool.get("allowed_tools"):
        case None:
            return Selection(name, (), lambda _name, _reads: True)
        case list(names):
            pass
        case {"tool_names": list(names), **more}:
            reads_only = more.get("read_only") is True
        case {"read_only": bool(reads_only)}:
            return Selection(name, (), lambda _name, reads: reads or not reads_only)
        case _:
            raise RequestError(f"{where}.allowed_tools must be a list of names")
    require(all(isinstance(each, str) for each in names), f"{where}.allowed_tools: not a name")
    wanted = tuple(names)
    return Selection(name, wanted, lambda name, reads: name in wanted and (reads or not reads_only))


def _anthropic_selection(name: str, tool: Mapping[str, Any], where: str) -> Selection:
    default = _is_enabled(tool.get("default_config"), f"{where}.default_config", default=True)
    configs = tool.get("configs") or {}
    require(isinstance(configs, dict), f"{where}.configs must be an object")
    enabled = {
        each: _is_enabled(config, f"{where}.configs.{each}", default=default)
        for each, config in configs.items()
    }
    return Selection(name, tuple(enabled), lambda name, _reads: enabled.get(name, default))


def _is_enabled(config: object, where: str, *, default: bool) -> bool:
    match config:
        case None:
            return default
        case {"enabled": bool(is_enabled)}:
            return is_enabled
        case dict():
            return default
    raise RequestError(f"{where} must be an object")
