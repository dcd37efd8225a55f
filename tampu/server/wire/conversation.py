"""Conversations: the chat requests of all API families, checked and made into a prompt.

Each function raises RequestError for what the model or tampu does not support, or is over a limit.
"""

from __future__ import annotations

import base64
import binascii
import logging
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Literal, TypeAlias

from tampu.chat.output.reasoning import EFFORTS, Think
from tampu.engine.prompts import ChatPrompt, StructuredOutput
from tampu.errors import RequestError
from tampu.sampling.grammar import grammar_of
from tampu.server.generation_request import GenerationRequest, require
from tampu.server.model_defaults import ModelDefaults

logger = logging.getLogger(__name__)

MAX_MESSAGES = 10_000
MAX_TOOLS = 128
MAX_IMAGES = 16
MAX_NAME_LENGTH = 256
_IMAGE_URI = re.compile(r"data:image/(?:jpeg|jpg|png|webp|gif|bmp);base64,", re.IGNORECASE)

ToolMode: TypeAlias = Literal["auto", "none", "required"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Conversation:
    """A request for the next message.

    Attributes:
        messages: in the format of Hugging Face's templates; images are bytes, under `images`.
        tools: functions, each `{"type": "function", "function": {...}}`.
        tool_choice: whether the model may, must not, or must call a tool.
        tool: the only function it may call; None: any of them.
        is_parallel: whether it may call more than one at once.
        think: whether to reason, or the effort; None: the model's default.
        variables: more values for the template.
        before: tokens of an earlier exchange.
        plain: the prompt for a model without a template.
        is_whole: the model's own first messages are not put before it.
        response_format: as `grammar_of` takes it: "json", a JSON schema, or None for any text.
        warnings: sent in the response header, and logged.
    """

    messages: tuple[dict[str, Any], ...]
    tools: Sequence[dict[str, Any]] = ()
    tool_choice: ToolMode = "auto"
    tool: str | None = None
    is_parallel: bool = True
    think: Think = None
    variables: Mapping[str, Any] = field(default_factory=dict)
    before: tuple[int, ...] = ()
    plain: str | None = None
    is_whole: bool = False
    response_format: Any = None
    warnings: Sequence[str] = ()


def with_conversation(
    request: GenerationRequest, conversation: Conversation, defaults: ModelDefaults
) -> GenerationRequest:
    """Return a request with the prompt, tools and output format of a conversation."""
    check_can(defaults, "completion", request.model, "generate")
    _check_size(conversation)
    _check_abilities(conversation, request.model, defaults)
    tools = _usable_tools(conversation)
    for warning in conversation.warnings:
        logger.warning("%s", warning)
    messages = conversation.messages
    if not conversation.is_whole:
        messages = tuple(map(dict, defaults.conversation(messages)))
    prompt = ChatPrompt(
        messages=messages,
        tools=tuple(tools) or None,
        variables=dict(conversation.variables),
        think=conversation.think,
        before=conversation.before,
        plain=conversation.plain,
    )
    return replace(
        request,
        prompts=(prompt,),
        structure=_structure(conversation),
        max_calls=None if conversation.is_parallel else 1,
        warnings=(*request.warnings, *conversation.warnings),
    )


def template_message(role: str, content: str, **optional: object) -> dict[str, Any]:
    """Return a message in the format of Hugging Face's templates, without empty optional fields."""
    given = {name: value for name, value in optional.items() if value}
    return {"role": role, "content": content, **given}


def tool_call(id: str, name: str, arguments: object) -> dict[str, Any]:
    """Return a tool call in the format of Hugging Face's templates."""
    return {"type": "function", "id": id, "function": {"name": name, "arguments": arguments}}


def check_can(defaults: ModelDefaults, capability: str, model: str, named: str) -> None:
    """Refuse a request that the model does not support."""
    require(capability in defaults.info.capabilities, f'"{model[:200]}" does not support {named}')


def decode_image(text: str, where: str, *, is_uri: bool = False) -> bytes:
    """Return the bytes of an image, given in base64 or as a data URI."""
    if is_uri:
        if re.match(r"[a-z]+://", text, re.IGNORECASE):
            raise RequestError(
                f"{where}: URLs are not fetched (see TAMPU_IMAGE_URLS): send a data URI"
            )
        match = _IMAGE_URI.match(text)
        if match is None and text.startswith("data:"):
            raise RequestError(
                f"{where}: expected data:image/png;base64,... or jpeg, webp, gif, bmp"
            )
        text = text[match.end() :] if match else text
    try:
        image = base64.b64decode(text, validate=True)
    except (binascii.Error, ValueError) as error:
        raise RequestError(f"invalid base64 in {where}") from error
    require(image, f"{where}: the image is empty")
    return image


def _check_size(conversation: Conversation) -> None:
    _check_tools(conversation.tools)
    images = sum(len(message.get("images", ())) for message in conversation.messages)
    for count, most, what in (
        (len(conversation.messages), MAX_MESSAGES, "messages"),
        (len(conversation.tools), MAX_TOOLS, "tools"),
        (images, MAX_IMAGES, "images"),
    ):
        require(count <= most, f"at most {most} {what} can be given, not {count}")


def _check_tools(tools: Sequence[dict[str, Any]]) -> None:
    for index, tool in enumerate(tools):
        match tool:
            case {"type": "function", "function": {"name": str(name), **rest}} if name:
                fits = isinstance(rest.get("parameters"), dict | None)
                require(fits, f"tools[{index}]: parameters must be an object")
                fits = len(name) <= MAX_NAME_LENGTH
                message = f"tools[{index}]: its name has more than {MAX_NAME_LENGTH} characters"
                require(fits, message)
            case {"type": str(kind)} if kind != "function":
                raise RequestError(f"tools[{index}]: {kind[:50]!r} is not supported, only function")
            case _:
                raise RequestError(
                    f'tools[{index}] must be {{"type": "function", "function": {{"name": ...}}}}'
                )


def _check_abilities(conversation: Conversation, model: str, defaults: ModelDefaults) -> None:
    if conversation.tools and conversation.tool_choice != "none":
        check_can(defaults, "tools", model, "tools")
    if any(message.get("images") for message in conversation.messages):
        check_can(defaults, "vision", model, "images")
    think = conversation.think
    message = "think must be true, false, low, medium, high or max"
    require(not isinstance(think, str) or think in EFFORTS, message)
    if think:
        check_can(defaults, "thinking", model, "thinking")


def _usable_tools(conversation: Conversation) -> Sequence[dict[str, Any]]:
    """Return the functions that the model may call."""
    if conversation.tool_choice == "none":
        return ()
    if conversation.tool_choice == "required":
        names = [tool["function"]["name"] for tool in conversation.tools]
        require(bool(names), "tool_choice: there are no tools to call")
        is_there = conversation.tool is None or conversation.tool in names
        require(is_there, f"tool_choice: there is no tool {conversation.tool!r}")
    return conversation.tools


def _structure(conversation: Conversation) -> StructuredOutput | None:
    """Return the required structure of the answer."""
    if conversation.tools and conversation.tool_choice == "required":
        return StructuredOutput(
            must_call=True, tool=conversation.tool, is_parallel=conversation.is_parallel
        )
    if grammar_of(conversation.response_format) is None:
        return None
    may_call = bool(conversation.tools) and conversation.tool_choice == "auto"
    return StructuredOutput(
        format=conversation.response_format, may_call=may_call, is_parallel=conversation.is_parallel
    )
