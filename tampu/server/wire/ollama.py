"""Ollama's native API: the structs of requests and answers, and what requests mean.

Unknown fields are ignored, as Ollama does; what tampu does not have yet is refused, never ignored.
Answers leave out fields that are None, zero or empty, except where clients need them.
"""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Any

import msgspec

from tampu.durations import parse_duration
from tampu.errors import RequestError
from tampu.modelinfo import ModelInfo
from tampu.runner.protocol import ChatPrompt, Prompt, TextPrompt
from tampu.server.job import Job, require
from tampu.server.wire.ollama_options import read_options

VERSION = "0.20.0"
MOST_MESSAGES = 10_000
MOST_TOOLS = 128
FOREVER = float("inf")


class ToolFunction(msgspec.Struct, kw_only=True):
    """The function of a tool call; `arguments` is an object, never a string."""

    name: str = ""
    arguments: dict[str, Any] = {}
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


class _Common(msgspec.Struct, kw_only=True):
    """What generating and chatting have in common."""

    model: str | None = None
    stream: bool | None = None
    format: Any = None
    keep_alive: float | str | None = None
    options: dict[str, Any] | None = None
    think: bool | str | None = None
    truncate: bool | None = None
    shift: bool | None = None
    logprobs: bool | None = None
    top_logprobs: int | None = None


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


class ShowRequest(msgspec.Struct, kw_only=True):
    """`POST /api/show`."""

    model: str | None = None
    name: str | None = None
    verbose: bool | None = None


def is_streaming(request: _Common) -> bool:
    """Whether the answer comes line by line: unless it is switched off."""
    return request.stream is not False


def is_unload(request: GenerateRequest | ChatRequest) -> bool:
    """Whether the request only wants the model out of memory."""
    wants_text = request.messages if isinstance(request, ChatRequest) else request.prompt
    return not wants_text and keep_alive_s(request) == 0


def keep_alive_s(request: _Common) -> float | None:
    """Return how many seconds the model stays loaded; None: the server's default.

    Raises:
        RequestError: for what is neither a number of seconds nor a duration.
    """
    value = request.keep_alive
    if value is None:
        return None
    try:
        seconds = parse_duration(value) if isinstance(value, str) else float(value)
    except ValueError as error:
        raise RequestError(f"keep_alive: {error}") from error
    return FOREVER if seconds < 0 else seconds


def generate_job(request: GenerateRequest, info: ModelInfo) -> Job:
    """Return what a request for text means.

    Raises:
        RequestError: for what the model cannot do, or tampu not yet.
    """
    name = request.model or ""
    _check_common(request, info)
    extras = (request.system, request.template, request.context)
    require(
        holds=not (request.raw and any(extras)),
        message="raw mode does not support template, system, or context",
    )
    require(holds=not request.suffix, message=f"{name!r} does not support insert")
    require(holds=not request.template, message="'template' is not supported yet")
    require(holds=not request.images, message=f"{name!r} does not support images")
    return _job(request, info, _generate_prompt(request) if request.prompt else None)


def chat_job(request: ChatRequest, info: ModelInfo) -> Job:
    """Return what a conversation means.

    Raises:
        RequestError: for what the model cannot do, or tampu not yet.
    """
    name = request.model or ""
    _check_common(request, info)
    has_tools = not request.tools or "tools" in info.capabilities
    require(holds=has_tools, message=f"{name!r} does not support tools")
    messages = request.messages or []
    few_enough = len(messages) <= MOST_MESSAGES and len(request.tools or ()) <= MOST_TOOLS
    limits = f"at most {MOST_MESSAGES} messages and {MOST_TOOLS} tools can be given"
    require(holds=few_enough, message=limits)
    has_images = any(message.images for message in messages)
    require(holds=not has_images, message=f"{name!r} does not support images")
    if not messages:
        return _job(request, info, None)
    prompt = ChatPrompt(
        messages=tuple(_template_message(message) for message in messages),
        tools=tuple(request.tools) if request.tools else None,
        variables=_variables(request),
    )
    return _job(request, info, prompt)


def _check_common(request: _Common, info: ModelInfo) -> None:
    name = request.model or ""
    can_generate = "completion" in info.capabilities
    require(holds=can_generate, message=f"{name!r} does not support generate")
    wants_format = request.format is not None and request.format != ""
    require(holds=not wants_format, message="'format' is not supported yet")
    levels = (None, True, False, "low", "medium", "high", "max")
    require(
        holds=request.think in levels,
        message="think must be true, false, low, medium, high or max",
    )
    can_think = not request.think or "thinking" in info.capabilities
    require(holds=can_think, message=f"{name!r} does not support thinking")


def _job(request: _Common, info: ModelInfo, prompt: Prompt | None) -> Job:
    given = {
        "truncate": request.truncate is not False,
        "shift": request.shift is not False,
        "logprobs": request.logprobs,
        "top_logprobs": request.top_logprobs,
    }
    overrides, options = read_options(request.options or {}, info, given)
    return Job(request.model or "", overrides, keep_alive_s(request), prompt, options)


def _generate_prompt(request: GenerateRequest) -> Prompt:
    text = request.prompt or ""
    if request.raw:
        return TextPrompt(text)
    system = [{"role": "system", "content": request.system}] if request.system else []
    return ChatPrompt(
        messages=(*system, {"role": "user", "content": text}),
        variables=_variables(request),
        before=tuple(request.context or ()),
        plain=f"{request.system}\n\n{text}" if request.system else text,
    )


def _variables(request: _Common) -> dict[str, Any]:
    if request.think is None:
        return {}
    level = {"reasoning_effort": request.think} if isinstance(request.think, str) else {}
    return {"enable_thinking": bool(request.think), **level}


def _template_message(message: Message) -> dict[str, Any]:
    """Return a message in the form of Hugging Face's templates."""
    optional = {
        "reasoning_content": message.thinking,
        "name": message.tool_name or message.name,
        "tool_call_id": message.tool_call_id,
        "tool_calls": [
            {
                "type": "function",
                "id": call.id or "",
                "function": {"name": call.function.name, "arguments": call.function.arguments},
            }
            for call in message.tool_calls or ()
        ],
    }
    return {
        "role": message.role.lower(),
        "content": message.content or "",
        **{name: value for name, value in optional.items() if value},
    }


def timestamp(seconds: float | None = None) -> str:
    """Return now in UTC, or a point in time with the local offset, as RFC 3339."""
    if seconds is None:
        return datetime.now(UTC).isoformat().replace("+00:00", "Z")
    return datetime.fromtimestamp(seconds).astimezone().isoformat()
