"""A server's options: its settings, and what the files and flags of its command say."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, fields
from pathlib import Path

from tampu.engine.load_options import LoadOptions, options_from_settings
from tampu.server.features.mcp.configuration import MCPOptions, read_mcp_file
from tampu.server.front.keys import Key, read_keys
from tampu.server.serving.control_vectors import ServedControlVector
from tampu.settings.server_settings import ServerSettings
from tampu.settings.settings import Settings, variable
from tampu.store.registry.options import RemoteOptions


@dataclass(frozen=True, kw_only=True)
class ServerOptions(ServerSettings):
    """The options of a server, besides its settings.

    Attributes:
        hosts: the addresses it is bound to.
        keys: API keys with names and limits.
        cache: the folder for what is converted; None: as the environment says.
        state: the folder of what is kept across restarts; None: nothing is.
        has_replicas: whether the models are replicas on other machines: no request can load them
            with other options, and there are no routes for what only one machine has.
        control_vectors: those that requests have or may choose; their names differ.
        mcp: the MCP servers whose tools requests may name.
        model: how models are loaded unless a request says otherwise.
        remote: how registries are reached.
    """

    hosts: tuple[str, ...] = ("127.0.0.1",)
    keys: tuple[Key, ...] = ()
    cache: Path | None = None
    state: Path | None = None
    has_replicas: bool = False
    control_vectors: tuple[ServedControlVector, ...] = ()
    mcp: MCPOptions = field(default_factory=MCPOptions)
    model: LoadOptions = field(default_factory=LoadOptions)
    remote: RemoteOptions = field(default_factory=RemoteOptions)


def server_options(settings: Settings, hosts: Sequence[str]) -> ServerOptions:
    """Return the options of a server that is bound to these addresses.

    Raises:
        SettingsError: if the file of keys or of MCP servers is invalid.
    """
    return ServerOptions(
        **{each.name: getattr(settings, each.name) for each in fields(ServerSettings)},
        hosts=tuple(hosts),
        cache=settings.cache,
        state=settings.state,
        mcp=read_mcp_file(settings.mcp_file, variable) if settings.mcp_file else MCPOptions(),
        keys=read_keys(settings.keys_file) if settings.keys_file else (),
        remote=RemoteOptions.from_settings(settings),
        model=options_from_settings(settings),
    )
