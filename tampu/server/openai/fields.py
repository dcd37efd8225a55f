"""The fields that several of OpenAI's routes share, messages among them: valid values and meaning.

Each function raises RequestError for a value that it does not accept; `field` and `where` are the
client's name for it, for the message.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any, TypeAlias

import msgspec

from tampu.chat.media import MediaFile
from tampu.chat.messages import read_arguments, read_role, template_message, tool_call
from tampu.chat.output.reasoning import Think
from tampu.engine.prompts import TextPrompt, TokensPrompt
from tampu.errors import RequestError, require
from tampu.server.fields.media import decode_audio, decode_image, decode_video
from tampu.server.fields.options import MAX_INPUTS
from tampu.server.fields.tools import shortened

_EFFORTS: dict[str, Think] = {
    "none": False, "minimal": "low", "low": "low", "medium": "medium", "high": "high",
    "xhigh": "max", "ultra": "max", "max": "max",
}  # fmt: skip

# The parts of a message, and what each must have.
_PARTS = {
    "text": "text", "input_text": "text", "output_text": "text", "refusal": "refusal",
    "image_url": "image_url with a url", "input_image": "image_url", "input_json": "data",
    "video_url": "video_url with a url", "input_audio": "input_audio with data in base64",
    "audio_url": "audio_url with a url",
}  # fmt: skip
TextOrTokens: TypeAlias = TextPrompt | TokensPrompt


class ToolFunction(msgspec.Struct, kw_only=True):
    """The function of a call; `arguments` is JSON as text, or an object as for other servers."""

    name: str
    arguments: str | dict[str, Any] | None = None


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


def read_prediction(given: Mapping[str, Any] | None) -> str:
    """Return the text that an answer may be: `content` is a text, or its parts."""
    if given is None:
        return ""
    content = given.get("content")
    parts = content if isinstance(content, list) else [{"type": "text", "text": content}]
    found = [each.get("text") if isinstance(each, Mapping) else None for each in parts]
    texts = [each for each in found if isinstance(each, str)]
    is_text = given.get("type") == "content" and len(texts) == len(found)
    require(is_text, "prediction must have the type 'content', and a text or text parts as content")
    return "".join(texts)


def read_inputs(given: str | list[Any] | None, field: str) -> Iterator[TextOrTokens]:
    """Yield the prompts of a text, tokens, or a list of either.

    A text may be empty: most models put tokens before it or after it.
    """
    items = given if isinstance(given, list) else [given]
    if items and all(_is_token(item) for item in items):
        items = [items]
    require(0 < len(items) <= MAX_INPUTS, f"{field}: there must be 1 to {MAX_INPUTS}")
    for index, item in enumerate(items):
        if isinstance(item, list) and item and all(_is_token(token) for token in item):
            yield TokensPrompt(tuple(item))
        elif isinstance(item, str):
            yield TextPrompt(item)
        else:
            raise RequestError(f"{field}[{index}] must be a text or at least one token")


def read_effort(effort: object, field: str) -> Think:
    """Return the reasoning effort."""
    if effort is None:
        return None
    if not isinstance(effort, str) or effort not in _EFFORTS:
        raise RequestError(f"{field} must be one of {', '.join(_EFFORTS)}")
    return _EFFORTS[effort]


def _is_token(item: object) -> bool:
    return isinstance(item, int) and not isinstance(item, bool) and 0 <= item < 2**31


def read_message(message: Message, where: str) -> dict[str, Any]:
    """Return a message in the format of Hugging Face's templates."""
    require(not message.function_call, f"{where}.function_call is not supported")
    require(not message.audio, f"{where}.audio is not supported")
    is_given = message.content is not None or message.role == "assistant"
    require(is_given, f"{where}.content is missing")
    text, media = read_content(message.content, f"{where}.content")
    calls = [
        tool_call(call.id, call.function.name, read_arguments(call.function.arguments))
        for call in message.tool_calls or ()
    ]
    return template_message(
        read_role(message.role, where),
        text,
        media=media,
        reasoning_content=message.reasoning or message.reasoning_content,
        name=message.name,
        tool_call_id=message.tool_call_id,
        tool_calls=calls,
    )


def read_content(
    content: str | Sequence[dict[str, Any]] | None, where: str
) -> tuple[str, list[MediaFile]]:
    """Return the text of a message, and its images, videos and sounds."""
    if content is None or isinstance(content, str):
        return content or "", []
    parts = [*read_parts(content, where)]
    texts = (part for part in parts if isinstance(part, str))
    return "\n".join(texts), [part for part in parts if isinstance(part, MediaFile)]


def read_parts(content: Sequence[Any], where: str) -> Iterator[str | MediaFile]:
    """Yield the texts, images, videos and sounds in the parts of a message."""
    for index, part in enumerate(content):
        match part:
            case {"type": "text" | "input_text" | "output_text", "text": str(text)} | {
                "type": "refusal",
                "refusal": str(text),
            }:
                yield text
            case {"type": "image_url", "image_url": {"url": str(url)} | str(url)} | {
                "type": "input_image",
                "image_url": str(url),
            }:
                yield decode_image(url, f"{where}[{index}]", is_uri=True)
            case {"type": "video_url", "video_url": {"url": str(url)} | str(url)}:
                yield decode_video(url, f"{where}[{index}]")
            case {"type": "input_audio", "input_audio": {"data": str(data)}} | {
                "type": "audio_url",
                "audio_url": {"url": str(data)} | str(data),
            }:
                yield decode_audio(data, f"{where}[{index}]")
            case {"type": "input_json", "data": dict() | list() as data}:
                yield msgspec.json.encode(data).decode()
            case {"type": _}:
                raise wrong_part(part, f"{where}[{index}]", _PARTS)
            case _:
                raise RequestError(f"{where}[{index}] has no type")


def wrong_part(part: Mapping[str, Any], where: str, known: Mapping[str, str]) -> RequestError:
    """Return the error for a part or item; `known` has the fields that each kind must have."""
    kind = part.get("type")
    if isinstance(kind, str) and kind in known:
        return RequestError(f"{where}: {kind} needs {known[kind]}")
    return RequestError(f"{where}: {shortened(kind)} is not supported here")
