"""The page that `GET /` returns to browsers, and its files.

They are built from `web/` (`make web`) and lie in `static/`: `index.html`, and in `assets/` scripts
and styles whose names contain a hash of their content. The policies below hold whatever a model
writes: the page runs no script but these files, and loads nothing from elsewhere.
"""

from __future__ import annotations

import asyncio
import gzip
from pathlib import Path

from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import PlainTextResponse, Response

from tampu import server
from tampu.server.core import Core
from tampu.server.feature import Feature
from tampu.server.features.page.formats import format_routes
from tampu.server.features.page.layers import layer_routes
from tampu.server.features.page.live import LiveFeed, live_routes
from tampu.server.features.page.parameters import parameter_routes
from tampu.server.front.routes import Access, Route, get

STATIC = Path(server.__file__).parent / "static"
_TYPES = {".js": "text/javascript", ".css": "text/css"}
_POLICY = "; ".join((
    "default-src 'none'",
    "script-src 'self'",
    "style-src 'self'",
    "img-src 'self' data: blob:",
    "media-src data:",
    "connect-src 'self'",
    "base-uri 'none'",
    "form-action 'none'",
    "frame-ancestors 'none'",
    "require-trusted-types-for 'script'",  # no text becomes HTML
    "trusted-types 'none'",
))  # fmt: skip
_HEADERS = {
    "content-security-policy": _POLICY,
    "cross-origin-opener-policy": "same-origin",
    "cross-origin-resource-policy": "same-origin",
    "referrer-policy": "no-referrer",
    "x-content-type-options": "nosniff",
}
_FOREVER = "public, max-age=31536000, immutable"


def page(core: Core) -> Feature:
    """Return the feature: the page, and on one machine what the engine does, for watchers."""
    routes = [*page_routes(), *format_routes(core.serving), *parameter_routes()]
    if not core.options.has_replicas:
        serving = core.serving
        feed = LiveFeed(serving.models, core.metrics, lambda: serving.waiting)
        routes += live_routes(feed)
        routes += layer_routes(serving, core.options.max_capture_bytes)
    return Feature(routes=routes)


def page_routes() -> list[Route]:
    """Return the routes of the page; they need no key: the page asks for it."""
    files = Page(STATIC)
    return [get("/", files.root, Access.OPEN), get("/assets/{name}", files.asset, Access.OPEN)]


class Page:
    """The handlers."""

    def __init__(self, folder: Path) -> None:
        """Read the files of a folder; only they can be requested."""
        self._index = _File(folder / "index.html", "text/html; charset=utf-8", "no-cache")
        self._assets = {
            path.name: _File(path, f"{_TYPES[path.suffix]}; charset=utf-8", _FOREVER)
            for path in (folder / "assets").iterdir()
        }

    async def root(self, request: Request) -> Response:
        """`GET /`: the page for browsers, for other clients a text that they look for."""
        if "text/html" in _media_types(request):
            return await self._index.response(request)
        return PlainTextResponse("Ollama is running", headers={"vary": "accept"})

    async def asset(self, request: Request) -> Response:
        """`GET /assets/{name}`: a script or a style of the page."""
        file = self._assets.get(request.path_params["name"])
        if file is None:
            raise HTTPException(404)
        return await file.response(request)


class _File:
    """A file in memory, also compressed."""

    def __init__(self, path: Path, media_type: str, caching: str) -> None:
        self._plain, self._compressed = path.read_bytes(), b""
        self._headers = _HEADERS | {
            "content-type": media_type,
            "cache-control": caching,
            "vary": "accept, accept-encoding",
        }

    async def response(self, request: Request) -> Response:
        """Return the file, compressed if the client can read that.

        It is compressed at the first such request: a server without a browser starts sooner.
        """
        if "gzip" not in request.headers.get("accept-encoding", ""):
            return Response(self._plain, headers=self._headers)
        if not self._compressed:
            self._compressed = await asyncio.to_thread(gzip.compress, self._plain, mtime=0)
        return Response(self._compressed, headers=self._headers | {"content-encoding": "gzip"})


def _media_types(request: Request) -> set[str]:
    """Return the media types that a client accepts by name."""
    accepted = request.headers.get("accept", "").split(",")
    return {part.partition(";")[0].strip().lower() for part in accepted}
