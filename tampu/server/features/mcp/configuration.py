"""MCP servers in a TOML file (MCP_FILE), whose fields have Codex's names where it has them too.

max_rounds = 10

[mcp_servers.files]
command = "npx"
args = ["-y", "@modelcontextprotocol/server-filesystem", "/srv/files"]
env_vars = ["PATH", "HOME"]
run_tools = ["read_*", "list_directory"]

[mcp_servers.docs]
url = "https://mcp.example/mcp"
http_headers = {Authorization = "Bearer ..."}
enabled_tools = ["search"]
run_tools = ["search"]
"""

from __future__ import annotations

import importlib.util
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Annotated

import msgspec

from tampu.errors import SettingsError
from tampu.settings.config_file import read_toml

_NAME = re.compile(r"[A-Za-z0-9][\w-]{0,63}", re.ASCII)
_Seconds = Annotated[float, msgspec.Meta(gt=0, le=3600)]
_Patterns = tuple[str, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class MCPServer:
    """One server: a program that is started (`command`), or an address (`url`).

    Attributes:
        name: by which requests name it.
        command: the program and its arguments; empty: it has an address.
        env: the whole environment of the program.
        cwd: the folder in which it is started.
        url: the address of a server over streamable HTTP.
        headers: of each request to it.
        enabled_tools: names of the tools that are offered, with `*` for any characters.
        run_tools: names of those that are run here; a call of another one is the client's.
        keys: names of the API keys that may use it.
        startup_s: how long its start, and a list of its tools, may take.
        tool_s: how long a call may take.
        max_output: characters of a result; a longer one is cut.
        max_concurrent: calls at a time.
    """

    name: str
    command: tuple[str, ...] = ()
    env: Mapping[str, str] = field(default_factory=dict, repr=False)
    cwd: str | None = None
    url: str = ""
    headers: Mapping[str, str] = field(default_factory=dict, repr=False)
    enabled_tools: _Patterns = ("*",)
    run_tools: _Patterns = ()
    keys: _Patterns = ("*",)
    startup_s: float = 10.0
    tool_s: float = 60.0
    max_output: int = 65_536
    max_concurrent: int = 4

    def offers(self, tool: str) -> bool:
        """Whether a tool may be offered."""
        return _fits(tool, self.enabled_tools)

    def runs(self, tool: str) -> bool:
        """Whether calls of a tool are run here."""
        return _fits(tool, self.run_tools)

    def serves(self, key: str) -> bool:
        """Whether the key of this name may use it."""
        return _fits(key, self.keys)


@dataclass(frozen=True, slots=True, kw_only=True)
class MCPOptions:
    """The servers, and after how many rounds of calls an answer must end."""

    servers: Sequence[MCPServer] = ()
    max_rounds: int = 10


class _Entry(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A table of the file."""

    command: str | None = None
    args: tuple[str, ...] = ()
    env: dict[str, str] = {}
    env_vars: tuple[str, ...] = ()
    cwd: str | None = None
    url: str | None = None
    http_headers: dict[str, str] = {}
    enabled_tools: _Patterns = ("*",)
    run_tools: _Patterns = ()
    keys: _Patterns = ("*",)
    startup_timeout_sec: _Seconds = 10.0
    tool_timeout_sec: _Seconds = 60.0
    max_output_chars: Annotated[int, msgspec.Meta(ge=1, le=2**24)] = 65_536
    max_concurrent_calls: Annotated[int, msgspec.Meta(ge=1, le=256)] = 4


class _File(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The file."""

    mcp_servers: dict[str, _Entry]
    max_rounds: Annotated[int, msgspec.Meta(ge=1, le=100)] = 10


def read_mcp_file(path: Path, variable: Callable[[str], str | None]) -> MCPOptions:
    """Return the servers of a file; `variable` returns the environment's value of a name.

    Raises:
        SettingsError: if it cannot be read, is wrong (the message names the server), or the package
            `mcp` is not installed.
    """
    if importlib.util.find_spec("mcp") is None:
        raise SettingsError(f"{path}: MCP servers need the package mcp: pip install 'tampu[mcp]'")
    try:
        given = msgspec.convert(read_toml(path), _File)
    except msgspec.ValidationError as error:
        raise SettingsError(f"{path}: {error}") from None
    servers = [_server(path, name, entry, variable) for name, entry in given.mcp_servers.items()]
    return MCPOptions(servers=servers, max_rounds=given.max_rounds)


def _server(
    path: Path, name: str, entry: _Entry, variable: Callable[[str], str | None]
) -> MCPServer:
    where = f"{path}: mcp_servers.{name}"
    if not _NAME.fullmatch(name):
        raise SettingsError(f"{where}: a name has letters, digits, '_' and '-', at most 64")
    if (entry.command is None) == (entry.url is None):
        raise SettingsError(f"{where}: it needs either command or url")
    if entry.url is not None and not entry.url.startswith(("http://", "https://")):
        raise SettingsError(f"{where}: url must begin with http:// or https://")
    passed = {each: variable(each) for each in entry.env_vars}
    missing = [each for each, value in passed.items() if value is None]
    if missing:
        raise SettingsError(f"{where}: env_vars: {missing[0]} is not set")
    named = {each: value for each, value in passed.items() if value is not None}
    return MCPServer(
        name=name,
        command=() if entry.command is None else (entry.command, *entry.args),
        env=named | entry.env,
        cwd=entry.cwd,
        url=entry.url or "",
        headers=entry.http_headers,
        enabled_tools=entry.enabled_tools,
        run_tools=entry.run_tools,
        keys=entry.keys,
        startup_s=entry.startup_timeout_sec,
        tool_s=entry.tool_timeout_sec,
        max_output=entry.max_output_chars,
        max_concurrent=entry.max_concurrent_calls,
    )


def _fits(name: str, patterns: Sequence[str]) -> bool:
    return any(fnmatchcase(name, pattern) for pattern in patterns)
