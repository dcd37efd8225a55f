"""The list of control vectors; requests choose them in `control_vectors`."""

from __future__ import annotations

from typing import Any

from starlette.requests import Request
from starlette.responses import Response

from tampu.server.core import Core
from tampu.server.feature import Feature
from tampu.server.front.http_response import JSONResponse
from tampu.server.front.routes import get
from tampu.server.serving.control_vectors import ServedControlVector


def control_vectors(core: Core) -> Feature:
    """Return the feature: the control vectors that the server was started with."""

    async def listed(_: Request) -> Response:
        """`GET /control-vectors`: the control vectors, with their numbers and strengths."""
        vectors = core.serving.control_vectors.every()
        return JSONResponse([_described(number, each) for number, each in enumerate(vectors)])

    return Feature(routes=[get("/control-vectors", listed)])


def _described(number: int, vector: ServedControlVector) -> dict[str, Any]:
    directions = vector.vector.directions
    layers = vector.layers or (min(directions), max(directions))
    return {"id": number, "name": vector.name, "scale": vector.scale, "layers": layers}
