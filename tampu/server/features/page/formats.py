"""Checks output formats without generating text, for pages and editors."""

from __future__ import annotations

from typing import Any

from starlette.requests import Request
from starlette.responses import Response

from tampu.engine.format_check import CheckFormat
from tampu.errors import GrammarError, RequestError
from tampu.server.fields.options import parse_limited
from tampu.server.fields.output_format import FormattedBody, read_formats
from tampu.server.front.body import parsed
from tampu.server.front.http_response import TaskResponse
from tampu.server.front.routes import Route, post
from tampu.server.serving.serving import Serving


class FormatBody(FormattedBody, kw_only=True):
    """`POST /api/format/check`: an output format, by any of its names."""

    model: str


def format_routes(serving: Serving) -> list[Route]:
    """Return the route that tries output formats."""

    async def check(http: Request, body: FormatBody) -> Response:
        """`POST /api/format/check`: whether a model can follow an output format."""
        entry = serving.find(body.model)
        await parsed(http, parse_limited, body, serving.defaults(entry), ("max_tokens", None))

        async def work() -> dict[str, Any]:
            try:
                structure = await parsed(http, read_formats, body)
            except RequestError as error:
                return {"valid": False, "error": str(error)}
            if structure is None:
                return {"valid": True}
            try:
                await serving.ask_vocabulary(entry, CheckFormat(structure.format))
            except GrammarError as error:
                return {"valid": False, "error": str(error.at(structure.field))}
            warnings = {"warnings": structure.warnings} if structure.warnings else {}
            return {"valid": True, **warnings}

        return TaskResponse(work())

    return [post("/api/format/check", check, FormatBody)]
