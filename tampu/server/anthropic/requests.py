"""Anthropic's API: the structs of requests, and what they mean.

Each function raises RequestError for an invalid or unsupported field, which the message names.

Fields that label a request, mark it for a cache or choose where and how fast it is computed
(`metadata`, `cache_control`, `service_tier`, `speed`, ...) are ignored.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import msgspec

from tampu.audio import is_audio
from tampu.chat.media import MediaFile
from tampu.chat.messages import tool_call
from tampu.chat.output.reasoning import Think
from tampu.errors import RequestError, require
from tampu.sampling.parameters import BY_OLLAMA
from tampu.server.fields.conversation import Conversation, with_conversation
from tampu.server.fields.media import decode_image
from tampu.server.fields.options import given_parameters, parse_limited
from tampu.server.fields.output_format import FormattedBody, read_formats
from tampu.server.fields.tools import full_name, message_tool_choice, message_tools, shortened
from tampu.server.openai.fields import refuse_fields, wrong_part
from tampu.server.serving.generation_request import GenerationRequest
from tampu.server.serving.model_defaults import ModelDefaults

_IMAGE_TYPES = ("image/jpeg", "image/jpg", "image/png", "image/webp", "image/gif", "image/bmp")
# The blocks of a message, and what each must have.
_BLOCKS = {
    "text": "text", "thinking": "thinking", "tool_use": "id, name and input", "image": "source",
    "tool_result": "tool_use_id", "mcp_tool_use": "id, name, server_name and input",
    "mcp_tool_result": "tool_use_id",
}  # fmt: skip
_NO_SOUNDS = "Anthropic's API has no sounds: send them to /v1/chat/completions"
_EFFORTS = {"low": "low", "medium": "medium", "high": "high", "xhigh": "max", "max": "max"}


class Message(msgspec.Struct, kw_only=True):
    """A message: text, or blocks."""

    role: str
    content: str | list[dict[str, Any]]


class CountRequest(FormattedBody, kw_only=True):
    """`POST /v1/messages/count_tokens`."""

    messages: list[Message] | None = None
    system: str | list[dict[str, Any]] | None = None
    tools: list[dict[str, Any]] | None = None
    tool_choice: dict[str, Any] | None = None
    thinking: dict[str, Any] | None = None
    context_management: dict[str, Any] | None = None
    # Unsupported; a request with one of them is refused.
    mcp_servers: Any = None
    container: Any = None
    compaction: Any = None
    thread: Any = None


class MessagesRequest(CountRequest, kw_only=True):
    """`POST /v1/messages`."""

    max_tokens: int | None = None
    stream: bool | None = None
    temperature: float | None = None
    top_p: float | None = None
    top_k: int | None = None
    stop_sequences: list[str] | None = None


def parse_messages(body: MessagesRequest, defaults: ModelDefaults) -> GenerationRequest:
    """Return the request for the next message."""
    require(body.max_tokens is not None, "max_tokens: field required")
    fields = given_parameters(
        {
            "max_tokens": body.max_tokens,
            "temperature": body.temperature,
            "top_p": body.top_p,
            "top_k": body.top_k,
        }
    )
    fields["think_budget"] = _budget(body)
    if body.stop_sequences is not None:
        fields["stop"] = BY_OLLAMA["stop"].check(body.stop_sequences, "stop_sequences")
    limit = ("max_tokens", body.max_tokens)
    is_streamed = bool(body.stream)
    request = parse_limited(body, defaults, limit, fields=fields, is_streamed=is_streamed)
    return with_conversation(request, _conversation(body, defaults), defaults)


def hides_reasoning(body: MessagesRequest) -> bool:
    """Whether reasoning is returned as empty blocks."""
    display = (body.thinking or {}).get("display")
    fits = display in (None, "summarized", "omitted")
    require(fits, "thinking.display must be summarized or omitted")
    return display == "omitted"


def parse_count(body: CountRequest, defaults: ModelDefaults) -> GenerationRequest:
    """Return the request whose prompt is to be counted."""
    _budget(body)
    request = parse_limited(body, defaults, ("max_tokens", None))
    return with_conversation(request, _conversation(body, defaults), defaults)


def _conversation(body: CountRequest, defaults: ModelDefaults) -> Conversation:
    refuse_fields(body, "mcp_servers", "container", "compaction", "thread")
    _check_edits(body.context_management or {})
    is_given = (body.output_config or {}).get("task_budget")
    require(not is_given, "output_config.task_budget is not supported")
    require(bool(body.messages), "messages: at least one message is required")
    system, images = _read_blocks(body.system or "", "system")
    require(not images, "system: only text is supported here")
    before = [{"role": "system", "content": system}] if system else []
    messages = [
        message
        for index, given in enumerate(body.messages or ())
        for message in read_message(given, f"messages[{index}]")
    ]
    return Conversation(
        messages=(*before, *messages),
        tools=message_tools(body.tools),
        tool_choice=message_tool_choice(body.tool_choice),
        think=_think(body, defaults),
        structure=read_formats(body),
    )


def read_message(message: Message, where: str) -> Iterator[dict[str, Any]]:
    """Yield a message in the format of Hugging Face's templates; tool results are messages."""
    if message.role not in ("user", "assistant", "system"):
        raise RequestError(f"{where}.role must be user or assistant")
    if isinstance(message.content, str):
        yield {"role": message.role, "content": message.content}
        return
    rest: list[dict[str, Any]] = []
    images: list[MediaFile] = []
    for index, block in enumerate(message.content):
        place = f"{where}.content[{index}]"
        match block:
            case {"type": "tool_result", "tool_use_id": str(id)}:
                text, shown = _read_blocks(block.get("content") or "", place)
                images += shown
                yield _tool_result(id, block, text)
            case {"type": "mcp_tool_result", "tool_use_id": str(id)}:
                if merged := _merged(rest):
                    yield {"role": message.role, "content": "", **merged}
                    rest = []
                yield _tool_result(id, block, _read_blocks(block.get("content") or "", place)[0])
            case {"type": "image", "source": source}:
                refusal = f"{place}.transformations is not supported"
                require(not block.get("transformations"), refusal)
                images.append(_image(source, place))
            case _:
                rest.append(_block(block, place))
    merged = _merged(rest) | ({"media": images} if images else {})
    if merged:
        yield {"role": message.role, "content": "", **merged}


def _tool_result(id: str, block: dict[str, Any], text: str) -> dict[str, Any]:
    text = f"Error: {text}" if block.get("is_error") else text
    return {"role": "tool", "tool_call_id": id, "content": text}


def _block(block: dict[str, Any], where: str) -> dict[str, Any]:
    """Return what a block adds to its message."""
    match block:
        case {"type": "text", "text": str(text)}:
            return {"content": text}
        case {"type": "thinking", "thinking": str(text)}:
            return {"reasoning_content": text}
        case {"type": "redacted_thinking"}:
            return {}
        case {"type": "tool_use", "id": str(id), "name": str(name), "input": dict(arguments)}:
            return {"tool_calls": [tool_call(id, name, arguments)]}
        case {
            "type": "mcp_tool_use", "id": str(id), "name": str(name), "input": dict(arguments),
            "server_name": str(server),
        }:  # fmt: skip
            return {"tool_calls": [tool_call(id, full_name(server, name), arguments)]}
        case {"type": "audio" | "input_audio"}:
            raise RequestError(f"{where}: {_NO_SOUNDS}")
    raise wrong_part(block, where, _BLOCKS)


def _merged(parts: Sequence[dict[str, Any]]) -> dict[str, Any]:
    """Return the parts of a message together."""
    merged: dict[str, Any] = {}
    for name in ("content", "reasoning_content"):
        texts = [part[name] for part in parts if name in part]
        if texts:
            merged[name] = "\n".join(texts)
    calls = [call for part in parts for call in part.get("tool_calls", ())]
    if calls:
        merged["tool_calls"] = calls
    return merged


def _read_blocks(content: object, where: str) -> tuple[str, list[MediaFile]]:
    """Return the text and the images of a system message or a tool result."""
    texts: list[str] = []
    images: list[MediaFile] = []
    for block in content if isinstance(content, list) else [{"type": "text", "text": content}]:
        match block:
            case {"type": "text", "text": str(text)}:
                texts.append(text)
            case {"type": "image", **image}:
                images.append(_image(image.get("source"), where))
            case _:
                raise RequestError(f"{where}: only text is supported here")
    return "\n".join(texts), images


def _image(source: object, where: str) -> MediaFile:
    match source:
        case {"type": "base64", "media_type": str(kind), "data": str(data)}:
            require(kind in _IMAGE_TYPES, f"{where}: {shortened(kind)} is not supported")
            image = decode_image(data, where)
            require(not is_audio(image.data), f"{where}: {_NO_SOUNDS}")
            return image
        case {"type": "url"}:
            raise RequestError(f"{where}: URLs are not fetched (see TAMPU_IMAGE_URLS): send base64")
    raise RequestError(f"{where}: an image needs a source of type base64")


def _think(body: CountRequest, defaults: ModelDefaults) -> Think:
    """Return whether to reason; ignored for models without reasoning, since clients always ask."""
    thinking = body.thinking or {}
    kind, effort = thinking.get("type"), (body.output_config or {}).get("effort")
    fits = kind in (None, "enabled", "disabled", "adaptive")
    require(fits, "thinking.type must be enabled, disabled or adaptive")
    fits = effort is None or effort in _EFFORTS
    require(fits, f"output_config.effort must be one of {', '.join(_EFFORTS)}")
    if "thinking" not in defaults.info.capabilities:
        return None
    if effort is not None and kind != "disabled":
        return _EFFORTS[effort]
    return kind in ("enabled", "adaptive")


def _check_edits(management: dict[str, Any]) -> None:
    """Refuse dropping parts of a conversation; clients always ask to keep all of it."""
    edits = management.get("edits") or ()
    require(isinstance(edits, list | tuple), "context_management.edits must be a list")
    for edit in edits:
        match edit:
            case {"type": "clear_thinking_20251015", "keep": "all" | {"type": "all"}}:
                pass
            case _:
                raise RequestError("context_management.edits: only keeping all is supported")


def _budget(body: CountRequest) -> int | None:
    """Return the reasoning budget in tokens; None: unlimited."""
    budget = (body.thinking or {}).get("budget_tokens")
    fits = budget is None or (type(budget) is int and budget >= 0)
    require(fits, "thinking.budget_tokens must be a whole number of 0 or more")
    return budget
