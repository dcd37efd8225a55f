"""Health, readiness and metrics."""

from __future__ import annotations

from http import HTTPStatus

from starlette.requests import Request
from starlette.responses import Response

from tampu.server.http_response import JSONResponse
from tampu.server.metrics import CONTENT_TYPE, Metrics
from tampu.server.routes import Route, get


def health_routes(metrics: Metrics) -> list[Route]:
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
        return Response(metrics.show(), headers={"content-type": CONTENT_TYPE})

    return [get("/health", health), get("/ready", ready), get("/metrics", show)]
