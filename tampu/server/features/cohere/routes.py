"""Texts, images and sounds as vectors, in Cohere's form."""

from __future__ import annotations

from starlette.requests import Request
from starlette.responses import Response

from tampu.server.core import Core
from tampu.server.feature import Feature
from tampu.server.features.cohere.requests import (
    CohereEmbedRequest,
    cohere_embeddings,
    parse_cohere_embed,
)
from tampu.server.front.body import parsed
from tampu.server.front.http_response import JSONResponse, TaskResponse
from tampu.server.front.routes import post
from tampu.server.serving.event_response import embedding_warnings


def cohere(core: Core) -> Feature:
    """Return the feature: embeddings in Cohere's form; `decisions` has its ranking."""
    serving = core.serving

    async def cohere_embed(http: Request, body: CohereEmbedRequest) -> Response:
        """`POST /v2/embed`: texts, images and sounds as vectors, in Cohere's form."""
        entry = serving.find_for(body, "embedding")
        await core.images.fill(body.inputs or [])
        call = await parsed(http, parse_cohere_embed, body, serving.defaults(entry))

        async def work() -> Response:
            found = await serving.ask(entry, call)
            answer = cohere_embeddings(body, found.array(), found.tokens)
            return JSONResponse(answer, headers=embedding_warnings(call, found))

        return TaskResponse(work())

    return Feature(routes=[post("/v2/embed", cohere_embed, CohereEmbedRequest)])
