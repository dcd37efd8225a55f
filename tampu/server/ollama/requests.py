"""Ollama's native API: the structs of requests and responses, and what requests mean.

Unknown fields are ignored, as in Ollama; unsupported ones are refused, never ignored. Responses
leave out fields that are None, zero or empty, except where clients need them. Each
`parse_...` raises RequestError for what the model or tampu does not support.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from datetime import UTC, datetime
from typing import Any

import msgspec

from tampu.chat.media import MediaFile
from tampu.chat.messages import read_role, template_message, tool_call
from tampu.engine.prompts import FIMPrompt, TextPrompt
from tampu.engine.requests import Embedded
from tampu.errors import require
from tampu.server.fields.captures import read_capture
from tampu.server.fields.conversation import (
    Conversation,
    check_can,
    check_media_count,
    with_conversation,
)
from tampu.server.fields.media import decode_image
from tampu.server.fields.media_parts import media_prompt
from tampu.server.fields.options import (
    MAX_INPUTS,
    ModelBody,
    embedding_call,
    keep_alive_s,
    may_truncate,
    parse_request,
)
from tampu.server.fields.output_format import FormattedBody, read_formats
from tampu.server.fields.telemetry import Telemetry
from tampu.server.fields.tools import chat_tools, read_tool_choice
from tampu.server.serving.generation_request import GenerationRequest, ModelCall
from tampu.server.serving.model_defaults import ModelDefaults

VERSION = "0.20.0"


class ToolFunction(msgspec.Struct, kw_only=True):
    """The function of a tool call; `arguments` is an object, never a string."""

    name: str = ""
    arguments: dict[str, Any] | None = {}
    index: int | None = None


class ToolCall(msgspec.Struct, kw_only=True, omit_defaults=True):
    """A tool call, in a conversation or in an answer."""

    function: ToolFunction
    id: str | None = None


class Message(msgspec.Struct, kw_only=True, omit_defaults=True):
    """A message, in a conversation or in an answer."""

    role: str
    content: str | None = None
    thinking: str | None = None
    images: list[str] | None = None
    tool_calls: list[ToolCall] | None = None
    tool_name: str | None = None
    name: str | None = None
    tool_call_id: str | None = None


class _Common(FormattedBody, kw_only=True):
    """The fields of both generating requests."""

    stream: bool | None = None
    think: bool | str | None = None
    shift: bool | None = None
    logprobs: bool | None = None
    top_logprobs: int | None = None
    entropy: bool | None = None  # tampu's own, as the next three
    include: list[str] | None = None
    include_positions: list[int] | None = None
    include_heads: list[int] | None = None
    timings_per_token: bool | None = None  # llama-server's
    debug_render_only: bool | None = msgspec.field(default=None, name="_debug_render_only")

    def telemetry(self) -> Telemetry:
        """Return what the lines of a stream have beside the answer."""
        return Telemetry(is_streaming=self.stream is not False, timings=self.timings_per_token)


class GenerateRequest(_Common, kw_only=True):
    """`POST /api/generate`."""

    prompt: str | None = None
    suffix: str | None = None
    system: str | None = None
    template: str | None = None
    context: list[int] | None = None
    raw: bool | None = None
    images: list[str] | None = None


class ChatRequest(_Common, kw_only=True):
    """`POST /api/chat`."""

    messages: list[Message] | None = None
    tools: list[dict[str, Any]] | None = None
    # OpenAI's
    tool_choice: str | dict[str, Any] | None = None
    parallel_tool_calls: bool | None = None


class EmbedRequest(ModelBody, kw_only=True):
    """`POST /api/embed`; `images`, tampu's own, are embedded together with the one text."""

    input: str | list[str] | None = None
    images: list[str] | None = None
    dimensions: int | None = None
    include: list[str] | None = None  # tampu's own, as in _Common
    include_positions: list[int] | None = None
    include_heads: list[int] | None = None


class EmbeddingsRequest(ModelBody, kw_only=True):
    """`POST /api/embeddings`, the older form, which has no images."""

    prompt: str | None = None
    images: list[str] | None = None


class EmbedResponse(msgspec.Struct, kw_only=True, omit_defaults=True):
    """The response to `POST /api/embed`; `truncated` is that of the lines of other answers.

    `captured`, tampu's own too, has the values inside the model of each input, if requested.
    """

    model: str
    embeddings: list[list[float]]
    total_duration: int
    load_duration: int
    prompt_eval_count: int
    truncated: int = 0
    captured: list[str] = []


class DebugInfo(msgspec.Struct, kw_only=True):
    """What a model would receive: the rendered prompt, and the number of images."""

    rendered_template: str
    image_count: int


class DebugResponse(msgspec.Struct, kw_only=True):
    """The response to a request of which only the prompt is returned."""

    model: str
    created_at: str
    debug_info: DebugInfo = msgspec.field(name="_debug_info")
    response: str | msgspec.UnsetType = msgspec.UNSET
    message: Message | msgspec.UnsetType = msgspec.UNSET
    done: bool = False


class ShowRequest(msgspec.Struct, kw_only=True):
    """`POST /api/show`; `tensors`, tampu's own, asks for them without long arrays.

    `memory`, tampu's own too, asks for what the model would take with these options.
    """

    model: str | None = None
    name: str | None = None
    verbose: bool | None = None
    tensors: bool | None = None
    memory: bool | None = None
    system: str | None = None
    template: str | None = None
    options: dict[str, Any] | None = None


def is_unload(body: GenerateRequest | ChatRequest) -> bool:
    """Whether the request only unloads the model."""
    wants_text = body.messages if isinstance(body, ChatRequest) else body.prompt
    return not wants_text and keep_alive_s(body.keep_alive) == 0


def parse_generate(body: GenerateRequest, defaults: ModelDefaults) -> GenerationRequest:
    """Return the request for generated text."""
    request = _parameters(body, defaults)
    check_can(defaults, "completion", request.model, "generate")
    extras = (body.system, body.template, body.context, body.suffix)
    require(
        not (body.raw and any(extras)),
        "raw mode does not support template, system, context, or suffix",
    )
    if body.suffix:
        check_can(defaults, "insert", request.model, "insert")
    message = "template: not supported in a request; create a model with it (/api/create)"
    require(not body.template, message)
    request = with_conversation(request, _one_question(body, defaults), defaults)
    if body.suffix:
        return replace(request, prompts=(FIMPrompt(body.prompt or "", body.suffix),))
    if not body.prompt:
        return replace(request, prompts=())
    return replace(request, prompts=(TextPrompt(body.prompt),)) if body.raw else request


def parse_chat(body: ChatRequest, defaults: ModelDefaults) -> GenerationRequest:
    """Return the request for the next message."""
    check_can(defaults, "completion", body.model or "", "chat")
    conversation = Conversation(
        messages=read_messages(body.messages),
        tools=chat_tools([{"type": "function", **tool} for tool in body.tools or ()]),
        tool_choice=read_tool_choice(body.tool_choice, is_parallel=body.parallel_tool_calls),
        think=_think(body, defaults),
        structure=read_formats(body),
    )
    request = with_conversation(_parameters(body, defaults), conversation, defaults)
    return request if body.messages else replace(request, prompts=())


def parse_embed(body: EmbedRequest, defaults: ModelDefaults) -> ModelCall[Embedded]:
    """Return the request for embeddings."""
    given = body.input
    texts = [given] if isinstance(given, str) else given or []
    require(len(texts) <= MAX_INPUTS, f"input: at most {MAX_INPUTS} texts can be given")
    inputs = tuple(map(TextPrompt, texts if given else ()))
    if body.images:
        require(len(texts) <= 1, "images are embedded with one text: input has several")
        check_media_count(len(body.images))
        files = [decode_image(each, f"images[{i}]") for i, each in enumerate(body.images)]
        inputs = (media_prompt([*files, *texts], body.model or "", defaults),)
    return embedding_call(
        body,
        defaults,
        inputs=inputs,
        truncates=True,
        dimensions=body.dimensions or None,
        may_be_unpooled=False,
        capture=read_capture(body, defaults),
    )


def parse_embeddings(body: EmbeddingsRequest, defaults: ModelDefaults) -> ModelCall[Embedded]:
    """Return the request for an embedding in the older format."""
    require(not body.images, "images is not supported here: the route embed takes images")
    newer = EmbedRequest(
        model=body.model,
        input=body.prompt,
        keep_alive=body.keep_alive,
        options=body.options,
        truncate=body.truncate,
        truncation=body.truncation,
        control_vectors=body.control_vectors,
    )
    return parse_embed(newer, defaults)


def _parameters(body: _Common, defaults: ModelDefaults) -> GenerationRequest:
    return parse_request(
        body,
        defaults,
        is_streamed=body.stream is not False,
        truncate=may_truncate(body, defaults, default=True),
        shift=body.shift is not False,
        logprobs=body.logprobs,
        top_logprobs=body.top_logprobs,
        entropy=body.entropy,
        return_progress=body.telemetry().needs_progress or None,
        capture=read_capture(body, defaults),
    )


def _think(body: _Common, defaults: ModelDefaults) -> bool | str | None:
    """Return whether to reason: by default if the model can."""
    can_think = "thinking" in defaults.info.capabilities
    return True if body.think is None and can_think else body.think


def _one_question(body: GenerateRequest, defaults: ModelDefaults) -> Conversation:
    """Return a prompt as a conversation; a given context includes the model's first messages."""
    text = body.prompt or ""
    system = body.system or defaults.system
    first = [{"role": "system", "content": system}] if system else []
    history = map(dict, defaults.messages if body.context is None else ())
    question: dict[str, Any] = {"role": "user", "content": text}
    if body.images:
        question["media"] = _media(body.images, "")
    return Conversation(
        messages=(*first, *history, question),
        is_whole=True,
        think=_think(body, defaults),
        before=tuple(body.context or ()),
        plain=f"{body.system}\n\n{text}" if body.system else text,
        structure=read_formats(body),
    )


def _media(files: Sequence[str], where: str) -> list[MediaFile]:
    return [decode_image(file, f"{where}images[{i}]") for i, file in enumerate(files)]


def read_messages(messages: Sequence[Message] | None) -> tuple[dict[str, Any], ...]:
    """Return messages in the format of Hugging Face's templates."""
    return tuple(
        template_message(
            read_role(message.role, f"messages[{index}]"),
            message.content or "",
            media=_media(message.images or (), f"messages[{index}]."),
            reasoning_content=message.thinking,
            name=message.tool_name or message.name,
            tool_call_id=message.tool_call_id,
            tool_calls=[
                tool_call(call.id or "", call.function.name, call.function.arguments or {})
                for call in message.tool_calls or ()
            ],
        )
        for index, message in enumerate(messages or ())
    )


def timestamp(seconds: float | None = None) -> str:
    """Return now in UTC, or a point in time with the local offset, as RFC 3339."""
    if seconds is None:
        return datetime.now(UTC).isoformat().replace("+00:00", "Z")
    return datetime.fromtimestamp(seconds).astimezone().isoformat()
