"""The table of routes: what is served where, for whom, and what a request's body must be.

Everything that has to hold for every route is made from this table: which key a request needs, the
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
    """Who may ask: anybody, holders of any key, or holders of a key to manage models."""

    OPEN = "open"
    USE = "use"
    MANAGE = "manage"


@dataclass(frozen=True, slots=True)
class Route:
    """One route.

    Attributes:
        methods: that it answers.
        path: in Starlette's notation.
        endpoint: answers.
        access: who may ask.
        body: of which kind a request's JSON body is; None: it has none, or no JSON.
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
