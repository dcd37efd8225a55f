"""Ollama's native API over the models in memory."""

from __future__ import annotations

import time

from fastapi import Request
from starlette.responses import PlainTextResponse, Response

from tampu.catalog import Entry
from tampu.runner.protocol import TextPrompt
from tampu.server.answer import EventsAnswer, JSONAnswer, WorkAnswer
from tampu.server.job import EmbedJob
from tampu.server.routes import Access, Route, get, post
from tampu.server.serving import Serving
from tampu.server.wire import ollama as wire
from tampu.server.wire import ollama_lists as lists
from tampu.server.wire.ollama_answers import ChatWriter, GenerateWriter
from tampu.version import __version__


def ollama_routes(serving: Serving) -> list[Route]:
    """Return the routes of Ollama's API that ask models and list them."""
    api = OllamaAPI(serving)
    return [
        get("/", api.liveness, Access.OPEN),
        get("/api/version", api.version),
        get("/api/tags", api.tags),
        get("/api/ps", api.processes),
        post("/api/show", api.show, wire.ShowRequest),
        post("/api/generate", api.generate, wire.GenerateRequest),
        post("/api/chat", api.chat, wire.ChatRequest),
        post("/api/embed", api.embed, wire.EmbedRequest),
        post("/api/embeddings", api.embeddings, wire.EmbeddingsRequest),
    ]


class OllamaAPI:
    """The handlers: say what a request means, answer."""

    def __init__(self, serving: Serving) -> None:
        self._serving = serving

    async def liveness(self, _: Request) -> Response:
        """`GET /`: a text that clients look for."""
        return PlainTextResponse("Ollama is running")

    async def version(self, _: Request) -> Response:
        """`GET /api/version`: of Ollama's API, since clients compare it, and tampu's own."""
        return JSONAnswer({"version": wire.VERSION, "tampu": __version__})

    async def tags(self, _: Request) -> Response:
        """`GET /api/tags`: the models there are."""
        return JSONAnswer(lists.tags(self._serving.catalog.entries()))

    async def processes(self, _: Request) -> Response:
        """`GET /api/ps`: the models in memory."""
        return JSONAnswer(lists.processes(self._serving.models.models()))

    async def show(self, _: Request, wanted: wire.ShowRequest) -> Response:
        """`POST /api/show`: one model in detail."""
        entry = self._serving.find(wanted.model or wanted.name)
        return JSONAnswer(self._shown(entry, wanted))

    def _shown(self, entry: Entry, wanted: wire.ShowRequest) -> lists.Shown:
        engine = self._serving.models.options.engine
        return lists.show(entry, self._serving.profile(entry), wanted, engine)

    async def generate(self, _: Request, wanted: wire.GenerateRequest) -> Response:
        """`POST /api/generate`: the continuation of a prompt."""
        arrived_ns = time.monotonic_ns()
        entry = self._serving.find(wanted.model)
        job = wire.generate_job(wanted, self._serving.profile(entry))
        writer = GenerateWriter(job.model, arrived_ns, with_context=not wanted.raw)
        if wire.is_unload(wanted):
            await self._serving.models.unload(entry.name)
            return JSONAnswer(writer.note("unload"))
        is_streaming = wire.is_streaming(wanted) and bool(job.prompts)
        events = self._serving.generate(entry, job)
        return EventsAnswer(events, writer, is_streaming=is_streaming)

    async def chat(self, _: Request, wanted: wire.ChatRequest) -> Response:
        """`POST /api/chat`: the next message of a conversation."""
        arrived_ns = time.monotonic_ns()
        entry = self._serving.find(wanted.model)
        job = wire.conversation_job(wanted, self._serving.profile(entry))
        writer = ChatWriter(job.model, arrived_ns)
        if wire.is_unload(wanted):
            await self._serving.models.unload(entry.name)
            return JSONAnswer(writer.note("unload"))
        is_streaming = wire.is_streaming(wanted) and bool(job.prompts)
        events = self._serving.generate(entry, job)
        return EventsAnswer(events, writer, is_streaming=is_streaming)

    async def embed(self, _: Request, wanted: wire.EmbedRequest) -> Response:
        """`POST /api/embed`: texts as vectors of length 1."""
        arrived_ns = time.monotonic_ns()
        entry = self._serving.find(wanted.model)
        job = wire.embed_job(wanted, self._serving.profile(entry))

        async def work() -> wire.EmbedAnswer:
            found = await self._serving.embed(entry, job)
            return wire.EmbedAnswer(
                model=job.model,
                embeddings=found.vectors.tolist(),
                total_duration=time.monotonic_ns() - arrived_ns,
                load_duration=max(found.ready_ns - arrived_ns, 1),
                prompt_eval_count=found.tokens,
            )

        return WorkAnswer(work())

    async def embeddings(self, _: Request, wanted: wire.EmbeddingsRequest) -> Response:
        """`POST /api/embeddings`: one text as a vector, the older form."""
        entry = self._serving.find(wanted.model)
        job = EmbedJob(
            model=wanted.model or "",
            keep_alive_s=wire.keep_alive_s(wanted.keep_alive),
            inputs=(TextPrompt(wanted.prompt),) if wanted.prompt else (),
        )

        async def work() -> dict[str, list[float]]:
            found = await self._serving.embed(entry, job)
            return {"embedding": found.vectors[0].tolist() if job.inputs else []}

        return WorkAnswer(work())
