"""The HTTP application."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from http import HTTPStatus

import msgspec
from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.middleware import Middleware
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route as StarletteRoute

from tampu.errors import TampuError
from tampu.server.adapters import adapter_routes
from tampu.server.admission import Admission
from tampu.server.anthropic import anthropic_routes
from tampu.server.auth import APIKeyMiddleware
from tampu.server.batch_runner import BatchRunner
from tampu.server.batch_store import BatchStore
from tampu.server.batches import batch_routes
from tampu.server.caller import Caller
from tampu.server.conversation_store import ConversationStore
from tampu.server.conversations import conversation_routes
from tampu.server.crash_loop import CrashLoopBackoff
from tampu.server.decisions import decision_routes
from tampu.server.embeddings import embedding_routes
from tampu.server.file_store import FileStore
from tampu.server.formats import format_routes
from tampu.server.http_response import (
    FIELDS,
    SHORT,
    WARNING,
    JSONResponse,
    error_response,
    exception_response,
)
from tampu.server.image_urls import ImageFetcher
from tampu.server.in_process import ask_route
from tampu.server.kept_items import KeptItems
from tampu.server.keys import unlimited_keys
from tampu.server.limiter import Limiter
from tampu.server.live import LiveFeed, live_routes
from tampu.server.llama_server import llama_server_routes
from tampu.server.loading import loading_routes
from tampu.server.logs import HEADER, ROUTE, AccessLogMiddleware
from tampu.server.manage import manage_routes
from tampu.server.mcp.servers import MCPServers
from tampu.server.metrics import CONTENT_TYPE, Metrics
from tampu.server.model_manager import ModelManager, Start
from tampu.server.ollama import ollama_routes
from tampu.server.openai import openai_routes
from tampu.server.openapi import describe
from tampu.server.options import ServerOptions
from tampu.server.page import page_routes
from tampu.server.parameters import parameter_routes
from tampu.server.response_store import ResponseStore
from tampu.server.routes import (
    VERSION,
    Access,
    Endpoint,
    FinalSlashMiddleware,
    Route,
    VersionPrefixMiddleware,
    get,
    near_path,
)
from tampu.server.saved_slots import saved_slot_routes
from tampu.server.served_adapters import ServedAdapters
from tampu.server.serving import Serving
from tampu.server.session import SessionMiddleware
from tampu.server.state import State
from tampu.server.stored_responses import stored_response_routes
from tampu.server.threadpool import IterationPool
from tampu.server.tokens import token_routes
from tampu.server.tool_urls import ToolURLs, tool_url_routes
from tampu.server.trace_middleware import TraceMiddleware
from tampu.server.tracing import start_tracing
from tampu.server.trusted_host import ORIGINS, PreflightMiddleware, TrustedHostMiddleware
from tampu.server.usage import KeyUsage, usage_routes
from tampu.settings.server_settings import ServerSettings
from tampu.store.catalog import Catalog

logger = logging.getLogger(__name__)

_VOCABULARY_SECONDS = 60.0
_MAX_VOCABULARIES = 4
_ROWS_PER_SLOT = 2  # of batches: one is prepared while another runs


async def _no_metrics() -> bytes:
    return b""


def create_app(
    options: ServerOptions,
    catalog: Catalog,
    start: Start,
    other_metrics: Callable[[], Awaitable[bytes]] = _no_metrics,
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
    metrics = Metrics()
    tracer = start_tracing(options.otlp_endpoint) if options.otlp_endpoint else None
    serving = _serving(options, catalog, start, metrics, adapters)
    pool = IterationPool()
    mcp = MCPServers(options.mcp, serving)
    images = ImageFetcher(options.image_urls, options.remote)
    tools = ToolURLs(options.tool_urls, options.remote)
    state, limiter = State(options.state), Limiter()
    usage = KeyUsage(state, limiter, metrics.key_used)
    metrics.used = usage.used
    keys = [*unlimited_keys(options.use_api_keys, options.api_keys), *options.keys]
    files = FileStore(state, options)
    batches = BatchStore(state, files)
    # The requests of a conversation may come to several servers of one cluster.
    kept_bytes = 0 if options.has_replicas else options.max_responses_bytes
    responses = ResponseStore(state, kept_bytes)
    kept = KeptItems(responses, ConversationStore(state, kept_bytes))
    runner = BatchRunner(
        state,
        batches,
        lambda path, body: ask_route(posts[path], path, body),
        lambda name: next((k.caller for k in keys if k.caller.name == name), Caller(name=name)),
        limiter,
        at_once=_ROWS_PER_SLOT * options.model.max_slots,
    )
    routes = [
        *page_routes(),
        *ollama_routes(serving, mcp),
        *openai_routes(serving, images, mcp, kept),
        *anthropic_routes(serving, images, mcp),
        *token_routes(serving),
        *format_routes(serving),
        *decision_routes(serving, images),
        *usage_routes(usage),
        *parameter_routes(),
        *tool_url_routes(tools),
        *llama_server_routes(serving),
        *embedding_routes(serving),
        *adapter_routes(serving, options.adapters),
        *_health_routes(metrics, other_metrics),
    ]
    if not options.has_replicas:
        feed = LiveFeed(serving.models, metrics, metrics.llama_server.waiting)
        routes += [
            *manage_routes(serving, pool, options.remote),
            *batch_routes(files, batches, runner),
            *stored_response_routes(responses),
            *conversation_routes(kept, images),
            *loading_routes(serving),
            *saved_slot_routes(serving, options.slot_save_path),
            *live_routes(feed),
        ]
    routes = [*routes, describe(routes)]
    endpoints = [_marked(route) for route in routes]
    pairs = zip(routes, endpoints, strict=True)
    posts = {route.path: endpoint for route, endpoint in pairs if "POST" in route.methods}

    @asynccontextmanager
    async def lifespan(app: Starlette) -> AsyncIterator[None]:
        if not (options.has_replicas or state.is_writable):
            logger.warning(
                "%s cannot be written: there are no batches, and neither responses nor the usage "
                "of keys are kept; TAMPU_STATE names another folder",
                options.state,
            )
        if keys:
            await usage.load()
        await runner.resume()
        yield
        app.state.is_ready = False
        await runner.close()
        await mcp.close()
        tools.close()
        await serving.close()
        await state.close()
        await pool.close()
        if tracer is not None:
            await asyncio.to_thread(tracer.close)

    app = Starlette(
        routes=[
            StarletteRoute(route.path, endpoint, methods=list(route.methods))
            for route, endpoint in zip(routes, endpoints, strict=True)
        ],
        middleware=[  # the outermost first
            Middleware(VersionPrefixMiddleware, routes=routes),
            *([] if tracer is None else [Middleware(TraceMiddleware, tracer=tracer)]),
            Middleware(AccessLogMiddleware, metrics=metrics),
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
            *([Middleware(SessionMiddleware)] if options.has_replicas else []),
            Middleware(APIKeyMiddleware, routes=routes, keys=keys, limiter=limiter),
        ],
        exception_handlers={TampuError: _tampu_error, HTTPException: _http_error, Exception: _bug},
        lifespan=lifespan,
    )
    app.router.redirect_slashes = False
    app.state.routes = routes
    app.state.is_ready = True
    return app


def _serving(
    options: ServerOptions,
    catalog: Catalog,
    start: Start,
    metrics: Metrics,
    adapters: ServedAdapters | None,
) -> Serving:
    models = ModelManager(
        start,
        options=options.model,
        keep_alive_s=options.keep_alive_s,
        max_models=options.max_loaded_models or ServerSettings.max_loaded_models,
        memory_bytes=options.memory,
        loaded=metrics.loaded,
        crashed=metrics.crashed,
        computed=metrics.llama_server.computed,
        crash_backoff=CrashLoopBackoff(options.max_crashes),
        may_reload=not options.has_replicas,
    )
    vocabularies = ModelManager(
        start,
        options=msgspec.structs.replace(options.model, vocabulary_only=True),
        keep_alive_s=min(_VOCABULARY_SECONDS, options.keep_alive_s or _VOCABULARY_SECONDS),
        max_models=_MAX_VOCABULARIES,
        crash_backoff=CrashLoopBackoff(options.max_crashes),
    )
    admission = Admission(options.max_queue)
    metrics.gauge("tampu_requests_waiting", "Queued requests.", lambda: admission.waiting)
    metrics.llama_server.waiting = lambda: admission.waiting
    metrics.llama_server.running = lambda: sum(model.users for model in models.models())
    metrics.model_gauge(
        "tampu_model_memory_bytes",
        "Memory of the loaded models.",
        lambda: [(m.entry.name, m.runner.facts.memory_bytes) for m in models.models()],
    )
    metrics.model_gauge(
        "tampu_model_requests",
        "Requests that use a model.",
        lambda: [(model.entry.name, model.users) for model in models.models()],
    )
    return Serving(
        models,
        vocabularies,
        catalog,
        admission,
        metrics,
        max_repeated_tokens=options.max_repeated_tokens or None,
        truncate=options.truncate,
        default_model=options.default_model,
        adapters=ServedAdapters(options.cache) if adapters is None else adapters,
    )


def _health_routes(metrics: Metrics, other_metrics: Callable[[], Awaitable[bytes]]) -> list[Route]:
    """Return the routes for monitoring."""

    async def health(_: Request) -> Response:
        """`GET /health`: whether the server is alive."""
        return JSONResponse({"status": "ok"})

    async def ready(request: Request) -> Response:
        """`GET /ready`: whether it accepts requests; 503 during shutdown."""
        if request.app.state.is_ready:
            return JSONResponse({"status": "ready"})
        return JSONResponse({"status": "ending"}, HTTPStatus.SERVICE_UNAVAILABLE)

    async def show(_: Request) -> Response:
        """`GET /metrics`: counters and histograms for Prometheus."""
        headers = {"content-type": CONTENT_TYPE, "process-start-time-unix": str(metrics.started)}
        return Response(metrics.show() + await other_metrics(), headers=headers)

    return [
        get("/health", health, Access.OPEN),
        get("/v1/health", health, Access.OPEN),  # llama-server's
        get("/ready", ready, Access.OPEN),
        get("/metrics", show),
    ]


def _marked(route: Route) -> Endpoint:
    """Return the endpoint of a route; the scope of its requests has its path and fields."""
    fields = frozenset(() if route.body is None else route.body.__struct_encode_fields__)

    async def endpoint(request: Request) -> Response:
        request.scope[ROUTE] = route.path
        request.scope[FIELDS] = fields
        return await route.endpoint(request)

    return endpoint


async def _tampu_error(request: Request, error: Exception) -> Response:
    known = error if isinstance(error, TampuError) else TampuError(str(error))
    return exception_response(known, request.scope)


async def _http_error(request: Request, error: Exception) -> Response:
    status = error.status_code if isinstance(error, HTTPException) else 500
    path = request.scope["path"]
    headers = error.headers if isinstance(error, HTTPException) else None
    message = HTTPStatus(status).phrase.lower()
    if status == HTTPStatus.NOT_FOUND:
        written = path.removeprefix(VERSION) if request.scope.get(SHORT) else path
        near = near_path(written, request.app.state.routes)
        hint = f"did you mean {near}? " if near else ""
        message = f"there is no path {written[:200]}: {hint}/openapi.json lists the paths"
    return error_response(path, status, message, headers)


async def _bug(request: Request, error: Exception) -> Response:
    logger.error("%s %s failed: %r", request.method, request.scope["path"], error)
    return error_response(request.scope["path"], 500, "internal error; see the server's log")
