"""Texts as tokens and back; the model's weights need not be loaded for it."""

from __future__ import annotations

from collections.abc import Sequence

import msgspec
from starlette.requests import Request
from starlette.responses import Response

from tampu.engine.prompts import Prompt, TextPrompt
from tampu.engine.requests import Decode, Encode
from tampu.server.core import Core
from tampu.server.feature import Feature
from tampu.server.features.tokens import requests as wire
from tampu.server.features.tokens.output import (
    BLOCK,
    llama_json,
    tokens_json,
    vllm_json,
)
from tampu.server.front.body import parsed
from tampu.server.front.http_response import TaskResponse, json_response
from tampu.server.front.routes import post
from tampu.server.openai.requests import ChatRequest, parse_chat_completion
from tampu.server.serving.serving import Serving
from tampu.store.catalog import Entry


def tokens(core: Core) -> Feature:
    """Return the feature: tokens of texts, texts of tokens, and prompts of conversations."""
    api = TokensAPI(core.serving)
    return Feature(
        routes=[
            post("/api/tokenize", api.tokenize, wire.TokenizeRequest),
            post("/api/detokenize", api.detokenize, wire.DetokenizeRequest),
            post("/tokenize", api.tokenize_content, wire.TokenizeContentRequest),
            post("/detokenize", api.detokenize_tokens, wire.DetokenizeTokensRequest),
            post("/apply-template", api.apply_template, ChatRequest),
        ]
    )


class TokensAPI:
    """The handlers."""

    def __init__(self, serving: Serving) -> None:
        self._serving = serving

    async def tokenize(self, http: Request, body: wire.TokenizeRequest) -> Response:
        """`POST /api/tokenize`: the tokens of a text or a conversation."""
        entry = self._serving.find(body.model)
        prompt = await parsed(http, body.prompt)

        async def work() -> Response:
            asked = Encode(
                prompt,
                add_special=body.add_special,
                parse_special=body.parse_special,
                detail="pieces" if body.pieces else "tokens",
            )
            encoded = await self._serving.ask_vocabulary(entry, asked)
            parts = tokens_json(encoded, pieces=body.pieces)
            return json_response(parts, is_long=encoded.count > BLOCK)

        return TaskResponse(work())

    async def detokenize(self, _: Request, body: wire.DetokenizeRequest) -> Response:
        """`POST /api/detokenize`: the text of tokens."""
        entry = self._serving.find(body.model)

        async def work() -> dict[str, str]:
            found = await self._serving.ask_vocabulary(entry, Decode(tuple(body.tokens)))
            return {"text": found.text}

        return TaskResponse(work())

    async def tokenize_content(self, http: Request, body: wire.TokenizeContentRequest) -> Response:
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
            parts = llama_json(found, pieces=body.with_pieces)
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
            return json_response(vllm_json(found, context, words), is_long=found.count > BLOCK)

        return TaskResponse(work())

    async def detokenize_tokens(self, _: Request, body: wire.DetokenizeTokensRequest) -> Response:
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
