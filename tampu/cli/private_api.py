"""Ollama's API without HTTP: the routes that conversations use, for a server within this program.

The server's own routes are not used: with them, `tampu run` would import Starlette, and its first
token would come 5 % later.
"""

from __future__ import annotations

import time
from collections.abc import AsyncGenerator, Callable
from contextlib import aclosing
from dataclasses import replace
from pathlib import Path
from typing import Any, TypeAlias

import msgspec

from tampu.cli.server_client import WARNINGS
from tampu.errors import RequestError
from tampu.runner.steering_options import Steering
from tampu.server.ollama import lists
from tampu.server.ollama import requests as wire
from tampu.server.ollama.output import ChatWriter, GenerateWriter
from tampu.server.serving.events import warnings_of
from tampu.server.serving.generation_request import GenerationRequest
from tampu.server.serving.model_defaults import ModelDefaults
from tampu.server.serving.serving import Serving
from tampu.settings.type_errors import type_error
from tampu.store.catalog import Entry

Lines: TypeAlias = AsyncGenerator[object, None]


class PrivateAPI:
    """The handlers, by path."""

    def __init__(self, serving: Serving, steering: tuple[Steering, ...] = ()) -> None:
        """Answer with these models; `steering` is added to the options of all requests."""
        self._serving = serving
        self._steering = steering
        self._handlers: dict[str, Callable[[dict[str, Any]], Lines]] = {
            "/api/chat": self._chat,
            "/api/generate": self._generate,
            "/api/embed": self._embed,
            "/api/show": self._show,
            "/api/tags": self._tags,
            "/api/create": self._create,
            "/v1/decisions": self._decide,
        }

    def answer(self, path: str, body: dict[str, Any]) -> Lines:
        """Return the lines of the response to a request.

        Raises:
            TampuError: if it fails.
        """
        return self._handlers[path](body)

    def _chat(self, body: dict[str, Any]) -> Lines:
        request = msgspec.convert(body, wire.ChatRequest)
        entry = self._serving.find(request.model)
        job = wire.parse_chat(request, self._defaults(entry))
        return self._answer(entry, job, ChatWriter(entry.name, time.monotonic_ns()))

    def _generate(self, body: dict[str, Any]) -> Lines:
        request = msgspec.convert(body, wire.GenerateRequest)
        entry = self._serving.find(request.model)
        writer = GenerateWriter(entry.name, time.monotonic_ns(), with_context=False)
        if wire.is_unload(request):
            return self._unload(entry, writer)
        job = wire.parse_generate(request, self._defaults(entry))
        return self._answer(entry, job, writer)

    async def _unload(self, entry: Entry, writer: GenerateWriter) -> Lines:
        await self._serving.models.unload(entry.name)
        yield writer.note("unload")

    async def _answer(
        self, entry: Entry, job: GenerationRequest, writer: ChatWriter | GenerateWriter
    ) -> Lines:
        job = replace(job, options=msgspec.structs.replace(job.options, steering=self._steering))
        if job.warnings:
            yield {WARNINGS: list(job.warnings)}
        async with aclosing(self._serving.generate(entry, job)) as events:
            async for event in events:
                if warnings := warnings_of(event):
                    yield {WARNINGS: list(warnings)}
                for line in writer.lines(event):
                    yield line

    async def _embed(self, body: dict[str, Any]) -> Lines:
        request = msgspec.convert(body, wire.EmbedRequest)
        entry = self._serving.find(request.model)
        call = wire.parse_embed(request, self._defaults(entry))
        steered = msgspec.structs.replace(call.request, steering=self._steering)
        found = await self._serving.ask(entry, replace(call, request=steered))
        yield {"embeddings": found.array().tolist()}

    async def _decide(self, body: dict[str, Any]) -> Lines:
        from tampu.server.features.decisions import requests as decisions  # seldom needed

        try:
            request = msgspec.convert(body, decisions.DecisionsRequest)
        except msgspec.ValidationError as error:
            raise RequestError(type_error(error)) from error
        entry = self._serving.find(request.model)
        call = decisions.parse_decisions(request, self._serving.defaults(entry))
        found = await self._serving.ask(entry, call)
        yield decisions.decisions_response(request, found.decisions)

    async def _show(self, body: dict[str, Any]) -> Lines:
        request = msgspec.convert(body, wire.ShowRequest)
        entry = self._serving.find(request.model)
        engine = self._serving.models.options.engine
        yield lists.show(entry, self._serving.defaults(entry), request, engine)

    async def _tags(self, _: dict[str, Any]) -> Lines:
        yield lists.tags(self._serving.catalog.entries())

    async def _create(self, body: dict[str, Any]) -> Lines:
        from tampu.server.features.manage.requests import (
            CreateRequest,  # slow to import, and seldom needed
        )
        from tampu.store.create import creating

        request = msgspec.convert(body, CreateRequest)
        spec = replace(request.spec(), folder=Path.cwd())
        library = self._serving.catalog.library
        for step in creating(library, request.parsed(), spec):
            yield {"status": step.status}

    def _defaults(self, entry: Entry) -> ModelDefaults:
        """Return a model's defaults without the prefix of its conversations."""
        return replace(self._serving.defaults(entry), system="", messages=())
