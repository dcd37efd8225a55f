"""The routes for monitoring: health, readiness, metrics."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from http import HTTPStatus

from starlette.requests import Request
from starlette.responses import Response

from tampu.server.front.http_response import JSONResponse
from tampu.server.front.routes import Access, Route, get
from tampu.server.serving.metrics import CONTENT_TYPE, Metrics


def monitoring_routes(
    metrics: Metrics, more_metrics: Callable[[], Awaitable[bytes]]
) -> list[Route]:
    """Return the routes; `more_metrics` returns more metrics, in Prometheus' format."""

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
        return Response(metrics.show() + await more_metrics(), headers=headers)

    return [
        get("/health", health, Access.OPEN),
        get("/v1/health", health, Access.OPEN),  # llama-server's
        get("/ready", ready, Access.OPEN),
        get("/metrics", show),
    ]
