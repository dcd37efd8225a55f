"""The table of routes: paths, access, and the structs of request bodies.

Everything that holds for every route derives from this table: the key a request needs, the
description in `/openapi.json`, and the tests.
"""

from __future__ import annotations

import inspect
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from enum import Enum
from typing import TypeVar

import msgspec
from starlette.requests import Request
from starlette.responses import Response

from tampu.server.body import read_body

T = TypeVar("T", bound=msgspec.Struct)
Endpoint = Callable[[Request], Awaitable[Response]]


class Access(Enum):
    """The key a request needs: none, any, or one for managing models."""

    OPEN = "open"
    USE = "use"
    MANAGE = "manage"


@dataclass(frozen=True, slots=True)
class Route:
    """One route.

    Attributes:
        methods: that it answers.
        path: in Starlette's notation.
        endpoint: the handler.
        access: the key a request needs.
        body: the struct of the JSON body; None: no JSON body.
        summary: what it is for.
    """

    methods: tuple[str, ...]
    path: str
    endpoint: Endpoint
    access: Access
    body: type[msgspec.Struct] | None
    summary: str


def get(path: str, endpoint: Endpoint, access: Access = Access.USE) -> Route:
    """Return a route that is only read."""
    return Route(("GET", "HEAD"), path, endpoint, access, None, _summary(endpoint))


def post(
    path: str,
    handle: Callable[[Request, T], Awaitable[Response]],
    body: type[T],
    access: Access = Access.USE,
    method: str = "POST",
) -> Route:
    """Return a route whose handler gets the request's JSON body too."""

    async def endpoint(request: Request) -> Response:
        return await handle(request, await read_body(request, body))

    return Route((method,), path, endpoint, access, body, _summary(handle))


def raw(methods: tuple[str, ...], path: str, endpoint: Endpoint, access: Access) -> Route:
    """Return a route whose handler reads the body itself."""
    return Route(methods, path, endpoint, access, None, _summary(endpoint))


def _summary(handle: object) -> str:
    return (inspect.getdoc(handle) or "").partition("\n")[0].rpartition("`: ")[2]
