"""The table of parameters, for clients that show them."""

from __future__ import annotations

import math
from typing import Any

import msgspec
from starlette.requests import Request
from starlette.responses import Response

from tampu.sampling.parameters import PARAMETERS, Parameter, Use
from tampu.server.front.http_response import JSONResponse
from tampu.server.front.routes import Route, get

_SHOWN = (Use.SAMPLING, Use.GENERATION, Use.LOADING)


class ParameterEntry(msgspec.Struct, kw_only=True):
    """A parameter that a request may have, under its name in Ollama's `options`.

    `low` and `high` are None for a parameter without a limit, and for one that is not a number.
    """

    name: str
    openai: str | None
    type: str
    default: Any
    low: float | None
    high: float | None
    range: str
    use: str
    doc: str


def parameter_routes() -> list[Route]:
    """Return the route of the table."""
    response = {"parameters": [_entry(row) for row in PARAMETERS.values() if row.use in _SHOWN]}

    async def parameters(_: Request) -> Response:
        """`GET /api/parameters`: the options of requests, with ranges, defaults and meanings."""
        return JSONResponse(response)

    return [get("/api/parameters", parameters)]


def _entry(row: Parameter) -> ParameterEntry:
    is_number = row.kind in (int, float)
    return ParameterEntry(
        name=row.ollama,
        openai=row.openai,
        type=row.kind.__name__,
        default=row.default,
        low=row.low if is_number else None,
        high=row.high if is_number and row.high != math.inf else None,
        range=row.range_text,
        use=row.use.value,
        doc=row.doc,
    )
