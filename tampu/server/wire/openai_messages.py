"""OpenAI's API: the messages of a conversation, in the format of Hugging Face's templates."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import msgspec

from tampu.errors import RequestError
from tampu.server.generation_request import require
from tampu.server.wire.conversation import decode_image


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


def template_message(message: Message, where: str) -> dict[str, Any]:
    """Return a message in the format of Hugging Face's templates.

    Raises:
        RequestError: for content that cannot be read.
    """
    require(holds=not message.function_call, message=f"{where}.function_call is not supported")
    require(holds=not message.audio, message=f"{where}.audio is not supported")
    text, images = read_content(message.content, f"{where}.content")
    optional = {
        "images": images,
        "reasoning_content": message.reasoning or message.reasoning_content,
        "name": message.name,
        "tool_call_id": message.tool_call_id,
        "tool_calls": [
            {
                "type": "function",
                "id": call.id,
                "function": {
                    "name": call.function.name,
                    "arguments": read_arguments(call.function.arguments, where),
                },
            }
            for call in message.tool_calls or ()
        ],
    }
    return {
        "role": "system" if message.role == "developer" else message.role.lower(),
        "content": text,
        **{name: value for name, value in optional.items() if value},
    }


def read_content(
    content: str | Sequence[dict[str, Any]] | None, where: str
) -> tuple[str, list[bytes]]:
    """Return the text and the images of a message.

    Raises:
        RequestError: for parts of other kinds.
    """
    if content is None or isinstance(content, str):
        return content or "", []
    texts: list[str] = []
    images: list[bytes] = []
    for index, part in enumerate(content):
        match part:
            case {"type": "text" | "input_text" | "output_text", "text": str(text)}:
                texts.append(text)
            case {"type": "refusal", "refusal": str(text)}:
                texts.append(text)
            case {"type": "image_url", "image_url": {"url": str(url)} | str(url)}:
                images.append(decode_image(url, f"{where}[{index}]", is_uri=True))
            case {"type": "input_image", "image_url": str(url)}:
                images.append(decode_image(url, f"{where}[{index}]", is_uri=True))
            case {"type": kind}:
                raise RequestError(f"{where}[{index}]: {kind!r:.50} is not supported here")
            case _:
                raise RequestError(f"{where}[{index}] has no type")
    return "\n".join(texts), images


def read_arguments(text: str, where: str) -> dict[str, Any]:
    """Return the arguments of a call as an object.

    Raises:
        RequestError: if they are invalid.
    """
    try:
        return msgspec.json.decode(text or "{}", type=dict[str, Any])
    except (msgspec.DecodeError, RecursionError) as error:
        raise RequestError(
            f"{where}: the arguments of a tool call are not a JSON object"
        ) from error
