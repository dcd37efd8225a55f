"""Texts, images and sounds as vectors, in OpenAI's form and llama-server's."""

from __future__ import annotations

import msgspec
from starlette.requests import Request
from starlette.responses import Response

from tampu.server.fields.media import ImageSource
from tampu.server.fields.mixed_prompts import is_mixed, joined, read_prompts
from tampu.server.front.body import parsed
from tampu.server.front.http_response import SHORT, JSONResponse, TaskResponse
from tampu.server.front.routes import Route, post
from tampu.server.openai.embeddings import (
    EmbeddingRequest,
    embedding_list,
    parse_embedding,
    vector_lists,
)
from tampu.server.serving.event_response import embedding_warnings
from tampu.server.serving.serving import Serving


def embedding_routes(serving: Serving, images: ImageSource) -> list[Route]:
    """Return the routes of embeddings."""

    async def embed(http: Request, body: EmbeddingRequest) -> Response:
        """`POST /v1/embeddings`: texts, images and sounds as vectors."""
        is_short = http.scope.get(SHORT, False)
        # OpenAI's packages send `encoding_format` always, llama-server's clients never.
        is_plain = body.content is not None or (is_short and body.encoding_format is msgspec.UNSET)
        return await _embed(http, body, is_plain=is_plain, may_be_unpooled=is_short)

    async def embed_content(http: Request, body: EmbeddingRequest) -> Response:
        """`POST /embedding`: texts, images and sounds as vectors, each in a list."""
        return await _embed(http, body, is_plain=True, may_be_unpooled=True)

    async def _embed(
        http: Request, body: EmbeddingRequest, *, is_plain: bool, may_be_unpooled: bool
    ) -> Response:
        entry = serving.find_for(body, "embedding")
        given, field = await parsed(http, body.given)
        await images.fill(await parsed(http, body.objects))
        media = await parsed(http, body.media)
        if is_mixed(given):
            read = await parsed(http, read_prompts, given, field)
            given = await joined(serving, entry, read)
        defaults = serving.defaults(entry)
        call = await parsed(http, parse_embedding, body, given, media, defaults, may_be_unpooled)

        async def work() -> Response:
            found = await serving.ask(entry, call)
            if is_plain or found.lengths:
                answer: object = vector_lists(found)
            else:
                is_base64 = body.encoding_format == "base64"
                answer = embedding_list(found, call.model, is_base64=is_base64)
            return JSONResponse(answer, headers=embedding_warnings(call, found))

        return TaskResponse(work())

    return [
        post("/v1/embeddings", embed, EmbeddingRequest),
        post("/embedding", embed_content, EmbeddingRequest),
    ]
