"""The HTTP application."""

from __future__ import annotations

import logging
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from http import HTTPStatus

from fastapi import FastAPI, Request
from starlette.exceptions import HTTPException
from starlette.middleware.cors import CORSMiddleware
from starlette.responses import PlainTextResponse, Response

from tampu.catalog import Catalog
from tampu.errors import TampuError
from tampu.runner.protocol import ModelOptions
from tampu.server.answer import JSONAnswer, error_answer
from tampu.server.guard import ORIGINS, Guard
from tampu.server.loaded import LoadedModels, Start
from tampu.server.ollama import ollama_routes

logger = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True, kw_only=True)
class ServerOptions:
    """How the server behaves.

    Attributes:
        host: the address it is bound to.
        keep_alive_s: how long a model stays in memory after its last use.
        most_models: how many are in memory at most.
        origins: web pages that may call it, besides local ones.
        model: how models are loaded unless a request says otherwise.
    """

    host: str = "127.0.0.1"
    keep_alive_s: float = 300.0
    most_models: int = 3
    origins: tuple[str, ...] = ()
    model: ModelOptions = field(default_factory=ModelOptions)


def create_app(options: ServerOptions, catalog: Catalog, start: Start) -> FastAPI:
    """Return the application.

    Args:
        options: how it behaves.
        catalog: the models that can be asked for.
        start: loads a model.
    """
    models = LoadedModels(
        start,
        options=options.model,
        keep_alive_s=options.keep_alive_s,
        most=options.most_models,
    )

    @asynccontextmanager
    async def lifespan(_: FastAPI) -> AsyncIterator[None]:
        yield
        await models.close()

    app = FastAPI(title="tampu", lifespan=lifespan, openapi_url=None, redirect_slashes=False)
    app.include_router(ollama_routes(models, catalog))
    app.add_middleware(
        CORSMiddleware,
        allow_origins=options.origins,
        allow_origin_regex=ORIGINS,
        allow_methods=["GET", "HEAD", "POST", "DELETE"],
        allow_headers=["*"],
    )
    app.add_middleware(Guard, bound=options.host, origins=options.origins)
    app.add_exception_handler(TampuError, _tampu_error)
    app.add_exception_handler(HTTPException, _http_error)
    app.add_exception_handler(Exception, _bug)
    return app


async def _tampu_error(_: Request, error: Exception) -> Response:
    return error_answer(error if isinstance(error, TampuError) else TampuError(str(error)))


async def _http_error(_: Request, error: Exception) -> Response:
    status = error.status_code if isinstance(error, HTTPException) else 500
    if status == HTTPStatus.NOT_FOUND:
        return PlainTextResponse("404 page not found", status)
    return JSONAnswer({"error": HTTPStatus(status).phrase.lower()}, status)


async def _bug(request: Request, error: Exception) -> Response:
    logger.error("%s %s failed: %r", request.method, request.url.path, error)
    return JSONAnswer({"error": "internal error; the server's log says more"}, 500)
