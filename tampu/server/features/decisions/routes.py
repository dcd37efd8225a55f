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
from tampu.server.fields.media import ImageSource
from tampu.server.front.body import parsed
from tampu.server.front.http_response import JSONResponse, TaskResponse, warning_headers
from tampu.server.front.routes import Route, post
from tampu.server.serving.generation_request import ModelCall
from tampu.server.serving.serving import Serving
from tampu.store.catalog import Entry

B = TypeVar("B", wire.DecisionsRequest, wire.SystemOneRequest, RerankRequest)


def decisions(core: Core) -> Feature:
    """Return the feature: decisions, ranking and scores."""
    return Feature(routes=decision_routes(core.serving, core.images))


def decision_routes(serving: Serving, images: ImageSource) -> list[Route]:
    """Return the routes of decisions, ranking and scores."""
    api = DecisionsAPI(serving, images)
    return [
        post("/v1/decisions", api.decide, wire.DecisionsRequest),
        post("/v1/systemone", api.systemone, wire.SystemOneRequest),
        post("/v1/rerank", api.rerank, RerankRequest),
        post("/v1/reranking", api.rerank, RerankRequest),
        post("/v2/rerank", api.cohere_rerank, RerankRequest),
        post("/v1/score", api.score, ScoreRequest),
    ]


class DecisionsAPI:
    """The handlers."""

    def __init__(self, serving: Serving, images: ImageSource) -> None:
        self._serving = serving
        self._images = images

    async def decide(self, http: Request, body: wire.DecisionsRequest) -> Response:
        """`POST /v1/decisions`: answers to questions about an input, as probabilities."""
        entry = self._serving.find_for(body, "decision", "completion")
        await self._images.fill(body.input)
        call = await parsed(http, wire.parse_decisions, body, self._serving.defaults(entry))
        return self._answer(entry, body, call, wire.decisions_response)

    async def systemone(self, http: Request, body: wire.SystemOneRequest) -> Response:
        """`POST /v1/systemone`: the same in the form of decision models."""
        entry = self._serving.find_for(body, "decision", "completion")
        call = await parsed(http, wire.parse_systemone, body, self._serving.defaults(entry))
        return self._answer(entry, body, call, wire.systemone_response)

    async def rerank(self, http: Request, body: RerankRequest) -> Response:
        """`POST /v1/rerank`: documents in the order of how well they match a query."""
        return await self._ranked(http, body, is_cohere=False)

    async def cohere_rerank(self, http: Request, body: RerankRequest) -> Response:
        """`POST /v2/rerank`: the same in Cohere's form."""
        return await self._ranked(http, body, is_cohere=True)

    async def score(self, http: Request, body: ScoreRequest) -> Response:
        """`POST /v1/score`: how well pairs of texts match."""
        entry = self._serving.find_for(body, "rerank", "completion")
        calls = await parsed(http, parse_scores, body, self._serving.defaults(entry))

        async def work() -> Response:
            found = {
                query: (await self._serving.ask(entry, call)).decisions
                for query, call in calls.items()
            }
            return JSONResponse(score_response(body, found))

        return TaskResponse(work())

    async def _ranked(self, http: Request, body: RerankRequest, *, is_cohere: bool) -> Response:
        entry = self._serving.find_for(body, "rerank", "completion")
        call = await parsed(http, parse_rerank, body, self._serving.defaults(entry))
        return self._answer(entry, body, call, partial(rerank_response, is_cohere=is_cohere))

    def _answer(
        self, entry: Entry, body: B, call: ModelCall[Decided], write: Callable[[B, Decisions], Any]
    ) -> Response:
        async def work() -> Response:
            found = (await self._serving.ask(entry, call)).decisions
            return JSONResponse(write(body, found), headers=warning_headers(call.warnings))

        return TaskResponse(work())
