"""Anthropic's API over the models in memory."""

from __future__ import annotations

from starlette.requests import Request
from starlette.responses import Response

from tampu.engine.requests import Encode
from tampu.server.anthropic import requests as wire
from tampu.server.anthropic.output import MessageWriter
from tampu.server.fields.media import ImageSource
from tampu.server.front.body import parsed
from tampu.server.front.http_response import (
    JSONResponse,
    TaskResponse,
    warning_headers,
)
from tampu.server.front.routes import Route, post
from tampu.server.serving.event_response import event_response
from tampu.server.serving.hosted_tools import HostedTools, message_form
from tampu.server.serving.serving import Serving


def anthropic_routes(serving: Serving, images: ImageSource, tools: HostedTools) -> list[Route]:
    """Return the routes of Anthropic's API."""

    async def messages(http: Request, body: wire.MessagesRequest) -> Response:
        """`POST /v1/messages`: the next message of a conversation."""
        entry = serving.find_for(body, "completion")
        await images.fill([each.content for each in body.messages or ()])
        offer = await tools.offer(body.tools, message_form)
        body.tools = offer.tools
        request = await parsed(http, wire.parse_messages, body, serving.defaults(entry))
        events = tools.generate(entry, request, offer)
        writer = MessageWriter(request.model, hides_reasoning=wire.hides_reasoning(body))
        return event_response(events, writer, request.warnings, is_streaming=bool(body.stream))

    async def count(http: Request, body: wire.CountRequest) -> Response:
        """`POST /v1/messages/count_tokens`: how many tokens a conversation has."""
        entry = serving.find_for(body)
        await images.fill([each.content for each in body.messages or ()])
        body.tools = (await tools.offer(body.tools, message_form)).tools
        request = await parsed(http, wire.parse_count, body, serving.defaults(entry))
        [prompt] = request.prompts

        async def work() -> Response:
            found = await serving.ask_vocabulary(entry, Encode(prompt, detail="count"))
            counted = {"input_tokens": found.count}
            return JSONResponse(counted, headers=warning_headers(request.warnings))

        return TaskResponse(work())

    return [
        post("/v1/messages", messages, wire.MessagesRequest),
        post("/v1/messages/count_tokens", count, wire.CountRequest),
    ]
