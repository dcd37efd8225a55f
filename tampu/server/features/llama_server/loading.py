"""llama-server's routes of models: which are in memory, loading and unloading."""

from __future__ import annotations

from typing import Any

import msgspec
from starlette.requests import Request
from starlette.responses import Response

from tampu.errors import RequestError
from tampu.server.fields.options import ModelBody, parse_limited
from tampu.server.front.http_response import TaskResponse
from tampu.server.front.routes import Route, post
from tampu.server.serving.serving import Serving


class LoadRequest(ModelBody, kw_only=True):
    """The body of a request to load a model; options are those of loading."""

    max_tokens: int | None = None


class UnloadRequest(msgspec.Struct):
    """The body of a request to unload a model."""

    model: str = ""


def loading_routes(serving: Serving) -> list[Route]:
    """Return the routes."""

    async def load(_: Request, body: LoadRequest) -> Response:
        """`POST /models/load`: load a model, and answer when it is in memory."""
        entry = serving.find(_name(body))
        request = parse_limited(body, serving.defaults(entry), ("max_tokens", body.max_tokens))

        async def work() -> dict[str, Any]:
            async for _ in serving.generate(entry, request):  # without a prompt: it is loaded
                pass
            return {"success": True}

        return TaskResponse(work())

    async def unload(_: Request, body: UnloadRequest) -> Response:
        """`POST /models/unload`: unload a model once its requests are done."""
        entry = serving.find(_name(body))
        if serving.models.find(entry.name) is None:
            raise RequestError(f"model: {entry.full_name!r} is not in memory")

        async def work() -> dict[str, Any]:
            await serving.models.unload(entry.name)
            return {"success": True}

        return TaskResponse(work())

    return [
        post("/models/load", load, LoadRequest),
        post("/models/unload", unload, UnloadRequest),
    ]


def _name(body: LoadRequest | UnloadRequest) -> str:
    if not body.model:
        raise RequestError("model is required")
    return body.model
