"""OpenAI's API: the structs of requests, and what they mean.

Beside OpenAI's own fields the names of Ollama's options are understood (`num_ctx`, `top_k`, ...),
at the top or inside `options`, and `keep_alive`. A field that would change the answer and is not
supported is refused; those that only label a request are ignored, and so are unknown ones.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import msgspec

from tampu.engine.prompts import FIMPrompt, Prompt, TextPrompt
from tampu.errors import RequestError
from tampu.runner.request import MAX_TOP_LOGPROBS
from tampu.server.generation_request import MAX_CHOICES, EmbeddingTask, GenerationRequest, require
from tampu.server.model_defaults import ModelDefaults
from tampu.server.wire.conversation import Conversation, check_can, with_conversation
from tampu.server.wire.openai_fields import (
    ResponseFormat,
    check_cache_options,
    check_verbosity,
    read_bias,
    read_effort,
    read_format,
    read_inputs,
    read_tool_choice,
    refuse_fields,
)
from tampu.server.wire.openai_messages import Message, template_message
from tampu.server.wire.options import (
    OPENAI_DEFAULTS,
    keep_alive_s,
    parameter_fields,
    parse_request,
    request_options,
    with_parameters,
)


class StreamOptions(msgspec.Struct, kw_only=True):
    """What a stream holds besides the answer."""

    include_usage: bool | None = None


@with_parameters
class _Common(msgspec.Struct, kw_only=True):
    """What both kinds of generating have in common, besides the fields that are parameters."""

    model: str | None = None
    stream: bool | None = None
    stream_options: StreamOptions | None = None
    n: int | None = None
    stop: str | list[str] | None = None
    logit_bias: dict[str, float] | None = None
    # Beyond OpenAI's own.
    options: dict[str, Any] | None = None
    keep_alive: float | str | None = None


class ChatRequest(_Common, kw_only=True):
    """`POST /v1/chat/completions`."""

    messages: list[Message] | None = None
    max_completion_tokens: int | None = None
    logprobs: bool | None = None
    top_logprobs: int | None = None
    response_format: ResponseFormat | None = None
    tools: list[dict[str, Any]] | None = None
    tool_choice: str | dict[str, Any] | None = None
    parallel_tool_calls: bool | None = None
    reasoning_effort: str | None = None
    modalities: list[str] | None = None
    prompt_cache_options: dict[str, Any] | None = None
    verbosity: Any = None
    chat_template_kwargs: dict[str, Any] | None = None
    # Unsupported; a request with one of them is refused.
    audio: Any = None
    functions: Any = None
    function_call: Any = None
    moderation: Any = None
    web_search_options: Any = None


class CompletionRequest(_Common, kw_only=True):
    """`POST /v1/completions`; the prompt is a text, tokens, or a list of either."""

    prompt: str | list[Any] | None = None
    suffix: str | None = None
    logprobs: int | None = None
    echo: bool | None = None
    best_of: int | None = None


class EmbeddingRequest(msgspec.Struct, kw_only=True):
    """`POST /v1/embeddings`; the input is a text, tokens, or a list of either."""

    input: str | list[Any]
    model: str | None = None
    encoding_format: str | None = None
    dimensions: int | None = None
    keep_alive: float | str | None = None
    options: dict[str, Any] | None = None


def parse_chat_completion(body: ChatRequest, defaults: ModelDefaults) -> GenerationRequest:
    """Return the request for the next message.

    Raises:
        RequestError: naming an unsupported or invalid field.
    """
    refuse_fields(body, "audio", "functions", "function_call", "moderation", "web_search_options")
    check_verbosity(body.verbosity, "verbosity")
    check_cache_options(body.prompt_cache_options)
    texts_only = body.modalities in (None, ["text"])
    require(holds=texts_only, message="modalities: only text is supported")
    require(holds=bool(body.messages), message="messages: there must be at least one")
    wish = read_tool_choice(body.tool_choice)
    conversation = Conversation(
        messages=tuple(
            template_message(message, f"messages[{index}]")
            for index, message in enumerate(body.messages or ())
        ),
        tools=wish.among(body.tools or ()),
        tool_choice=wish.choice,
        tool=wish.tool,
        is_parallel=body.parallel_tool_calls is not False,
        think=read_effort(body.reasoning_effort, "reasoning_effort"),
        variables=body.chat_template_kwargs or {},
        response_format=read_format(body.response_format, "response_format"),
    )
    limit = "max_tokens" if body.max_completion_tokens is None else "max_completion_tokens"
    request = _parameters(
        body, defaults, limit, logprobs=body.logprobs, top_logprobs=body.top_logprobs
    )
    message = "top_logprobs needs logprobs: true"
    require(holds=bool(body.logprobs) or not body.top_logprobs, message=message)
    return with_conversation(request, conversation, defaults)


def parse_completion(body: CompletionRequest, defaults: ModelDefaults) -> GenerationRequest:
    """Return the request for the completion of prompts.

    Raises:
        RequestError: naming an unsupported or invalid field.
    """
    logprobs = body.logprobs
    in_range = logprobs is None or 0 <= logprobs <= MAX_TOP_LOGPROBS
    require(holds=in_range, message=f"logprobs must be 0 to {MAX_TOP_LOGPROBS}, not {logprobs}")
    request = _parameters(
        body,
        defaults,
        "max_tokens",
        default=16,
        fewest=0 if body.echo else 1,
        logprobs=body.logprobs is not None or None,
        top_logprobs=body.logprobs,
    )
    check_can(defaults, "completion", request.model, "generate")
    if body.suffix:
        check_can(defaults, "insert", request.model, "suffix")
    best_is_all = body.best_of in (None, body.n or 1)
    require(holds=best_is_all, message="best_of must be n: choices are not compared")
    options = request.options
    if body.echo and body.logprobs is not None:
        message = "echo together with logprobs cannot be streamed"
        require(holds=not body.stream, message=message)
        options = msgspec.structs.replace(options, prompt_logprobs=True)
    prompts: tuple[Prompt, ...] = tuple(read_inputs(body.prompt, "prompt"))
    if body.suffix:
        prompts = tuple(_before(prompt, body.suffix) for prompt in prompts)
    return replace(request, prompts=prompts, options=options)


def _before(prompt: Prompt, suffix: str) -> FIMPrompt:
    if not isinstance(prompt, TextPrompt):
        raise RequestError("suffix needs a prompt that is a text, not tokens")
    return FIMPrompt(prompt.text, suffix)


def parse_embedding(body: EmbeddingRequest, defaults: ModelDefaults) -> EmbeddingTask:
    """Return the request for embeddings.

    Raises:
        RequestError: naming an unsupported or invalid field.
    """
    formats = (None, "float", "base64")
    message = "encoding_format must be float or base64"
    require(holds=body.encoding_format in formats, message=message)
    overrides, _ = request_options(defaults, body.options)
    return EmbeddingTask(
        model=body.model or "",
        overrides=overrides,
        keep_alive_s=keep_alive_s(body.keep_alive),
        inputs=tuple(read_inputs(body.input, "input")),
        dimensions=body.dimensions,
    )


def wants_usage(body: _Common) -> bool:
    """Whether a stream ends with its usage."""
    return body.stream_options is not None and bool(body.stream_options.include_usage)


def _parameters(
    body: _Common,
    defaults: ModelDefaults,
    limit: str,
    *,
    logprobs: bool | None,
    top_logprobs: int | None,
    fewest: int = 1,
    default: int | None = None,
) -> GenerationRequest:
    """Return a request without its prompt; `limit` names the field that limits its length."""
    fields = msgspec.structs.asdict(body)
    max_tokens = default if fields[limit] is None else fields[limit]
    if max_tokens is not None:
        message = f"{limit} must be {fewest} or more, not {max_tokens}"
        require(holds=max_tokens >= fewest, message=message)
    choices = 1 if body.n is None else body.n
    require(holds=1 <= choices <= MAX_CHOICES, message=f"n must be 1 to {MAX_CHOICES}")
    request = parse_request(
        body,
        defaults,
        parameter_fields(body),
        OPENAI_DEFAULTS,
        max_tokens=max_tokens,
        truncate=True,
        logprobs=logprobs,
        top_logprobs=top_logprobs,
        logit_bias=read_bias(body.logit_bias),
    )
    return replace(request, choices=choices)
