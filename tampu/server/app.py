"""The HTTP application."""

from __future__ import annotations

import logging
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import asynccontextmanager

from starlette.applications import Starlette
from starlette.middleware import Middleware
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route as StarletteRoute
from starlette.routing import WebSocketRoute
from starlette.websockets import WebSocket

from tampu.server.anthropic.routes import anthropic_routes
from tampu.server.core import Core, make_core
from tampu.server.feature import Feature
from tampu.server.feature_list import TABLES, features_of, hosted_tools, images
from tampu.server.front.auth import APIKeyMiddleware
from tampu.server.front.error_handlers import HANDLERS
from tampu.server.front.http_response import FIELDS, WARNING
from tampu.server.front.in_process import Answer, ask_route
from tampu.server.front.logs import HEADER, ROUTE, AccessLogMiddleware
from tampu.server.front.routes import (
    Endpoint,
    FinalSlashMiddleware,
    Route,
    SocketEndpoint,
    VersionPrefixMiddleware,
)
from tampu.server.front.trusted_host import ORIGINS, PreflightMiddleware, TrustedHostMiddleware
from tampu.server.ollama.routes import ollama_routes
from tampu.server.openai.embedding_routes import embedding_routes
from tampu.server.openai.routes import openai_routes
from tampu.server.options import ServerOptions
from tampu.server.serving.model_manager import Start
from tampu.server.serving.monitoring import monitoring_routes
from tampu.server.serving.served_adapters import ServedAdapters
from tampu.store.catalog import Catalog

logger = logging.getLogger(__name__)

OtherMetrics = Callable[[], Awaitable[bytes]]


async def _no_metrics() -> bytes:
    return b""


def create_app(
    options: ServerOptions,
    catalog: Catalog,
    start: Start,
    other_metrics: OtherMetrics = _no_metrics,
    adapters: ServedAdapters | None = None,
) -> Starlette:
    """Return the application that serves a catalog.

    Args:
        options: see `ServerOptions`.
        catalog: the models.
        start: loads a model.
        other_metrics: returns metrics of others, in Prometheus' format.
        adapters: that requests may choose at first; None: there are none, and the server loads
            them.

    Raises:
        SettingsError: if there is an endpoint for traces, and opentelemetry is not installed.
    """
    posts: dict[str, Endpoint] = {}

    async def ask(path: str, body: bytes) -> Answer:
        return await ask_route(posts[path], path, body)

    core = make_core(options, catalog, start, adapters, hosted_tools, images(options), TABLES, ask)
    features = [make(core) for make in features_of(options)]

    async def more_metrics() -> bytes:
        return b"".join(feature.metrics() for feature in features) + await other_metrics()

    routes = _core_routes(core, more_metrics)
    routes += [route for feature in features for route in feature.routes]
    endpoints = [_marked(route) for route in routes]
    pairs = [*zip(routes, endpoints, strict=True)]
    posts |= {route.path: endpoint for route, endpoint in pairs if "POST" in route.methods}
    app = Starlette(
        routes=[
            *(
                StarletteRoute(route.path, endpoint, methods=list(route.methods))
                for route, endpoint in pairs
            ),
            *(
                WebSocketRoute(route.path, _marked_socket(route.path, route.socket))
                for route in routes
                if route.socket is not None
            ),
        ],
        middleware=_middleware(core, features, routes),
        exception_handlers=HANDLERS,
        lifespan=lambda app: _lifespan(app, core, features),
    )
    app.router.redirect_slashes = False
    app.state.routes = routes
    app.state.is_ready = True
    return app


def _core_routes(core: Core, more_metrics: OtherMetrics) -> list[Route]:
    """Return the routes of the three APIs, and of the server itself."""
    serving, images, tools = core.serving, core.images, core.hosted_tools
    return [
        *ollama_routes(serving, tools),
        *openai_routes(serving, images, tools),
        *anthropic_routes(serving, images, tools),
        *embedding_routes(serving, images),
        *monitoring_routes(core.metrics, more_metrics),
    ]


def _middleware(
    core: Core, features: Sequence[Feature], routes: Sequence[Route]
) -> list[Middleware]:
    """Return what is around the routes, the outermost first."""
    options = core.options
    return [
        Middleware(VersionPrefixMiddleware, routes=routes),
        *(each for feature in features for each in feature.middleware),
        Middleware(AccessLogMiddleware, answered=core.metrics.answered),
        Middleware(TrustedHostMiddleware, bound=options.hosts, origins=options.origins),
        Middleware(
            PreflightMiddleware,
            allow_origins=options.origins,
            allow_origin_regex=ORIGINS,
            allow_methods=["GET", "POST", "DELETE", "OPTIONS"],  # browsers never ask for HEAD
            allow_headers=["*"],
            allow_private_network=True,  # a page of an allowed origin that is on the internet
            expose_headers=[HEADER, WARNING],
        ),
        Middleware(FinalSlashMiddleware, routes=routes),
        Middleware(APIKeyMiddleware, routes=routes, keys=core.keys, limiter=core.limiter),
    ]


@asynccontextmanager
async def _lifespan(app: Starlette, core: Core, features: Sequence[Feature]) -> AsyncIterator[None]:
    if not core.state.is_writable:
        logger.warning(
            "%s cannot be written: there are no batches, and neither responses nor the usage "
            "of keys are kept; TAMPU_STATE names another folder",
            core.options.state,
        )
    for feature in features:
        await feature.open()
    yield
    app.state.is_ready = False
    for feature in reversed(features):
        await feature.close()
    await core.close()


def _marked(route: Route) -> Endpoint:
    """Return the endpoint of a route; the scope of its requests has its path and fields."""
    fields = frozenset(() if route.body is None else route.body.__struct_encode_fields__)

    async def endpoint(request: Request) -> Response:
        request.scope[ROUTE] = route.path
        request.scope[FIELDS] = fields
        return await route.endpoint(request)

    return endpoint


def _marked_socket(path: str, handle: SocketEndpoint) -> SocketEndpoint:
    """Return the handler of WebSockets; their scope has the route's path."""

    async def endpoint(connected: WebSocket) -> None:
        connected.scope[ROUTE] = path
        await handle(connected)

    return endpoint
