"""OpenAI's API of responses: answers to items, which are stored for later ones."""

from __future__ import annotations

from functools import partial

import msgspec
from starlette.requests import Request
from starlette.responses import Response

from tampu.server.core import Core
from tampu.server.feature import Feature
from tampu.server.features.responses.conversation_store import ConversationStore
from tampu.server.features.responses.conversations import conversation_routes
from tampu.server.features.responses.output import ResponseWriter
from tampu.server.features.responses.requests import ResponsesRequest, parse_response
from tampu.server.features.responses.store import ResponseStore
from tampu.server.features.responses.stored import KeptResponse, stored_response_routes
from tampu.server.features.responses.stored_items import KeptItems
from tampu.server.features.responses.tools import response_form
from tampu.server.front.body import parsed
from tampu.server.front.caller import current_caller
from tampu.server.front.routes import post
from tampu.server.front.session import name_session
from tampu.server.openai.routes import token_count
from tampu.server.serving.event_response import event_response
from tampu.server.serving.hosted_tools import Offer


def responses(core: Core) -> Feature:
    """Return the feature: responses, and where one server answers all requests stored ones."""
    # The requests of a conversation may come to several servers of one cluster.
    kept_bytes = 0 if core.options.has_replicas else core.options.max_responses_bytes
    store = ResponseStore(core.state, kept_bytes)
    kept = KeptItems(store, ConversationStore(core.state, kept_bytes))
    api = ResponsesAPI(core, kept)
    routes = [
        post("/v1/responses", api.respond, ResponsesRequest),
        post("/v1/responses/input_tokens", api.count_response, ResponsesRequest),
    ]
    if not core.options.has_replicas:
        routes += [*stored_response_routes(store), *conversation_routes(kept, core.images)]
    return Feature(routes=routes)


class ResponsesAPI:
    """The handlers."""

    def __init__(self, core: Core, kept: KeptItems) -> None:
        self._serving, self._images, self._tools = core.serving, core.images, core.hosted_tools
        self._kept = kept

    async def respond(self, http: Request, body: ResponsesRequest) -> Response:
        """`POST /v1/responses`: the model's response to items."""
        name_session(body.prompt_cache_key)
        entry = self._serving.find_for(body, "completion")
        given, offer = await self._whole(body)
        request = await parsed(http, parse_response, given, self._serving.defaults(entry))
        caller, is_streaming = current_caller(), bool(body.stream)
        is_kept = await self._kept.responses.keeps(caller, wanted=body.store)
        writer = ResponseWriter(body, truncates=request.options.truncate, is_kept=is_kept)
        events = self._tools.generate(entry, request, offer)
        if not is_kept and body.conversation is None:
            return event_response(events, writer, request.warnings, is_streaming=is_streaming)
        keep = partial(self._kept.keep, caller, body, is_kept=is_kept)
        warnings = request.warnings
        return KeptResponse(events, writer, keep, is_streaming=is_streaming, warnings=warnings)

    async def count_response(self, http: Request, body: ResponsesRequest) -> Response:
        """`POST /v1/responses/input_tokens`: how many tokens the input has."""
        entry = self._serving.find_for(body)
        given, _ = await self._whole(body)
        defaults = self._serving.defaults(entry)
        return token_count(
            self._serving, entry, await parsed(http, parse_response, given, defaults)
        )

    async def _whole(self, body: ResponsesRequest) -> tuple[ResponsesRequest, Offer]:
        """Return a request with the conversation that it continues, and the tools it names."""
        await self._images.fill(body.input)
        if isinstance(body.input, list):
            body.input = await self._kept.resolve(current_caller(), body.input, "input")
        given = await self._kept.whole(current_caller(), body)
        offer = await self._tools.offer(body.tools, response_form)
        return msgspec.structs.replace(body, input=given, tools=offer.tools), offer
