"""Ollama's native API over the models in memory."""

from __future__ import annotations

import time
from collections.abc import AsyncGenerator, Callable
from contextlib import aclosing

from fastapi import APIRouter, Request
from starlette.responses import PlainTextResponse, Response

from tampu.catalog import Catalog, Entry
from tampu.chat.tools import TagParser
from tampu.errors import ModelNotFoundError, RequestError
from tampu.server.answer import JSONAnswer, LinesAnswer
from tampu.server.body import read_body
from tampu.server.job import Job
from tampu.server.loaded import LoadedModels
from tampu.server.wire import ollama as wire
from tampu.server.wire import ollama_lists as lists
from tampu.server.wire.ollama_answers import (
    ChatWriter,
    GenerateWriter,
    Line,
    LineWriter,
    Timing,
    joined_chat,
    joined_text,
)
from tampu.version import __version__

GET = ["GET", "HEAD"]


def ollama_routes(models: LoadedModels, catalog: Catalog) -> APIRouter:
    """Return the routes of Ollama's API."""
    api = OllamaAPI(models, catalog)
    router = APIRouter()
    router.add_api_route("/", api.liveness, methods=GET)
    router.add_api_route("/api/version", api.version, methods=GET)
    router.add_api_route("/api/tags", api.tags, methods=GET)
    router.add_api_route("/api/ps", api.processes, methods=GET)
    router.add_api_route("/api/show", api.show, methods=["POST"])
    router.add_api_route("/api/generate", api.generate, methods=["POST"])
    router.add_api_route("/api/chat", api.chat, methods=["POST"])
    return router


class OllamaAPI:
    """The handlers: read the request, say what it means, answer."""

    def __init__(self, models: LoadedModels, catalog: Catalog) -> None:
        self._models = models
        self._catalog = catalog

    async def liveness(self) -> Response:
        """`GET /`: clients look for this text."""
        return PlainTextResponse("Ollama is running")

    async def version(self) -> Response:
        """`GET /api/version`: of Ollama's API, since clients compare it, and tampu's own."""
        return JSONAnswer({"version": wire.VERSION, "tampu": __version__})

    async def tags(self) -> Response:
        """`GET /api/tags`: the models there are."""
        return JSONAnswer(lists.tags(self._catalog.entries()))

    async def processes(self) -> Response:
        """`GET /api/ps`: the models in memory."""
        return JSONAnswer(lists.processes(self._models.models()))

    async def show(self, request: Request) -> Response:
        """`POST /api/show`: one model in detail."""
        wanted = await read_body(request, wire.ShowRequest)
        entry = find(self._catalog, wanted.model or wanted.name)
        return JSONAnswer(lists.show(entry, verbose=bool(wanted.verbose)))

    async def generate(self, request: Request) -> Response:
        """`POST /api/generate`: the continuation of a prompt."""
        arrived_ns = time.monotonic_ns()
        wanted = await read_body(request, wire.GenerateRequest)
        entry = find(self._catalog, wanted.model)
        job = wire.generate_job(wanted, entry.info)

        def writer(timing: Timing) -> GenerateWriter:
            return GenerateWriter(job.model, timing, with_context=not wanted.raw)

        if wire.is_unload(wanted):
            await self._models.unload(entry.name)
            return JSONAnswer(writer(Timing(arrived_ns, arrived_ns)).note("unload"))
        lines = run(self._models, entry, job, writer, arrived_ns)
        is_streaming = wire.is_streaming(wanted) and job.prompt is not None
        return LinesAnswer(lines, None if is_streaming else joined_text)

    async def chat(self, request: Request) -> Response:
        """`POST /api/chat`: the next message of a conversation."""
        arrived_ns = time.monotonic_ns()
        wanted = await read_body(request, wire.ChatRequest)
        entry = find(self._catalog, wanted.model)
        job = wire.chat_job(wanted, entry.info)

        def writer(timing: Timing) -> ChatWriter:
            return ChatWriter(job.model, timing, TagParser() if wanted.tools else None)

        if wire.is_unload(wanted):
            await self._models.unload(entry.name)
            return JSONAnswer(writer(Timing(arrived_ns, arrived_ns)).note("unload"))
        lines = run(self._models, entry, job, writer, arrived_ns)
        is_streaming = wire.is_streaming(wanted) and job.prompt is not None
        return LinesAnswer(lines, None if is_streaming else joined_chat)


def find(catalog: Catalog, name: str | None) -> Entry:
    """Return the model of a name.

    Raises:
        RequestError: without a name.
        ModelNotFoundError: if there is no such model.
    """
    if not name:
        raise RequestError("model is required")
    try:
        return catalog.describe(name)
    except ModelNotFoundError as error:
        raise ModelNotFoundError(f"model '{name[:200]}' not found") from error


async def run(
    models: LoadedModels,
    entry: Entry,
    job: Job,
    writer: Callable[[Timing], LineWriter[Line]],
    arrived_ns: int,
) -> AsyncGenerator[Line, None]:
    """Yield the lines of a job's answer, holding the model meanwhile; closing it cancels the job.

    Raises:
        TampuError: when the model cannot be loaded, or the request fails.
    """
    async with models.use(entry, job.overrides, job.keep_alive_s) as model:
        write = writer(Timing(arrived_ns, time.monotonic_ns()))
        if job.prompt is None:
            yield write.note("load")
            return
        options = job.limited(model.runner.ready.context)
        async with aclosing(model.runner.generate(job.prompt, options)) as events:
            async for event in events:
                for line in write.lines(event, time.monotonic_ns()):
                    yield line
