"""OpenAI's API: the structs of requests, and what they mean.

Beside OpenAI's own fields the names of Ollama's options are understood (`num_ctx`, `top_k`, ...),
at the top or inside `options`, and `keep_alive`. A field that would change the answer and is not
supported is refused; those that only label a request are ignored, and so are unknown ones.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, TypeAlias

import msgspec

from tampu.chat.output.thinking import Think
from tampu.errors import RequestError
from tampu.runner.protocol import InsertPrompt, Prompt, TextPrompt, TokensPrompt
from tampu.server.job import MOST_CHOICES, EmbedJob, Job, require
from tampu.server.profile import Profile
from tampu.server.wire.conversation import (
    Conversation,
    ToolChoice,
    Wishes,
    chat_job,
    check_can,
)
from tampu.server.wire.ollama import MOST_INPUTS, keep_alive_s
from tampu.server.wire.ollama_options import asked_options, read_options
from tampu.server.wire.openai_messages import Message, template_message

MOST_BIASES = 1_024
_EFFORTS: dict[str, Think] = {
    "none": False, "minimal": "low", "low": "low", "medium": "medium", "high": "high",
    "xhigh": "max", "ultra": "max", "max": "max",
}  # fmt: skip
# Where OpenAI's own default differs from Ollama's.
_DEFAULTS = {"temperature": 1.0, "top_p": 1.0}
_OPTIONS = (
    "temperature", "top_p", "presence_penalty", "frequency_penalty", "seed", "num_ctx", "top_k",
    "min_p", "typical_p", "repeat_penalty", "repeat_last_n", "num_keep", "num_batch", "num_thread",
)  # fmt: skip


class StreamOptions(msgspec.Struct, kw_only=True):
    """What a stream holds besides the answer."""

    include_usage: bool | None = None


class _Common(msgspec.Struct, kw_only=True):
    """What both kinds of generating have in common."""

    model: str | None = None
    stream: bool | None = None
    stream_options: StreamOptions | None = None
    max_tokens: int | None = None
    n: int | None = None
    temperature: float | None = None
    top_p: float | None = None
    stop: str | list[str] | None = None
    seed: int | None = None
    logit_bias: dict[str, float] | None = None
    presence_penalty: float | None = None
    frequency_penalty: float | None = None
    # Beyond OpenAI's own.
    options: dict[str, Any] | None = None
    keep_alive: float | str | None = None
    num_ctx: int | None = None
    num_batch: int | None = None
    num_thread: int | None = None
    num_keep: int | None = None
    top_k: int | None = None
    min_p: float | None = None
    typical_p: float | None = None
    repeat_penalty: float | None = None
    repeat_last_n: int | None = None


class JSONSchema(msgspec.Struct, kw_only=True):
    """A schema that the answer has to fit."""

    schema: dict[str, Any] | None = None
    name: str | None = None
    strict: bool | None = None


class ResponseFormat(msgspec.Struct, kw_only=True):
    """In what form the answer is wanted."""

    type: str
    json_schema: JSONSchema | None = None


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
    chat_template_kwargs: dict[str, Any] | None = None
    # Not supported, and never ignored.
    audio: Any = None
    functions: Any = None
    function_call: Any = None
    web_search_options: Any = None
    verbosity: Any = None


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


TextOrTokens: TypeAlias = TextPrompt | TokensPrompt


def chat_completion_job(request: ChatRequest, profile: Profile) -> Job:
    """Return what a request for the next message means.

    Raises:
        RequestError: naming the field that cannot be had.
    """
    refuse(request, "audio", "functions", "function_call", "web_search_options", "verbosity")
    texts_only = request.modalities in (None, ["text"])
    require(holds=texts_only, message="modalities: only text can be had")
    require(holds=bool(request.messages), message="messages: there must be at least one")
    choice, tool = read_tool_choice(request.tool_choice)
    conversation = Conversation(
        messages=tuple(
            template_message(message, f"messages[{index}]")
            for index, message in enumerate(request.messages or ())
        ),
        tools=request.tools or (),
        tool_choice=choice,
        tool=tool,
        is_parallel=request.parallel_tool_calls is not False,
        think=read_effort(request.reasoning_effort),
        variables=request.chat_template_kwargs or {},
        response_format=read_format(request.response_format),
    )
    limit = request.max_completion_tokens
    wishes = _wishes(
        request,
        profile,
        max_tokens=request.max_tokens if limit is None else limit,
        logprobs=request.logprobs,
        top_logprobs=request.top_logprobs,
    )
    return chat_job(conversation, wishes, profile)


def completion_job(request: CompletionRequest, profile: Profile) -> Job:
    """Return what a request for the continuation of prompts means.

    Raises:
        RequestError: naming the field that cannot be had.
    """
    wishes = _wishes(
        request,
        profile,
        max_tokens=16 if request.max_tokens is None else request.max_tokens,
        fewest=0 if request.echo else 1,
        logprobs=request.logprobs is not None or None,
        top_logprobs=request.logprobs,
    )
    check_can(profile, "completion", wishes.model, "generate")
    if request.suffix:
        check_can(profile, "insert", wishes.model, "suffix")
    best_is_all = request.best_of in (None, request.n or 1)
    require(holds=best_is_all, message="best_of must be n: choices are not compared")
    options = wishes.options
    if request.echo and request.logprobs is not None:
        message = "echo together with logprobs cannot be streamed"
        require(holds=not request.stream, message=message)
        options = msgspec.structs.replace(options, prompt_logprobs=True)
    prompts: tuple[Prompt, ...] = tuple(read_inputs(request.prompt, "prompt"))
    if request.suffix:
        prompts = tuple(_before(prompt, request.suffix) for prompt in prompts)
    return Job(
        model=wishes.model,
        overrides=wishes.overrides,
        keep_alive_s=wishes.keep_alive_s,
        prompts=prompts,
        options=options,
        choices=wishes.choices,
    )


def _before(prompt: Prompt, suffix: str) -> InsertPrompt:
    if not isinstance(prompt, TextPrompt):
        raise RequestError("suffix needs a prompt that is a text, not tokens")
    return InsertPrompt(prompt.text, suffix)


def embedding_job(request: EmbeddingRequest, profile: Profile) -> EmbedJob:
    """Return what a request for embeddings means.

    Raises:
        RequestError: naming the field that cannot be had.
    """
    formats = (None, "float", "base64")
    message = "encoding_format must be float or base64"
    require(holds=request.encoding_format in formats, message=message)
    overrides, _ = read_options(
        {**profile.options, **asked_options(request.options)}, profile.info, {}
    )
    return EmbedJob(
        model=request.model or "",
        overrides=overrides,
        keep_alive_s=keep_alive_s(request.keep_alive),
        inputs=tuple(read_inputs(request.input, "input")),
        dimensions=request.dimensions,
    )


def wants_usage(request: _Common) -> bool:
    """Whether a stream ends with what it cost."""
    return request.stream_options is not None and bool(request.stream_options.include_usage)


def read_inputs(given: str | list[Any] | None, field: str) -> Iterator[TextOrTokens]:
    """Yield the prompts of a text, tokens, or a list of either.

    Raises:
        RequestError: for anything else, or nothing.
    """
    items = given if isinstance(given, list) else [given or ""]
    if items and all(_is_token(item) for item in items):
        items = [items]
    require(holds=0 < len(items) <= MOST_INPUTS, message=f"{field}: 1 to {MOST_INPUTS} are needed")
    for index, item in enumerate(items):
        if isinstance(item, list) and item and all(_is_token(token) for token in item):
            yield TokensPrompt(tuple(item))
        elif isinstance(item, str) and item:
            yield TextPrompt(item)
        else:
            raise RequestError(f"{field}[{index}] must be a text or tokens, and not be empty")


def refuse(request: msgspec.Struct, *fields: str) -> None:
    """Refuse a request with fields that would change its answer and are not supported.

    Raises:
        RequestError: naming the first.
    """
    given = msgspec.structs.asdict(request)
    for name in fields:
        require(holds=not given[name], message=f"{name} is not supported")


def read_effort(effort: str | None) -> Think:
    """Return how hard the model is to think.

    Raises:
        RequestError: saying what there is.
    """
    if effort is None:
        return None
    message = f"reasoning_effort must be one of {', '.join(_EFFORTS)}"
    require(holds=effort in _EFFORTS, message=message)
    return _EFFORTS[effort]


def read_tool_choice(given: str | dict[str, Any] | None) -> tuple[ToolChoice, str | None]:
    """Return whether the model has to call a function, and which.

    Raises:
        RequestError: for what is no choice.
    """
    match given:
        case None | "auto":
            return "auto", None
        case "none":
            return "none", None
        case "required":
            return "required", None
        case {"type": "function", "function": {"name": str(name)}}:
            return "required", name
        case {"type": "function", "name": str(name)}:
            return "required", name
    raise RequestError(
        "tool_choice must be auto, none, required, or "
        '{"type": "function", "function": {"name": ...}}'
    )


def read_format(given: ResponseFormat | None) -> str | dict[str, Any] | None:
    """Return in what form the answer is wanted: "json", a schema, or None for text.

    Raises:
        RequestError: for any other.
    """
    if given is None or given.type == "text":
        return None
    if given.type == "json_object":
        return "json"
    if given.type == "json_schema" and given.json_schema and given.json_schema.schema is not None:
        return given.json_schema.schema
    raise RequestError("response_format must be text, json_object, or json_schema with a schema")


def _wishes(
    request: _Common,
    profile: Profile,
    *,
    max_tokens: int | None,
    logprobs: bool | None,
    top_logprobs: int | None,
    fewest: int = 1,
) -> Wishes:
    if max_tokens is not None:
        message = f"max_tokens must be {fewest} or more, not {max_tokens}"
        require(holds=max_tokens >= fewest, message=message)
    choices = 1 if request.n is None else request.n
    require(holds=1 <= choices <= MOST_CHOICES, message=f"n must be 1 to {MOST_CHOICES}")
    fields = msgspec.structs.asdict(request)
    given = {name: fields[name] for name in _OPTIONS if fields[name] is not None}
    stop = [request.stop] if isinstance(request.stop, str) else request.stop
    if stop is not None:
        given["stop"] = stop
    more = {
        "max_tokens": max_tokens,
        "truncate": True,
        "logprobs": logprobs,
        "top_logprobs": top_logprobs,
        "logit_bias": read_bias(request.logit_bias),
    }
    overrides, options = read_options(
        {**_DEFAULTS, **profile.options, **asked_options(request.options), **given},
        profile.info,
        more,
    )
    return Wishes(
        model=request.model or "",
        overrides=overrides,
        keep_alive_s=keep_alive_s(request.keep_alive),
        options=options,
        choices=choices,
    )


def read_bias(given: dict[str, float] | None) -> dict[int, float] | None:
    """Return what is added to the logits of tokens.

    Raises:
        RequestError: for too many, what is no token, or a bias that is not -100 to 100.
    """
    if given is None:
        return None
    require(holds=len(given) <= MOST_BIASES, message=f"logit_bias: at most {MOST_BIASES} tokens")
    for token, bias in given.items():
        is_token = token.isascii() and token.isdecimal() and len(token) < 10
        require(holds=is_token, message=f"logit_bias: {token[:50]!r} is no token id")
        require(holds=-100 <= bias <= 100, message=f"logit_bias: {bias} is not -100 to 100")
    return {int(token): bias for token, bias in given.items()}


def _is_token(item: object) -> bool:
    return isinstance(item, int) and not isinstance(item, bool) and 0 <= item < 2**31
