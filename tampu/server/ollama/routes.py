"""Ollama's native API over the models in memory."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any, TypeVar

from starlette.requests import Request
from starlette.responses import Response

from tampu.engine.prompts import ChatPrompt
from tampu.engine.requests import Encode
from tampu.server.fields.captures import captured_text
from tampu.server.fields.options import request_options
from tampu.server.front.body import parsed
from tampu.server.front.http_response import (
    JSONResponse,
    TaskResponse,
    encoded,
)
from tampu.server.front.routes import Route, get, post
from tampu.server.front.single_flight import SingleFlight
from tampu.server.ollama import lists
from tampu.server.ollama import requests as wire
from tampu.server.ollama.output import ChatWriter, GenerateWriter
from tampu.server.serving.event_response import embedding_warnings, event_response
from tampu.server.serving.generation_request import GenerationRequest
from tampu.server.serving.hosted_tools import HostedTools, Offer, chat_form
from tampu.server.serving.model_defaults import ModelDefaults
from tampu.server.serving.serving import Serving
from tampu.store.catalog import Entry
from tampu.version import __version__

Body = TypeVar("Body", wire.GenerateRequest, wire.ChatRequest)

_COPILOT = "GitHubCopilotChat/"  # it shows a model's base name to its users


def ollama_routes(serving: Serving, tools: HostedTools) -> list[Route]:
    """Return the routes of Ollama's API that ask models and list them."""
    api = OllamaAPI(serving, tools)
    return [
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
    """The handlers."""

    def __init__(self, serving: Serving, tools: HostedTools) -> None:
        self._serving = serving
        self._tools = tools
        self._tags = SingleFlight(lambda: encoded(lists.tags(serving.catalog.entries())))

    async def version(self, _: Request) -> Response:
        """`GET /api/version`: of Ollama's API, since clients compare it, and tampu's own."""
        return JSONResponse({"version": wire.VERSION, "tampu": __version__})

    async def tags(self, _: Request) -> Response:
        """`GET /api/tags`: the installed models."""
        return JSONResponse(await self._tags.result())

    async def processes(self, _: Request) -> Response:
        """`GET /api/ps`: the models in memory."""
        models = self._serving.models
        return JSONResponse(
            lists.processes(models.models(), models.loading(), models.options.engine)
        )

    async def show(self, request: Request, body: wire.ShowRequest) -> Response:
        """`POST /api/show`: one model in detail."""
        name = body.model or body.name
        entry = self._serving.find(name)
        engine, defaults = self._serving.models.options.engine, self._serving.defaults(entry)
        shown = lists.show(entry, defaults, body, engine)
        if request.headers.get("user-agent", "").startswith(_COPILOT):
            shown.model_info["general.basename"] = name
        if not body.memory:
            return JSONResponse(shown)
        overrides, _ = request_options(defaults, body.options)

        async def work() -> lists.ModelDetails:
            shown.memory = await self._serving.estimate_memory(entry, overrides)
            return shown

        return TaskResponse(work())

    async def generate(self, http: Request, body: wire.GenerateRequest) -> Response:
        """`POST /api/generate`: the continuation of a prompt."""
        writer = GenerateWriter(
            body.model or "",
            time.monotonic_ns(),
            body.telemetry(),
            with_context=not body.raw,
        )
        return await self._answer(http, body, writer, wire.parse_generate, response="")

    async def chat(self, http: Request, body: wire.ChatRequest) -> Response:
        """`POST /api/chat`: the next message of a conversation."""
        writer = ChatWriter(body.model or "", time.monotonic_ns(), body.telemetry())
        empty = wire.Message(role="assistant", content="")
        return await self._answer(http, body, writer, wire.parse_chat, message=empty)

    async def embed(self, http: Request, body: wire.EmbedRequest) -> Response:
        """`POST /api/embed`: texts as vectors of length 1."""
        arrived_ns = time.monotonic_ns()
        entry = self._serving.find(body.model)
        request = await parsed(http, wire.parse_embed, body, self._serving.defaults(entry))

        async def work() -> Response:
            found = await self._serving.ask(entry, request)
            response = wire.EmbedResponse(
                model=request.model,
                embeddings=found.array().tolist(),
                total_duration=time.monotonic_ns() - arrived_ns,
                load_duration=max(found.ready_ns - arrived_ns, 1),
                prompt_eval_count=found.tokens,
                truncated=found.dropped,
                captured=[*map(captured_text, found.captured)],
            )
            return JSONResponse(response, headers=embedding_warnings(request, found))

        return TaskResponse(work())

    async def embeddings(self, http: Request, body: wire.EmbeddingsRequest) -> Response:
        """`POST /api/embeddings`: one text as a vector, the older form."""
        entry = self._serving.find(body.model)
        request = await parsed(http, wire.parse_embeddings, body, self._serving.defaults(entry))

        async def work() -> Response:
            found = await self._serving.ask(entry, request)
            vector = found.array()[0].tolist() if found.tokens else []
            return JSONResponse({"embedding": vector}, headers=embedding_warnings(request, found))

        return TaskResponse(work())

    async def _answer(
        self,
        http: Request,
        body: Body,
        writer: GenerateWriter | ChatWriter,
        parse: Callable[[Body, ModelDefaults], GenerationRequest],
        **empty: Any,
    ) -> Response:
        """Return the response to a request for text; `empty` is its text where there is none."""
        entry = self._serving.find(body.model)
        if wire.is_unload(body):
            await self._serving.models.unload(entry.name)
            return JSONResponse(writer.note("unload"))
        offer = Offer([])
        if isinstance(body, wire.ChatRequest):
            offer = await self._tools.offer(body.tools, chat_form)
            body.tools = offer.tools
        request = await parsed(http, parse, body, self._serving.defaults(entry))
        if body.debug_render_only and request.prompts:
            return TaskResponse(self._rendered(entry, request, **empty))
        is_streaming = body.stream is not False and bool(request.prompts)
        events = self._tools.generate(entry, request, offer)
        return event_response(events, writer, request.warnings, is_streaming=is_streaming)

    async def _rendered(
        self, entry: Entry, request: GenerationRequest, **empty: Any
    ) -> wire.DebugResponse:
        """Return the prompt that the model would receive, instead of an answer."""
        [prompt] = request.prompts
        encoded = await self._serving.ask_vocabulary(entry, Encode(prompt, detail="pieces"))
        messages = prompt.messages if isinstance(prompt, ChatPrompt) else ()
        return wire.DebugResponse(
            model=request.model,
            created_at=wire.timestamp(),
            debug_info=wire.DebugInfo(
                rendered_template=encoded.pieces.decode("utf-8", "replace"),
                image_count=sum(len(message.get("media", ())) for message in messages),
            ),
            **empty,
        )
