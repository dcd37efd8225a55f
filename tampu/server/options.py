"""A server's options from the settings."""

from __future__ import annotations

from collections.abc import Sequence

from tampu.engine.load_options import options_from_settings
from tampu.server.app import ServerOptions
from tampu.server.file_store import FileLimits
from tampu.server.keys import read_keys
from tampu.server.mcp.configuration import MCPOptions, read_mcp_file
from tampu.settings.settings import Settings, variable
from tampu.store.registry.options import RemoteOptions

_MAX_MODELS = 3


def server_options(settings: Settings, hosts: Sequence[str]) -> ServerOptions:
    """Return the options of a server that is bound to these addresses.

    Raises:
        SettingsError: if the file of keys or of MCP servers is invalid.
    """
    return ServerOptions(
        hosts=tuple(hosts),
        keep_alive_s=float("inf") if settings.keep_alive_s is None else settings.keep_alive_s,
        max_models=settings.max_loaded_models or _MAX_MODELS,
        memory_bytes=settings.memory,
        max_queue=settings.max_queue,
        max_crashes=settings.max_crashes,
        max_repeated_tokens=settings.max_repeated_tokens,
        truncate=settings.truncate,
        slot_save_path=settings.slot_save_path,
        adapters=settings.adapters,
        cache=settings.cache,
        default_model=settings.default_model,
        image_urls=settings.image_urls,
        tool_urls=settings.tool_urls,
        state=settings.state,
        otlp_endpoint=settings.otlp_endpoint,
        files=FileLimits(
            file_bytes=settings.max_file_bytes,
            total_bytes=settings.max_files_bytes,
            files=settings.max_files,
        ),
        max_responses_bytes=settings.max_responses_bytes,
        mcp=read_mcp_file(settings.mcp_file, variable) if settings.mcp_file else MCPOptions(),
        origins=settings.origins,
        use_keys=settings.use_api_keys,
        manage_keys=settings.api_keys,
        keys=read_keys(settings.keys_file) if settings.keys_file else (),
        drain_s=settings.drain_s,
        remote=RemoteOptions.from_settings(settings),
        model=options_from_settings(settings),
    )
