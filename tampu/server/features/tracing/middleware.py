"""Traces HTTP requests."""

from __future__ import annotations

import asyncio

from starlette.datastructures import Headers
from starlette.middleware import Middleware
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from tampu.errors import SettingsError
from tampu.server.core import Core
from tampu.server.feature import Feature
from tampu.server.features.tracing.spans import RequestSpans
from tampu.server.features.tracing.tracer import Tracer
from tampu.server.front.logs import HEADER, ROUTE
from tampu.server.serving.tracing import traced

_UNTRACED = ("GET", "HEAD", "OPTIONS")


def tracing(core: Core) -> Feature:
    """Return the feature: traces of requests, if there is an endpoint for them.

    Raises:
        SettingsError: if opentelemetry is not installed.
    """
    if not core.options.otlp_endpoint:
        return Feature()
    tracer = start_tracing(core.options.otlp_endpoint)

    async def close() -> None:
        await asyncio.to_thread(tracer.close)

    return Feature(middleware=[Middleware(TraceMiddleware, tracer=tracer)], close=close)


def start_tracing(endpoint: str) -> Tracer:
    """Return what sends traces to the collector at this URL.

    Raises:
        SettingsError: if opentelemetry is not installed.
    """
    try:
        from tampu.server.features.tracing.otlp import OTLPTracer
    except ImportError as error:
        raise SettingsError(
            f"OTEL_EXPORTER_OTLP_ENDPOINT is {endpoint}, and traces need opentelemetry: "
            f"pip install 'tampu[otel]' ({error})"
        ) from error
    return OTLPTracer(endpoint)


class TraceMiddleware:
    """Middleware: traces requests that may use a model."""

    def __init__(self, app: ASGIApp, tracer: Tracer) -> None:
        """Trace with this tracer."""
        self._app = app
        self._tracer = tracer

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Pass a request on, and trace it."""
        if scope["type"] != "http" or scope["method"] in _UNTRACED:
            await self._app(scope, receive, send)
            return
        method = scope["method"]
        known = {"http.request.method": method, "url.path": scope["path"][:200]}
        known["url.scheme"] = scope["scheme"]
        span = self._tracer.request_span(method, Headers(scope=scope), known)

        async def sending(message: Message) -> None:
            if message["type"] == "http.response.start":
                status = message["status"]
                span.set_attribute("http.response.status_code", status)
                span.set_attribute("tampu.request_id", Headers(raw=message["headers"])[HEADER])
                if status >= 500:
                    self._tracer.fail(span, str(status))
            await send(message)

        try:
            with traced(RequestSpans(self._tracer, span)):
                await self._app(scope, receive, sending)
        finally:
            if ROUTE in scope:
                span.update_name(f"{method} {scope[ROUTE]}")
                span.set_attribute("http.route", scope[ROUTE])
            span.end()
