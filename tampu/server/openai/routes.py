"""OpenAI's API over the models in memory: chat, completions, models."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from starlette.requests import Request
from starlette.responses import Response

from tampu.engine.prompts import FIMPrompt, TextPrompt, TokensPrompt
from tampu.engine.requests import Decode, Encode
from tampu.server.fields.media import ImageSource
from tampu.server.fields.model_facts import model_facts
from tampu.server.front.body import parsed
from tampu.server.front.http_response import (
    SHORT,
    JSONResponse,
    TaskResponse,
    encoded,
    warning_headers,
)
from tampu.server.front.routes import Route, get, post
from tampu.server.front.session import name_session
from tampu.server.front.single_flight import SingleFlight
from tampu.server.ollama.lists import tags
from tampu.server.openai import requests as wire
from tampu.server.openai.output import ChatWriter, CompletionWriter
from tampu.server.serving.event_response import event_response
from tampu.server.serving.generation_request import GenerationRequest
from tampu.server.serving.hosted_tools import HostedTools, chat_form
from tampu.server.serving.served_adapters import ServedAdapter
from tampu.server.serving.serving import Serving
from tampu.store.catalog import Entry


def openai_routes(serving: Serving, images: ImageSource, tools: HostedTools) -> list[Route]:
    """Return the routes of OpenAI's API."""
    api = OpenAIAPI(serving, images, tools)
    return [
        post("/v1/chat/completions", api.chat, wire.ChatRequest),
        post("/v1/chat/completions/input_tokens", api.count_chat, wire.ChatRequest),
        post("/v1/completions", api.complete, wire.CompletionRequest),
        get("/v1/models", api.models),
        get("/v1/models/{model:path}", api.model),
    ]


class OpenAIAPI:
    """The handlers."""

    def __init__(self, serving: Serving, images: ImageSource, tools: HostedTools) -> None:
        self._serving = serving
        self._tools = tools
        self._images = images
        self._models = SingleFlight(lambda: encoded(_list(serving.catalog.entries())))

    async def chat(self, http: Request, body: wire.ChatRequest) -> Response:
        """`POST /v1/chat/completions`: the next message of a conversation."""
        name_session(body.prompt_cache_key)
        entry = self._serving.find_for(body, "completion")
        await self._images.fill([each.content for each in body.messages or ()])
        offer = await self._tools.offer(body.tools, chat_form)
        body.tools = offer.tools
        request = await parsed(
            http, wire.parse_chat_completion, body, self._serving.defaults(entry)
        )
        with_usage = wire.wants_usage(body)
        writer = ChatWriter(
            request.model,
            choices=request.choices,
            with_usage=with_usage,
            telemetry=body.telemetry(),
            prompt=await self._prompt(entry, request) if body.verbose else None,
        )
        events = self._tools.generate(entry, request, offer)
        return event_response(events, writer, request.warnings, is_streaming=bool(body.stream))

    async def count_chat(self, http: Request, body: wire.ChatRequest) -> Response:
        """`POST /v1/chat/completions/input_tokens`: how many tokens a conversation has."""
        entry = self._serving.find_for(body)
        await self._images.fill([each.content for each in body.messages or ()])
        body.tools = (await self._tools.offer(body.tools, chat_form)).tools
        defaults = self._serving.defaults(entry)
        request = await parsed(http, wire.parse_chat_completion, body, defaults)
        return token_count(self._serving, entry, request)

    async def complete(self, http: Request, body: wire.CompletionRequest) -> Response:
        """`POST /v1/completions`: the continuation of prompts."""
        entry = self._serving.find_for(body, "completion")
        request = await parsed(http, wire.parse_completion, body, self._serving.defaults(entry))
        writer = CompletionWriter(
            request.model,
            choices=request.choices,
            with_usage=wire.wants_usage(body),
            telemetry=body.telemetry(),
            echoes=await self._echoes(entry, request) if body.echo else (),
        )
        events = self._serving.generate(entry, request)
        return event_response(events, writer, request.warnings, is_streaming=bool(body.stream))

    async def models(self, http: Request) -> Response:
        """`GET /v1/models`: the installed models; without `/v1` also which are in memory."""
        if http.scope.get(SHORT, False):
            entries = self._serving.catalog.entries()
            data = [self._with_status(entry) for entry in entries]
            return JSONResponse({"object": "list", "data": data, **tags(entries)})
        adapters = [_adapter(each) for each in self._serving.adapters.every()]
        if adapters:
            found = _list(self._serving.catalog.entries())
            return JSONResponse(found | {"data": [*found["data"], *adapters]})
        return JSONResponse(await self._models.result())

    async def model(self, request: Request) -> Response:
        """`GET /v1/models/{model}`: one model."""
        name = str(request.path_params["model"])
        return JSONResponse(_model(self._serving.find(name), name))

    def _with_status(self, entry: Entry) -> dict[str, Any]:
        """Return a model as llama-server lists it."""
        models = self._serving.models
        is_loading = any(pending.entry.name == entry.name for pending in models.loading())
        state = "loading" if is_loading else "unloaded"
        if models.find(entry.name) is not None:
            state = "loaded"
        path = entry.info.path.name  # without its folder: paths stay on the server
        return _model(entry, entry.full_name) | {"path": path, "status": {"value": state}}

    async def _prompt(self, entry: Entry, request: GenerationRequest) -> str:
        asked = Encode(request.prompts[0], detail="pieces")
        found = await self._serving.ask_vocabulary(entry, asked)
        return found.pieces.decode("utf-8", "replace")

    async def _echoes(self, entry: Entry, request: GenerationRequest) -> list[str]:
        echoes = []
        for prompt in request.prompts:
            if isinstance(prompt, TextPrompt):
                echoes.append(prompt.text)
            elif isinstance(prompt, FIMPrompt):
                echoes.append(prompt.prefix)
            elif isinstance(prompt, TokensPrompt):
                decoded = await self._serving.ask_vocabulary(entry, Decode(prompt.tokens))
                echoes.append(decoded.text)
        return echoes


def token_count(serving: Serving, entry: Entry, request: GenerationRequest) -> Response:
    """Return the response that says how many tokens the prompt of a request has."""

    async def work() -> Response:
        asked = Encode(request.prompts[0], detail="count")
        tokens = (await serving.ask_vocabulary(entry, asked)).count
        counted = {"object": "response.input_tokens", "input_tokens": tokens}
        return JSONResponse(counted, headers=warning_headers(request.warnings))

    return TaskResponse(work())


def _list(entries: Sequence[Entry]) -> dict[str, Any]:
    return {"object": "list", "data": [_model(entry, entry.full_name) for entry in entries]}


def _adapter(adapter: ServedAdapter) -> dict[str, Any]:
    created = int(adapter.modified_s)
    named = {"id": adapter.name, "object": "model", "created": created, "owned_by": "library"}
    return named | {"parent": adapter.base, "root": adapter.path.name}


def _model(entry: Entry, name: str) -> dict[str, Any]:
    created = int(entry.modified_s)
    named = {"id": name, "object": "model", "created": created, "owned_by": "library"}
    return named | model_facts(entry.info)
