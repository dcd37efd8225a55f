"""Health, readiness and metrics."""

from __future__ import annotations

from dataclasses import dataclass
from http import HTTPStatus

from starlette.requests import Request
from starlette.responses import Response

from tampu.server.http_response import JSONResponse
from tampu.server.metrics import CONTENT_TYPE, Metrics
from tampu.server.routes import Route, get


@dataclass(slots=True)
class Readiness:
    """Whether new requests are accepted: not during shutdown."""

    is_ready: bool = True

    def end(self) -> None:
        """Take no more."""
        self.is_ready = False


def health_routes(metrics: Metrics, readiness: Readiness) -> list[Route]:
    """Return the routes for monitoring."""

    async def health(_: Request) -> Response:
        """`GET /health`: whether the server is alive."""
        return JSONResponse({"status": "ok"})

    async def ready(_: Request) -> Response:
        """`GET /ready`: whether it accepts requests; 503 during shutdown."""
        if readiness.is_ready:
            return JSONResponse({"status": "ready"})
        return JSONResponse({"status": "ending"}, HTTPStatus.SERVICE_UNAVAILABLE)

    async def show(_: Request) -> Response:
        """`GET /metrics`: counters and histograms for Prometheus."""
        return Response(metrics.show(), headers={"content-type": CONTENT_TYPE})

    return [get("/health", health), get("/ready", ready), get("/metrics", show)]
