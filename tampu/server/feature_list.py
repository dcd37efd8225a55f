"""The features of the server; nothing else imports them."""

from __future__ import annotations

from collections.abc import Sequence

from tampu.server.adapters import adapters
from tampu.server.batches import batches
from tampu.server.decisions import decisions
from tampu.server.feature import MakeFeature
from tampu.server.hosted_tools import HostedTools
from tampu.server.llama_server import llama_server
from tampu.server.mcp.servers import MCPServers
from tampu.server.options import ServerOptions
from tampu.server.page import page
from tampu.server.responses import responses
from tampu.server.serving import Serving
from tampu.server.sessions import sessions
from tampu.server.tool_urls import tool_urls
from tampu.server.trace_middleware import tracing

_EVERYWHERE = (tracing, page, responses, decisions, tool_urls, llama_server, adapters)
_ONE_MACHINE = (batches,)
_REPLICAS = (sessions,)


def features_of(options: ServerOptions) -> Sequence[MakeFeature]:
    """Return the features of a server with these options, the first one opened first."""
    return (*_EVERYWHERE, *(_REPLICAS if options.has_replicas else _ONE_MACHINE))


def hosted_tools(options: ServerOptions, serving: Serving) -> HostedTools:
    """Return the tools that the server calls: those of MCP servers."""
    return MCPServers(options.mcp, serving)
