"""OpenAI's API of responses over the models in memory; it keeps no state."""

from __future__ import annotations

from typing import Any

from starlette.requests import Request
from starlette.responses import Response

from tampu.server.http_response import EventsResponse, TaskResponse
from tampu.server.routes import Route, post
from tampu.server.serving import Serving
from tampu.server.wire.responses import ResponsesRequest, parse_response
from tampu.server.wire.responses_output import ResponseWriter


def responses_routes(serving: Serving) -> list[Route]:
    """Return the routes of the responses."""

    async def respond(_: Request, body: ResponsesRequest) -> Response:
        """`POST /v1/responses`: the model's response to items."""
        entry = serving.find(body.model)
        request = parse_response(body, serving.defaults(entry))
        events = serving.generate(entry, request)
        return EventsResponse(events, ResponseWriter(body), is_streaming=bool(body.stream))

    async def count(_: Request, body: ResponsesRequest) -> Response:
        """`POST /v1/responses/input_tokens`: how many tokens the input has."""
        entry = serving.find(body.model)
        [prompt] = parse_response(body, serving.defaults(entry)).prompts

        async def work() -> dict[str, Any]:
            encoded = await serving.encode(entry, prompt)
            return {"object": "response.input_tokens", "input_tokens": len(encoded.tokens)}

        return TaskResponse(work())

    return [
        post("/v1/responses", respond, ResponsesRequest),
        post("/v1/responses/input_tokens", count, ResponsesRequest),
    ]
