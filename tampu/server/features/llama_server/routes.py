"""llama-server's own API over the models in memory: completion, infill, state."""

from __future__ import annotations

from starlette.requests import Request
from starlette.responses import Response

from tampu.engine.prompts import MEDIA_MARKER, FIMPrompt, TextPrompt, TokensPrompt
from tampu.engine.requests import Decode
from tampu.server.core import Core
from tampu.server.feature import Feature
from tampu.server.features.llama_server import requests as wire
from tampu.server.features.llama_server.loading import loading_routes
from tampu.server.features.llama_server.metrics import LlamaServerMetrics
from tampu.server.features.llama_server.output import (
    LlamaCompletionWriter,
    generation_settings,
)
from tampu.server.features.llama_server.saved_slots import saved_slot_routes
from tampu.server.features.llama_server.template_caps import TemplateCaps
from tampu.server.fields.mixed_prompts import joined, read_prompts
from tampu.server.fields.options import ModelBody, parse_limited
from tampu.server.front.body import parsed
from tampu.server.front.errors import BusyError
from tampu.server.front.http_response import JSONResponse
from tampu.server.front.routes import get, post
from tampu.server.serving.event_response import event_response
from tampu.server.serving.generation_request import GenerationRequest
from tampu.server.serving.serving import Serving
from tampu.store.catalog import Entry
from tampu.version import __version__


def llama_server(core: Core) -> Feature:
    """Return the feature: llama-server's own API."""
    api = LlamaServerAPI(core.serving)
    routes = [
        post("/completion", api.complete, wire.LlamaCompletionRequest),
        post("/completions", api.complete, wire.LlamaCompletionRequest),
        post("/infill", api.infill, wire.InfillRequest),
        get("/props", api.props),
        get("/slots", api.slots),
    ]
    if not core.options.has_replicas:
        routes += loading_routes(core.serving)
        routes += saved_slot_routes(core.serving, core.options.slot_save_path)
    models, metrics = core.serving.models, core.metrics
    counts = LlamaServerMetrics(
        waiting=lambda: core.serving.waiting,
        running=lambda: sum(model.users for model in models.models()),
    )
    metrics.on_used.append(lambda _, usage: counts.answered(usage))
    metrics.on_computed.append(counts.computed)
    return Feature(routes=routes, metrics=counts.show)


class LlamaServerAPI:
    """The handlers."""

    def __init__(self, serving: Serving) -> None:
        self._serving = serving
        self._template_caps = TemplateCaps()

    async def complete(self, http: Request, body: wire.LlamaCompletionRequest) -> Response:
        """`POST /completion`: the continuation of prompts."""
        entry = self._serving.find_for(body, "completion")
        read = await parsed(http, read_prompts, body.prompt, "prompt")
        prompts = await joined(self._serving, entry, read)
        defaults = self._serving.defaults(entry)
        request = await parsed(http, wire.parse_llama_completion, body, prompts, defaults)
        return await self._answer(entry, request, body)

    async def infill(self, http: Request, body: wire.InfillRequest) -> Response:
        """`POST /infill`: the text between two others."""
        entry = self._serving.find_for(body, "insert")
        request = await parsed(http, wire.parse_infill, body, self._serving.defaults(entry))
        return await self._answer(entry, request, body)

    async def props(self, http: Request) -> Response:
        """`GET /props`: a model, and how its answers are generated."""
        entry, body = self._named(http)
        options = parse_limited(body, self._serving.defaults(entry), ("max_tokens", None)).options
        context, slots = self._serving.models.size_of(entry)
        held = entry.info.capabilities
        return JSONResponse({
            "default_generation_settings": {
                "n_ctx": context, "params": generation_settings(options),
            },
            "total_slots": slots,
            "model_alias": entry.full_name,
            "model_path": entry.info.path.name,
            "build_info": f"tampu-{__version__}",
            "modalities": {"vision": "vision" in held, "audio": "audio" in held},
            "media_marker": MEDIA_MARKER,
            "chat_template": entry.info.template,
            "chat_template_caps": await self._template_caps.of(entry.info),
            "is_sleeping": self._serving.is_sleeping(entry),
        })  # fmt: skip

    async def slots(self, http: Request) -> Response:
        """`GET /slots`: how many requests a model answers at a time, and how many it does now.

        With `?fail_on_no_slot=1` a model that answers no more at a time is an error.
        """
        entry, _ = self._named(http)
        loaded = self._serving.models.find(entry.name)
        context, slots = self._serving.models.size_of(entry)
        busy = 0 if loaded is None else loaded.users
        if busy >= slots and http.query_params.get("fail_on_no_slot", "0") not in ("0", ""):
            raise BusyError(f"no slot of {entry.full_name} is free")
        return JSONResponse([
            {"id": id, "n_ctx": context, "is_processing": id < busy} for id in range(slots)
        ])  # fmt: skip

    def _named(self, http: Request) -> tuple[Entry, ModelBody]:
        """Return the model of a request without a body: `?model=`, or as `find_for`."""
        body = ModelBody(model=http.query_params.get("model"))
        return self._serving.find_for(body), body

    async def _answer(
        self,
        entry: Entry,
        request: GenerationRequest,
        body: wire.LlamaCompletionRequest | wire.InfillRequest,
    ) -> Response:
        request = await self._serving.with_text_bias(entry, request)  # which the answer shows
        texts = []
        for prompt in request.prompts:
            if isinstance(prompt, TokensPrompt):
                decoded = await self._serving.ask_vocabulary(entry, Decode(prompt.tokens))
                texts.append(decoded.text)
            elif isinstance(prompt, TextPrompt | FIMPrompt):
                texts.append(prompt.text if isinstance(prompt, TextPrompt) else prompt.prefix)
        writer = LlamaCompletionWriter(
            request,
            texts,
            telemetry=body.telemetry(),
            returns_tokens=bool(body.return_tokens),
            fields=body.response_fields or (),
        )
        events = self._serving.generate(entry, request)
        return event_response(events, writer, request.warnings, is_streaming=bool(body.stream))
