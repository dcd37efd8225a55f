"""The fields that several of OpenAI's routes share, messages among them: valid values and meaning.

Each function raises RequestError for a value that it does not accept; `field` and `where` are the
client's name for it, for the message.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, TypeAlias

import msgspec

from tampu.chat.output.reasoning import Think
from tampu.engine.prompts import TextPrompt, TokensPrompt
from tampu.errors import RequestError
from tampu.server.generation_request import require
from tampu.server.wire.conversation import ToolMode, decode_image, template_message, tool_call
from tampu.server.wire.ollama import MAX_INPUTS

_EFFORTS: dict[str, Think] = {
    "none": False, "minimal": "low", "low": "low", "medium": "medium", "high": "high",
    "xhigh": "max", "ultra": "max", "max": "max",
}  # fmt: skip

TextOrTokens: TypeAlias = TextPrompt | TokensPrompt


class ToolFunction(msgspec.Struct, kw_only=True):
    """The function of a call; `arguments` is JSON as text."""

    name: str
    arguments: str = "{}"


class ToolCall(msgspec.Struct, kw_only=True):
    """A call in a conversation."""

    function: ToolFunction
    id: str = ""
    type: str = "function"


class Message(msgspec.Struct, kw_only=True):
    """A message of a conversation."""

    role: str
    content: str | list[dict[str, Any]] | None = None
    name: str | None = None
    tool_calls: list[ToolCall] | None = None
    tool_call_id: str | None = None
    reasoning: str | None = None
    reasoning_content: str | None = None
    function_call: Any = None
    audio: Any = None


@dataclass(frozen=True, slots=True)
class ToolChoice:
    """The meaning of `tool_choice`.

    Attributes:
        choice: whether the model may, must not, or must call a tool.
        tool: the only function that it may call; None: any.
        only: the functions that it is shown; None: all.
    """

    choice: ToolMode = "auto"
    tool: str | None = None
    only: tuple[str, ...] | None = None

    def shown(self, tools: Sequence[dict[str, Any]]) -> Sequence[dict[str, Any]]:
        """Return the functions that the model is shown."""
        if self.only is None:
            return tools
        names = [_name_of(tool) for tool in tools]
        for name in self.only:
            require(name in names, f"tool_choice: there is no tool {name!r:.300}")
        return [tool for tool in tools if _name_of(tool) in self.only]


def refuse_fields(body: msgspec.Struct, *fields: str) -> None:
    """Refuse a request that sets one of these unsupported fields."""
    given = msgspec.structs.asdict(body)
    for name in fields:
        require(not given[name], f"{name} is not supported")


def check_verbosity(verbosity: object, field: str) -> None:
    """Refuse any verbosity but the default."""
    message = f"{field} is not supported: say in a message how long the answer should be"
    require(verbosity in (None, "medium"), message)


def check_cache_options(options: Mapping[str, Any] | None) -> None:
    """Refuse prewarming; the other options say how long to keep a cache, and are ignored."""
    message = "prompt_cache_options.prewarm is not supported: prompts are cached automatically"
    require(not (options or {}).get("prewarm"), message)


def read_inputs(given: str | list[Any] | None, field: str) -> Iterator[TextOrTokens]:
    """Yield the prompts of a text, tokens, or a list of either."""
    items = given if isinstance(given, list) else [given or ""]
    if items and all(_is_token(item) for item in items):
        items = [items]
    require(0 < len(items) <= MAX_INPUTS, f"{field}: there must be 1 to {MAX_INPUTS}")
    for index, item in enumerate(items):
        if isinstance(item, list) and item and all(_is_token(token) for token in item):
            yield TokensPrompt(tuple(item))
        elif isinstance(item, str) and item:
            yield TextPrompt(item)
        else:
            raise RequestError(f"{field}[{index}] must be a text or tokens, and must not be empty")


def read_effort(effort: object, field: str) -> Think:
    """Return the reasoning effort."""
    if effort is None:
        return None
    if not isinstance(effort, str) or effort not in _EFFORTS:
        raise RequestError(f"{field} must be one of {', '.join(_EFFORTS)}")
    return _EFFORTS[effort]


def read_tool_choice(given: str | dict[str, Any] | None) -> ToolChoice:
    """Return the tool choice."""
    match given:
        case None | "auto":
            return ToolChoice()
        case "none":
            return ToolChoice("none")
        case "required":
            return ToolChoice("required")
        case {"type": "function", "function": {"name": str(name)}}:
            return ToolChoice("required", name)
        case {"type": "function", "name": str(name)}:
            return ToolChoice("required", name)
        case {"type": "allowed_tools", "allowed_tools": {"mode": mode, "tools": list(tools)}}:
            return _allowed(mode, tools)
        case {"type": "allowed_tools", "mode": mode, "tools": list(tools)}:
            return _allowed(mode, tools)
        case {"type": str(kind)} if kind != "function":
            raise RequestError(f"tool_choice: {kind!r:.50} is not supported, only function")
    raise RequestError(
        "tool_choice must be auto, none, required, or "
        '{"type": "function", "function": {"name": ...}}'
    )


def _allowed(mode: object, tools: Sequence[object]) -> ToolChoice:
    """Return the choice among some of the functions."""
    names: list[str] = []
    for tool in tools:
        match tool:
            case {"type": "function", "function": {"name": str(name)}}:
                names.append(name)
            case {"type": "function", "name": str(name)}:
                names.append(name)
            case {"type": str(kind)} if kind != "function":
                pass  # a tool that is left out
            case _:
                raise RequestError("tool_choice: tools must have types, functions also names")
    match mode:
        case "auto":
            return ToolChoice("auto", only=tuple(names))
        case "required":
            return ToolChoice("required", only=tuple(names))
    raise RequestError("tool_choice: the mode of allowed_tools must be auto or required")


def _name_of(tool: Mapping[str, Any]) -> object:
    function = tool.get("function")
    return function.get("name") if isinstance(function, dict) else None


def _is_token(item: object) -> bool:
    return isinstance(item, int) and not isinstance(item, bool) and 0 <= item < 2**31


def read_message(message: Message, where: str) -> dict[str, Any]:
    """Return a message in the format of Hugging Face's templates."""
    require(not message.function_call, f"{where}.function_call is not supported")
    require(not message.audio, f"{where}.audio is not supported")
    text, images = read_content(message.content, f"{where}.content")
    calls = [
        tool_call(call.id, call.function.name, read_arguments(call.function.arguments, where))
        for call in message.tool_calls or ()
    ]
    return template_message(
        "system" if message.role == "developer" else message.role.lower(),
        text,
        images=images,
        reasoning_content=message.reasoning or message.reasoning_content,
        name=message.name,
        tool_call_id=message.tool_call_id,
        tool_calls=calls,
    )


def read_content(
    content: str | Sequence[dict[str, Any]] | None, where: str
) -> tuple[str, list[bytes]]:
    """Return the text and the images of a message."""
    if content is None or isinstance(content, str):
        return content or "", []
    texts: list[str] = []
    images: list[bytes] = []
    for index, part in enumerate(content):
        match part:
            case {"type": "text" | "input_text" | "output_text", "text": str(text)} | {
                "type": "refusal",
                "refusal": str(text),
            }:
                texts.append(text)
            case {"type": "image_url", "image_url": {"url": str(url)} | str(url)} | {
                "type": "input_image",
                "image_url": str(url),
            }:
                images.append(decode_image(url, f"{where}[{index}]", is_uri=True))
            case {"type": kind}:
                raise RequestError(f"{where}[{index}]: {kind!r:.50} is not supported here")
            case _:
                raise RequestError(f"{where}[{index}] has no type")
    return "\n".join(texts), images


def read_arguments(text: str, where: str) -> dict[str, Any]:
    """Return the arguments of a call as an object."""
    try:
        return msgspec.json.decode(text or "{}", type=dict[str, Any])
    except (msgspec.DecodeError, RecursionError) as error:
        raise RequestError(
            f"{where}: the arguments of a tool call are not a JSON object"
        ) from error
