"""Conversations: the chat requests of all API families, checked and made into a prompt.

Each function raises RequestError for what the model or tampu does not support, or is over a limit.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import msgspec

from tampu.audio import check_audio, is_audio
from tampu.audio.formats import SUPPORTED
from tampu.chat.media import MediaFile, without_places
from tampu.chat.output.reasoning import EFFORTS, Think
from tampu.engine.prompts import ChatPrompt, StructuredOutput
from tampu.errors import RequestError, require
from tampu.server.fields.tools import ToolChoice, Tools
from tampu.server.serving.generation_request import GenerationRequest
from tampu.server.serving.model_defaults import ModelDefaults

logger = logging.getLogger(__name__)

MAX_MESSAGES = 10_000
MAX_MEDIA = 16


@dataclass(frozen=True, slots=True, kw_only=True)
class Conversation:
    """A request for the next message.

    Attributes:
        messages: in the format of Hugging Face's templates; images, videos and sounds are under
            `media`, each a `MediaFile`.
        tools: what it may call.
        tool_choice: whether it may, must not, or must call them.
        think: whether to reason, or the effort; None: the model's default.
        variables: more values for the template.
        before: tokens of an earlier exchange.
        plain: the prompt for a model without a template.
        keeps_reasoning: whether reasoning stays in the content, as the model wrote it.
        is_whole: the model's own first messages are not put before it.
        structure: the output format; None: any text.
        warnings: sent in the response header, and logged.
    """

    messages: tuple[dict[str, Any], ...]
    tools: Tools = field(default_factory=Tools)
    tool_choice: ToolChoice = field(default_factory=ToolChoice)
    think: Think = None
    variables: Mapping[str, Any] = field(default_factory=dict)
    before: tuple[int, ...] = ()
    plain: str | None = None
    keeps_reasoning: bool = False
    is_whole: bool = False
    structure: StructuredOutput | None = None
    warnings: Sequence[str] = ()


def with_conversation(
    request: GenerationRequest, conversation: Conversation, defaults: ModelDefaults
) -> GenerationRequest:
    """Return a request with the prompt, tools and output format of a conversation."""
    check_can(defaults, "completion", request.model, "generate")
    _check_size(conversation)
    _check_abilities(conversation, request.model, defaults)
    choice = conversation.tool_choice
    tools = choice.shown(conversation.tools)
    structure = _structure(conversation.structure, choice, tools)
    ignored = conversation.tools.check(are_enforced=bool(tools) and structure is not None)
    formats = structure.warnings if structure else ()
    warnings = (*conversation.tools.warnings, *ignored, *formats, *conversation.warnings)
    for warning in warnings:
        logger.warning("%s", warning)
    whole = conversation.messages
    messages, places = without_places(
        whole if conversation.is_whole else defaults.conversation(whole)
    )
    prompt = ChatPrompt(
        messages=messages,
        places=places,
        tools=tuple(tools) or None,
        variables=dict(conversation.variables),
        think=conversation.think,
        before=conversation.before,
        plain=conversation.plain,
        keeps_reasoning=conversation.keeps_reasoning,
    )
    return replace(
        request,
        prompts=(prompt,),
        structure=structure,
        max_calls=None if choice.is_parallel else 1,
        warnings=(*request.warnings, *warnings),
    )


def check_can(defaults: ModelDefaults, capability: str, model: str, named: str) -> None:
    """Refuse a request that the model does not support."""
    require(capability in defaults.info.capabilities, f'"{model[:200]}" does not support {named}')


def _check_size(conversation: Conversation) -> None:
    count = len(conversation.messages)
    require(count <= MAX_MESSAGES, f"at most {MAX_MESSAGES} messages can be given, not {count}")
    check_media_count(sum(len(message.get("media", ())) for message in conversation.messages))


def check_media_count(count: int) -> None:
    """Refuse a request with too many images and sounds."""
    message = f"at most {MAX_MEDIA} images and sounds can be given, not {count}"
    require(count <= MAX_MEDIA, message)


def _check_abilities(conversation: Conversation, model: str, defaults: ModelDefaults) -> None:
    if conversation.tools.functions and conversation.tool_choice.mode != "none":
        check_can(defaults, "tools", model, "tools")
    for each in conversation.messages:
        for file in each.get("media") or ():
            check_file(file, model, defaults)
    think = conversation.think
    message = "think must be true, false, low, medium, high or max"
    require(not isinstance(think, str) or think in EFFORTS, message)
    if think:
        check_can(defaults, "thinking", model, "thinking")


def check_file(file: MediaFile, model: str, defaults: ModelDefaults) -> None:
    """Refuse a file that the model does not take, and then one that is not what it should be."""
    if file.is_audio or is_audio(file.data):
        check_can(defaults, "audio", model, "audio")
    else:
        hears = "audio" in defaults.info.capabilities
        more = f", and {file.place} is not a sound of a supported format: {SUPPORTED}"
        check_can(defaults, "vision", model, f"images{more if hears else ''}")
    if file.is_audio:
        try:
            check_audio(file.data)
        except RequestError as error:
            raise RequestError(f"{file.place}: {error}") from None


def _structure(
    wanted: StructuredOutput | None, choice: ToolChoice, tools: Sequence[dict[str, Any]]
) -> StructuredOutput | None:
    """Return the required structure of the answer."""
    if choice.mode == "required":
        return StructuredOutput(
            must_call=True, tool=choice.tool, is_parallel=choice.is_parallel, field="tools"
        )
    if wanted is None:
        return None
    may_call = bool(tools)
    return msgspec.structs.replace(wanted, may_call=may_call, is_parallel=choice.is_parallel)
