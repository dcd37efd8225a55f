"""llama-server's own API over the models in memory: completion, tokens, templates, state."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import Any

import msgspec
from starlette.requests import Request
from starlette.responses import Response

from tampu.engine.prompts import MEDIA_MARKER, FIMPrompt, Prompt, TextPrompt, TokensPrompt
from tampu.engine.requests import Decode, Encode, Encoded
from tampu.server.core import Core
from tampu.server.feature import Feature
from tampu.server.features.llama_server import requests as wire
from tampu.server.features.llama_server.loading import loading_routes
from tampu.server.features.llama_server.output import (
    LlamaCompletionWriter,
    generation_settings,
)
from tampu.server.features.llama_server.saved_slots import saved_slot_routes
from tampu.server.features.llama_server.template_caps import TemplateCaps
from tampu.server.fields.mixed_prompts import read_prompts
from tampu.server.fields.options import ModelBody, parse_limited
from tampu.server.front.body import parsed
from tampu.server.front.errors import BusyError
from tampu.server.front.http_response import (
    JSONResponse,
    TaskResponse,
    json_response,
)
from tampu.server.front.routes import get, post
from tampu.server.ollama.tokens import BLOCK, id_blocks, json_items, piece_blocks
from tampu.server.openai.requests import ChatRequest, parse_chat_completion
from tampu.server.serving.event_response import event_response
from tampu.server.serving.generation_request import GenerationRequest
from tampu.server.serving.mixed_prompts import joined
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
        post("/tokenize", api.tokenize, wire.TokenizeContentRequest),
        post("/detokenize", api.detokenize, wire.DetokenizeTokensRequest),
        post("/apply-template", api.apply_template, ChatRequest),
        get("/props", api.props),
        get("/slots", api.slots),
    ]
    if not core.options.has_replicas:
        routes += loading_routes(core.serving)
        routes += saved_slot_routes(core.serving, core.options.slot_save_path)
    return Feature(routes=routes)


class LlamaServerAPI:
    """The handlers."""

    def __init__(self, serving: Serving) -> None:
        self._serving = serving
        self._template_caps = TemplateCaps()

    async def complete(self, http: Request, body: wire.LlamaCompletionRequest) -> Response:
        """`POST /completion`: the continuation of prompts."""
        entry = self._serving.find_for(body, "completion")
        read = await parsed(http, read_prompts, body.prompt, "prompt", takes_images=True)
        prompts = await joined(self._serving, entry, read)
        defaults = self._serving.defaults(entry)
        request = await parsed(http, wire.parse_llama_completion, body, prompts, defaults)
        return await self._answer(entry, request, body)

    async def infill(self, http: Request, body: wire.InfillRequest) -> Response:
        """`POST /infill`: the text between two others."""
        entry = self._serving.find_for(body, "insert")
        request = await parsed(http, wire.parse_infill, body, self._serving.defaults(entry))
        return await self._answer(entry, request, body)

    async def tokenize(self, http: Request, body: wire.TokenizeContentRequest) -> Response:
        """`POST /tokenize`: the tokens of a text."""
        entry = self._serving.find_for(body)
        await parsed(http, body.check)
        if body.content is None:
            return await self._tokenize_as_vllm(http, entry, body)
        content = body.content

        async def work() -> Response:
            asked = Encode(
                TextPrompt(content),
                add_special=body.add_special,
                parse_special=body.parse_special,
                detail="pieces" if body.with_pieces else "tokens",
            )
            found = await self._serving.ask_vocabulary(entry, asked)
            parts = _tokens_json(found, pieces=body.with_pieces)
            return json_response(parts, is_long=found.count > BLOCK)

        return TaskResponse(work())

    async def _tokenize_as_vllm(
        self, http: Request, entry: Entry, body: wire.TokenizeContentRequest
    ) -> Response:
        prompt: Prompt = TextPrompt(body.prompt or "")
        if body.messages is not None:
            prompt = await self._chat_prompt(http, entry, body)
        context, _ = self._serving.models.size_of(entry)
        words: Sequence[str] | None = None
        if body.return_token_strs:
            words = entry.info.metadata.strings("tokenizer.ggml.tokens")

        async def work() -> Response:
            asked = Encode(prompt, add_special=body.add_special_tokens is not False)
            found = await self._serving.ask_vocabulary(entry, asked)
            return json_response(_vllm_json(found, context, words), is_long=found.count > BLOCK)

        return TaskResponse(work())

    async def detokenize(self, _: Request, body: wire.DetokenizeTokensRequest) -> Response:
        """`POST /detokenize`: the text of tokens, under llama-server's name and vLLM's."""
        entry = self._serving.find_for(body)

        async def work() -> dict[str, str]:
            text = (await self._serving.ask_vocabulary(entry, Decode(tuple(body.tokens)))).text
            return {"content": text, "prompt": text}

        return TaskResponse(work())

    async def apply_template(self, http: Request, body: ChatRequest) -> Response:
        """`POST /apply-template`: the prompt that a conversation becomes."""
        entry = self._serving.find_for(body)
        prompt = await self._chat_prompt(http, entry, body)

        async def work() -> dict[str, str]:
            found = await self._serving.ask_vocabulary(entry, Encode(prompt, detail="text"))
            return {"prompt": found.pieces.decode("utf-8", "replace")}

        return TaskResponse(work())

    async def _chat_prompt(self, http: Request, entry: Entry, body: ChatRequest) -> Prompt:
        """Return the prompt of a conversation that is not answered.

        It may lack the start of an answer, unless it ends with one.
        """
        is_closed = body.add_generation_prompt is False and not (
            body.messages and body.messages[-1].role == "assistant"
        )
        if is_closed:
            body = msgspec.structs.replace(body, add_generation_prompt=None)
        request = await parsed(http, parse_chat_completion, body, self._serving.defaults(entry))
        [prompt] = request.prompts
        return msgspec.structs.replace(prompt, add_generation_prompt=False) if is_closed else prompt

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


def _tokens_json(encoded: Encoded, *, pieces: bool) -> Iterator[bytes]:
    """Yield the response to `POST /tokenize`, some thousand tokens at a time."""
    blocks: Iterable[list[Any]] = id_blocks(encoded)
    if pieces:
        blocks = (
            [{"id": one["id"], "piece": _piece(bytes(one["bytes"]))} for one in block]
            for block in piece_blocks(encoded)
        )
    yield b'{"tokens":['
    yield from json_items(blocks)
    yield b"]}"


def _vllm_json(encoded: Encoded, context: int, words: Sequence[str] | None) -> Iterator[bytes]:
    """Yield vLLM's response to `POST /tokenize`, likewise; with the vocabulary's own words."""
    yield b'{"count":%d,"max_model_len":%d,"tokens":[' % (encoded.count, context)
    yield from json_items(id_blocks(encoded))
    yield b'],"token_strs":'
    if words is None:
        yield b"null}"
    else:
        yield b"["
        yield from json_items([words[id] for id in block] for block in id_blocks(encoded))
        yield b"]}"


def _piece(data: bytes) -> str | list[int]:
    """Return the text of a token; of an incomplete character, its bytes."""
    try:
        return data.decode()
    except UnicodeDecodeError:
        return [*data]
