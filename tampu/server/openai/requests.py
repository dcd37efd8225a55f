"""OpenAI's API: the structs of requests, and what they mean.

Besides OpenAI's own fields, the names of Ollama's options (`num_ctx`, `top_k`, ...) are accepted at
the top or inside `options`, and `keep_alive`. A field that would change the answer and is not
supported is refused with a RequestError that names it; those that only label a request are ignored,
and so are unknown ones.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import msgspec

from tampu.engine.prompts import FIMPrompt, Prompt, TextPrompt
from tampu.errors import RequestError, require
from tampu.runner.generate_options import MAX_TOP_LOGPROBS
from tampu.server.fields.adapters import chosen_adapters
from tampu.server.fields.captures import read_capture
from tampu.server.fields.conversation import Conversation, check_can, with_conversation
from tampu.server.fields.logit_bias import read_bias
from tampu.server.fields.options import parse_limited
from tampu.server.fields.other_servers import (
    ChatBody,
    CompletionBody,
    check_chat_fields,
    check_completion_fields,
    field_warnings,
    keeps_reasoning,
    line_limits,
    parameters_of,
)
from tampu.server.fields.output_format import read_formats
from tampu.server.fields.tools import chat_tools, read_tool_choice
from tampu.server.openai.fields import (
    Message,
    check_cache_options,
    check_verbosity,
    read_effort,
    read_inputs,
    read_message,
    read_prediction,
    refuse_fields,
)
from tampu.server.serving.generation_request import MAX_CHOICES, GenerationRequest
from tampu.server.serving.model_defaults import ModelDefaults


class StreamOptions(msgspec.Struct, kw_only=True):
    """The extra content of a stream."""

    include_usage: bool | None = None


class ChatRequest(ChatBody, kw_only=True):
    """`POST /v1/chat/completions`."""

    stream_options: StreamOptions | None = None
    n: int | None = None
    n_cmpl: int | None = None
    logit_bias: dict[str, Any] | list[Any] | None = None
    messages: list[Message] | None = None
    max_completion_tokens: int | None = None
    logprobs: bool | None = None
    top_logprobs: int | None = None
    tools: list[dict[str, Any]] | None = None
    tool_choice: str | dict[str, Any] | None = None
    parallel_tool_calls: bool | None = None
    reasoning_effort: str | None = None
    prompt_cache_key: str | None = None
    modalities: list[str] | None = None
    prediction: dict[str, Any] | None = None
    prompt_cache_options: dict[str, Any] | None = None
    verbosity: Any = None
    chat_template_kwargs: dict[str, Any] | None = None
    verbose: bool | None = None
    # Unsupported; a request with one of them is refused.
    audio: Any = None
    functions: Any = None
    function_call: Any = None
    moderation: Any = None
    web_search_options: Any = None


class CompletionRequest(CompletionBody, kw_only=True):
    """`POST /v1/completions`; the prompt is a text, tokens, or a list of either."""

    stream_options: StreamOptions | None = None
    n: int | None = None
    n_cmpl: int | None = None
    logit_bias: dict[str, Any] | list[Any] | None = None
    prompt: str | list[Any] | None = None
    suffix: str | None = None
    logprobs: int | None = None
    echo: bool | None = None
    best_of: int | None = None


def parse_chat_completion(body: ChatRequest, defaults: ModelDefaults) -> GenerationRequest:
    """Return the request for the next message."""
    refuse_fields(body, "audio", "functions", "function_call", "moderation", "web_search_options")
    check_verbosity(body.verbosity, "verbosity")
    check_cache_options(body.prompt_cache_options)
    require(body.modalities in (None, ["text"]), "modalities: only text is supported")
    require(bool(body.messages), "messages: there must be at least one")
    messages = body.messages or []
    check_chat_fields(body, continues=messages[-1].role == "assistant")
    conversation = Conversation(
        messages=tuple(
            read_message(message, f"messages[{index}]") for index, message in enumerate(messages)
        ),
        tools=chat_tools(body.tools),
        tool_choice=read_tool_choice(body.tool_choice, is_parallel=body.parallel_tool_calls),
        think=read_effort(body.reasoning_effort, "reasoning_effort"),
        variables=body.chat_template_kwargs or {},
        structure=read_formats(body),
        keeps_reasoning=keeps_reasoning(body),
    )
    limits = {"max_tokens": body.max_tokens, "max_completion_tokens": body.max_completion_tokens}
    request = _parameters(
        body, defaults, limits, logprobs=body.logprobs, top_logprobs=body.top_logprobs
    )
    require(bool(body.logprobs) or not body.top_logprobs, "top_logprobs needs logprobs: true")
    if prediction := read_prediction(body.prediction):
        options = msgspec.structs.replace(request.options, prediction=prediction)
        request = replace(request, options=options)
    return with_conversation(request, conversation, defaults)


def parse_completion(
    body: CompletionRequest, defaults: ModelDefaults, *, limit: int | None = 16
) -> GenerationRequest:
    """Return the request for the completion of prompts, by default of at most `limit` tokens."""
    check_completion_fields(body)
    logprobs = body.logprobs
    in_range = logprobs is None or 0 <= logprobs <= MAX_TOP_LOGPROBS
    require(in_range, f"logprobs must be 0 to {MAX_TOP_LOGPROBS}, not {logprobs}")
    request = _parameters(
        body,
        defaults,
        {"max_tokens": body.max_tokens},
        default=limit,
        least=0 if body.echo else 1,
        logprobs=body.logprobs is not None or None,
        top_logprobs=body.logprobs,
    )
    check_can(defaults, "completion", request.model, "generate")
    if body.suffix:
        check_can(defaults, "insert", request.model, "suffix")
    require(body.best_of in (None, body.n or 1), "best_of must be n: choices are not compared")
    options = request.options
    if body.echo and body.logprobs is not None:
        require(not body.stream, "echo together with logprobs cannot be streamed")
        options = msgspec.structs.replace(options, prompt_logprobs=True)
    prompts: tuple[Prompt, ...] = tuple(read_inputs(body.prompt, "prompt"))
    if body.suffix:
        prompts = tuple(_before(prompt, body.suffix) for prompt in prompts)
    structure = read_formats(body)
    return replace(
        request,
        prompts=prompts,
        options=options,
        structure=structure,
        warnings=(*request.warnings, *(structure.warnings if structure else ())),
    )


def _before(prompt: Prompt, suffix: str) -> FIMPrompt:
    if not isinstance(prompt, TextPrompt):
        raise RequestError("suffix needs a prompt that is a text, not tokens")
    return FIMPrompt(prompt.text, suffix)


def wants_usage(body: ChatRequest | CompletionRequest) -> bool:
    """Whether a stream ends with its usage."""
    return body.stream_options is not None and bool(body.stream_options.include_usage)


def _parameters(
    body: ChatRequest | CompletionRequest,
    defaults: ModelDefaults,
    limits: Mapping[str, int | None],
    *,
    logprobs: bool | None,
    top_logprobs: int | None,
    least: int = 1,
    default: int | None = None,
) -> GenerationRequest:
    """Return a request without its prompt; the last of `limits` that is given is its length."""
    require(body.n is None or body.n_cmpl in (None, body.n), "n and n_cmpl: give one of them")
    choices = next((given for given in (body.n, body.n_cmpl) if given is not None), 1)
    field = "n" if body.n_cmpl is None else "n_cmpl"
    require(1 <= choices <= MAX_CHOICES, f"{field} must be 1 to {MAX_CHOICES}")
    fields = parameters_of(body, limits)
    given = [limit for limit in limits.items() if limit[1] is not None]
    has_limit = body.n_predict is not None or body.num_predict is not None
    bias = read_bias(body.logit_bias)
    request = parse_limited(
        body,
        defaults,
        given[-1] if given else ("max_tokens", None),
        least=least,
        default=None if has_limit else default,
        fields=fields,
        ignore_eos=body.ignore_eos,
        return_progress=body.telemetry().needs_progress or None,
        is_streamed=bool(body.stream),
        unlimited=-1,
        logprobs=logprobs,
        top_logprobs=top_logprobs,
        logit_bias=bias.tokens or None,
        lora=chosen_adapters(body.lora, body.lora_path),
        capture=read_capture(body, defaults),
        **line_limits(body),
    )
    warnings = (*request.warnings, *field_warnings(body))
    return replace(request, choices=choices, text_bias=bias.texts, warnings=warnings)
