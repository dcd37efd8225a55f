"""OpenAI's API of responses: the struct of requests, and what they mean.

Each function raises RequestError for an invalid or unsupported field, which the message names.
"""

from __future__ import annotations

from typing import Any

from tampu.chat.output.reasoning import Think
from tampu.errors import require
from tampu.server.features.responses.tools import response_tools
from tampu.server.fields.adapters import chosen_adapters
from tampu.server.fields.captures import read_capture
from tampu.server.fields.conversation import Conversation, with_conversation
from tampu.server.fields.options import parse_limited
from tampu.server.fields.other_servers import GeneratingBody, line_limits, parameters_of
from tampu.server.fields.output_format import read_formats
from tampu.server.fields.tools import read_tool_choice
from tampu.server.openai.fields import (
    check_cache_options,
    check_verbosity,
    read_effort,
    refuse_fields,
)
from tampu.server.openai.items import read_items
from tampu.server.serving.generation_request import GenerationRequest
from tampu.server.serving.model_defaults import ModelDefaults

_LOGPROBS = "message.output_text.logprobs"
# Values of `include` besides points: logprobs, and parts that never occur here.
_INCLUDED = (
    _LOGPROBS, "reasoning.encrypted_content", "message.input_image.image_url",
    "file_search_call.results", "web_search_call.results", "web_search_call.action.sources",
    "computer_call_output.output.image_url", "code_interpreter_call.outputs",
)  # fmt: skip


class ResponsesRequest(GeneratingBody, kw_only=True):
    """`POST /v1/responses`."""

    input: str | list[dict[str, Any]] | None = None
    instructions: str | None = None
    top_logprobs: int | None = None
    max_output_tokens: int | None = None
    tools: list[dict[str, Any]] | None = None
    tool_choice: str | dict[str, Any] | None = None
    parallel_tool_calls: bool | None = None
    reasoning: dict[str, Any] | None = None
    text: dict[str, Any] | None = None
    prompt_cache_key: str | None = None
    prompt_cache_options: dict[str, Any] | None = None
    metadata: dict[str, Any] | None = None
    store: bool | None = None
    previous_response_id: str | None = None
    conversation: Any = None
    # Unsupported; a request with one of them is refused.
    background: Any = None
    background_options: Any = None
    prompt: Any = None
    moderation: Any = None
    personality: Any = None
    max_tool_calls: Any = None
    context_management: Any = None
    image: Any = None


def parse_response(body: ResponsesRequest, defaults: ModelDefaults) -> GenerationRequest:
    """Return the request for a response."""
    refuse_fields(
        body,
        "background", "background_options", "prompt",
        "moderation", "personality", "max_tool_calls", "context_management", "image",
    )  # fmt: skip
    check_cache_options(body.prompt_cache_options)
    check_verbosity((body.text or {}).get("verbosity"), "text.verbosity")
    think = _effort(body.reasoning or {})
    warnings: list[str] = []
    if think and "thinking" not in defaults.info.capabilities:
        think = None
        warnings.append("reasoning.effort has no effect: the model does not reason")
    conversation = Conversation(
        messages=read_items(body.input, body.instructions),
        tools=response_tools(body.tools),
        tool_choice=read_tool_choice(body.tool_choice, is_parallel=body.parallel_tool_calls),
        think=think,
        structure=read_formats(body),
        warnings=warnings,
    )
    return with_conversation(_parameters(body, defaults), conversation, defaults)


def _effort(reasoning: dict[str, Any]) -> Think:
    """Return the reasoning effort; reasoning is returned whole, whatever summary is requested."""
    message = "reasoning.mode is not supported, only standard"
    require(reasoning.get("mode") in (None, "standard"), message)
    return read_effort(reasoning.get("effort"), "reasoning.effort")


def _parameters(body: ResponsesRequest, defaults: ModelDefaults) -> GenerationRequest:
    with_logprobs = bool(body.top_logprobs) or _LOGPROBS in (body.include or ())
    limits = {"max_tokens": body.max_tokens, "max_output_tokens": body.max_output_tokens}
    given = [limit for limit in limits.items() if limit[1] is not None]
    return parse_limited(
        body,
        defaults,
        given[-1] if given else ("max_tokens", None),
        fields=parameters_of(body, limits),
        is_streamed=bool(body.stream),
        lora=chosen_adapters(body.lora, body.lora_path),
        capture=read_capture(body, defaults, _INCLUDED),
        ignore_eos=body.ignore_eos,
        return_progress=body.telemetry().needs_progress or None,
        **line_limits(body),
        logprobs=with_logprobs,
        top_logprobs=body.top_logprobs,
    )
