"""The features of the server; nothing else imports them."""

from __future__ import annotations

from collections.abc import Sequence

from tampu.server.feature import MakeFeature
from tampu.server.features.adapters.routes import adapters
from tampu.server.features.batches.routes import batches
from tampu.server.features.batches.tables import TABLES as BATCHES
from tampu.server.features.cohere.routes import cohere
from tampu.server.features.control_vectors.routes import control_vectors
from tampu.server.features.decisions.routes import decisions
from tampu.server.features.image_urls.fetcher import ImageFetcher
from tampu.server.features.llama_server.routes import llama_server
from tampu.server.features.manage.routes import manage
from tampu.server.features.mcp.servers import MCPServers
from tampu.server.features.openapi.routes import openapi
from tampu.server.features.page.routes import page
from tampu.server.features.responses.routes import responses
from tampu.server.features.responses.tables import TABLES as RESPONSES
from tampu.server.features.sessions.middleware import sessions
from tampu.server.features.speech.realtime.routes import realtime
from tampu.server.features.speech.transcriptions.routes import transcriptions
from tampu.server.features.tokens.routes import tokens
from tampu.server.features.tool_urls.routes import tool_urls
from tampu.server.features.tracing.middleware import tracing
from tampu.server.features.usage.routes import TABLES as USAGE
from tampu.server.features.usage.routes import usage
from tampu.server.fields.media import ImageSource
from tampu.server.options import ServerOptions
from tampu.server.serving.hosted_tools import HostedTools
from tampu.server.serving.serving import Serving

_EVERYWHERE = (
    tracing, usage, page, responses, decisions, cohere, tool_urls, tokens, llama_server, adapters,
    control_vectors, transcriptions, realtime, openapi,
)  # fmt: skip
# Of all features, of those too that a server does not have: the versions count them together.
TABLES = (*BATCHES, *USAGE, *RESPONSES)
_ONE_MACHINE = (manage, batches)
_REPLICAS = (sessions,)


def features_of(options: ServerOptions) -> Sequence[MakeFeature]:
    """Return the features of a server with these options, the first one opened first."""
    return (*_EVERYWHERE, *(_REPLICAS if options.has_replicas else _ONE_MACHINE))


def hosted_tools(options: ServerOptions, serving: Serving) -> HostedTools:
    """Return the tools that the server calls: those of MCP servers."""
    return MCPServers(options.mcp, serving)


def images(options: ServerOptions) -> ImageSource:
    """Return what fetches the images of requests."""
    return ImageFetcher(options.image_urls, options.remote)
