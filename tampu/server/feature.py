"""A feature of the server: what it adds to the application."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from typing import TypeAlias

from starlette.middleware import Middleware

from tampu.server.core import Core
from tampu.server.front.routes import Route


async def _nothing() -> None:
    pass


@dataclass(frozen=True, slots=True, kw_only=True)
class Feature:
    """A part of the server that the rest does not know.

    Attributes:
        routes: its routes.
        middleware: around all requests, outside of access control.
        metrics: returns its own metrics, besides those in the registry of `Metrics`.
        open: is awaited when the server starts.
        close: is awaited when it ends, before the models are unloaded.
    """

    routes: Sequence[Route] = ()
    middleware: Sequence[Middleware] = ()
    metrics: Callable[[], bytes] = bytes
    open: Callable[[], Awaitable[None]] = _nothing
    close: Callable[[], Awaitable[None]] = _nothing


MakeFeature: TypeAlias = Callable[[Core], Feature]
