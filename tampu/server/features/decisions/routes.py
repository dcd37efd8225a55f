"""The routes of decisions and ranking: what is answered with probabilities."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any, TypeVar

from starlette.requests import Request
from starlette.responses import Response

from tampu.engine.questions import Decisions
from tampu.engine.requests import Decided
from tampu.server.core import Core
from tampu.server.feature import Feature
from tampu.server.features.decisions import requests as wire
from tampu.server.features.decisions.rerank import RerankRequest, parse_rerank, rerank_response
from tampu.server.features.decisions.scores import ScoreRequest, parse_scores, score_response
from tampu.server.front.body import parsed
from tampu.server.front.http_response import JSONResponse, TaskResponse, warning_headers
from tampu.server.front.routes import post
from tampu.server.serving.generation_request import ModelCall
from tampu.store.catalog import Entry

B = TypeVar("B", wire.DecisionsRequest, wire.SystemOneRequest, RerankRequest)


def decisions(core: Core) -> Feature:
    """Return the feature: decisions, ranking and scores."""
    serving, images = core.serving, core.images

    async def decide(http: Request, body: wire.DecisionsRequest) -> Response:
        """`POST /v1/decisions`: answers to questions about an input, as probabilities."""
        entry = serving.find_for(body, "completion")
        await images.fill(body.input)
        call = await parsed(http, wire.parse_decisions, body, serving.defaults(entry))
        return answer(entry, body, call, wire.decisions_response)

    async def systemone(http: Request, body: wire.SystemOneRequest) -> Response:
        """`POST /v1/systemone`: the same in the form of decision models."""
        entry = serving.find_for(body, "completion")
        call = await parsed(http, wire.parse_systemone, body, serving.defaults(entry))
        return answer(entry, body, call, wire.systemone_response)

    async def rerank(http: Request, body: RerankRequest) -> Response:
        """`POST /v1/rerank`: documents in the order of how well they match a query."""
        return await ranked(http, body, is_cohere=False)

    async def cohere_rerank(http: Request, body: RerankRequest) -> Response:
        """`POST /v2/rerank`: the same in Cohere's form."""
        return await ranked(http, body, is_cohere=True)

    async def score(http: Request, body: ScoreRequest) -> Response:
        """`POST /v1/score`: how well pairs of texts match."""
        entry = serving.find_for(body, "rerank", "completion")
        calls = await parsed(http, parse_scores, body, serving.defaults(entry))

        async def work() -> Response:
            found = {
                query: (await serving.ask(entry, call)).decisions for query, call in calls.items()
            }
            return JSONResponse(score_response(body, found))

        return TaskResponse(work())

    async def ranked(http: Request, body: RerankRequest, *, is_cohere: bool) -> Response:
        entry = serving.find_for(body, "rerank", "completion")
        call = await parsed(http, parse_rerank, body, serving.defaults(entry))
        return answer(entry, body, call, partial(rerank_response, is_cohere=is_cohere))

    def answer(
        entry: Entry, body: B, call: ModelCall[Decided], write: Callable[[B, Decisions], Any]
    ) -> Response:
        async def work() -> Response:
            found = (await serving.ask(entry, call)).decisions
            return JSONResponse(write(body, found), headers=warning_headers(call.warnings))

        return TaskResponse(work())

    routes = [
        post("/v1/decisions", decide, wire.DecisionsRequest),
        post("/v1/systemone", systemone, wire.SystemOneRequest),
        post("/v1/rerank", rerank, RerankRequest),
        post("/v1/reranking", rerank, RerankRequest),
        post("/v2/rerank", cohere_rerank, RerankRequest),
        post("/v1/score", score, ScoreRequest),
    ]
    return Feature(routes=routes)
