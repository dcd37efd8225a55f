"""The routes of decisions: questions about an input, answered with probabilities."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeVar

from starlette.requests import Request
from starlette.responses import Response

from tampu.engine.questions import Decisions
from tampu.server.body import parsed
from tampu.server.generation_request import DecisionTask
from tampu.server.http_response import JSONResponse, TaskResponse, warning_headers
from tampu.server.image_urls import ImageFetcher
from tampu.server.routes import Route, post
from tampu.server.serving import Serving
from tampu.server.wire import decisions as wire
from tampu.store.catalog import Entry

B = TypeVar("B", wire.DecisionsRequest, wire.SystemOneRequest)


def decision_routes(serving: Serving, images: ImageFetcher) -> list[Route]:
    """Return the routes."""

    async def decisions(http: Request, body: wire.DecisionsRequest) -> Response:
        """`POST /v1/decisions`: answers to questions about an input, as probabilities."""
        entry = serving.find_for(body)
        await images.fill(body.input)
        task = await parsed(http, wire.parse_decisions, body, serving.defaults(entry))
        return answer(entry, body, task, wire.decisions_response)

    async def systemone(http: Request, body: wire.SystemOneRequest) -> Response:
        """`POST /v1/systemone`: the same in the form of decision models."""
        entry = serving.find_for(body)
        task = await parsed(http, wire.parse_systemone, body, serving.defaults(entry))
        return answer(entry, body, task, wire.systemone_response)

    def answer(
        entry: Entry, body: B, task: DecisionTask, write: Callable[[B, Decisions], dict[str, Any]]
    ) -> Response:
        async def work() -> Response:
            found = await serving.decide(entry, task)
            return JSONResponse(write(body, found), headers=warning_headers(task.warnings))

        return TaskResponse(work())

    return [
        post("/v1/decisions", decisions, wire.DecisionsRequest),
        post("/v1/systemone", systemone, wire.SystemOneRequest),
    ]
