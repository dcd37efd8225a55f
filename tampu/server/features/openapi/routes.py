"""The description of the API in OpenAPI's form, made from the table of routes."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Any

import msgspec
from starlette.requests import Request
from starlette.responses import Response

from tampu.server.core import Core
from tampu.server.feature import Feature
from tampu.server.front.http_response import JSONResponse
from tampu.server.front.routes import Access, Route, get
from tampu.version import __version__

_PATH = "/openapi.json"
_REFERENCE = "#/components/schemas/{name}"
_PARAMETER = re.compile(r"\{(\w+)(?::\w+)?\}")
_ANSWER = {"200": "The answer."}
_SOCKET = {
    "101": "The connection is a WebSocket.",
    "426": "The request does not ask for a WebSocket.",
}
_REFUSALS = {
    "400": "The request is invalid.",
    "401": "An API key is needed.",
    "403": "The host, the origin or the API key is not allowed.",
    "404": "There is no such model.",
    "413": "The body is too large.",
    "414": "The address is too long.",
    "429": "The API key has used up one of its limits.",
    "431": "There are too many headers.",
}
_FAILURES = {
    "500": "The model cannot be loaded, or its process has crashed.",
    "503": "Too many requests wait, or the server is shutting down.",
}


def openapi(_: Core) -> Feature:
    """Return the feature: the description of all other routes."""

    async def description(request: Request) -> Response:
        """`GET /openapi.json`: this description."""
        routes = [each for each in request.app.state.routes if each.path != _PATH]
        return JSONResponse(described(routes))

    return Feature(routes=[get(_PATH, description)])


def described(routes: Sequence[Route]) -> dict[str, Any]:
    """Return the description of routes."""
    bodies = [route.body for route in routes if route.body is not None]
    schemas, components = msgspec.json.schema_components(bodies, ref_template=_REFERENCE)
    schema_of = dict(zip(bodies, schemas, strict=True))
    paths: dict[str, dict[str, Any]] = {}
    for route in routes:
        path = _PARAMETER.sub(r"{\1}", route.path)
        for method in route.methods:
            body = None if route.body is None else schema_of[route.body]
            paths.setdefault(path, {})[method.lower()] = _operation(route, body)
    return {
        "openapi": "3.1.0",
        "info": {"title": "tampu", "version": __version__},
        "paths": paths,
        "components": {
            "schemas": components,
            "securitySchemes": {"key": {"type": "http", "scheme": "bearer"}},
        },
    }


def _operation(route: Route, body: dict[str, Any] | None) -> dict[str, Any]:
    refusals = _REFUSALS | (_FAILURES if body is not None or route.path == "/ready" else {})
    answers = (_ANSWER if route.socket is None else _SOCKET) | refusals
    operation: dict[str, Any] = {
        "summary": route.summary,
        "responses": {status: {"description": text} for status, text in answers.items()},
    }
    if route.access is not Access.OPEN:
        operation["security"] = [{}, {"key": []}]
    if body is not None:
        operation["requestBody"] = {
            "required": True,
            "content": {"application/json": {"schema": body}},
        }
    names = _PARAMETER.findall(route.path)
    if names:
        operation["parameters"] = [
            {"name": name, "in": "path", "required": True, "schema": {"type": "string"}}
            for name in names
        ]
    return operation
