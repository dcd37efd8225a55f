"""Checks the messages of a conversation and converts them to what templates expect."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from tampu.chat.media import MediaFile
from tampu.chat.output.literals import json_object
from tampu.chat.output.stream_parser import ToolCall
from tampu.errors import RequestError

# The last two, and `document ID`, are Granite's.
ROLES = ("system", "developer", "user", "assistant", "tool", "control", "document")
_LISTED = ", ".join(ROLES[:-2])


def read_role(role: str, where: str) -> str:
    """Return the role of a message as templates know it.

    Raises:
        RequestError: for an unknown one.
    """
    lower = role.lower()
    if lower not in ROLES and not lower.startswith("document"):
        shown = f"{role!r:.50}" + "..." * (len(role) > 48)
        raise RequestError(f"{where}.role must be {_LISTED}, not {shown}")
    return "system" if lower == "developer" else lower


def tool_call(id: str | None, name: str, arguments: object) -> dict[str, Any]:
    """Return a tool call in the format of Hugging Face's templates."""
    return {"type": "function", "id": id, "function": {"name": name, "arguments": arguments}}


def template_message(role: str, content: str, **optional: object) -> dict[str, Any]:
    """Return a message in the format of Hugging Face's templates, without empty optional fields."""
    given = {name: value for name, value in optional.items() if value}
    return {"role": role, "content": content, **given}


def read_arguments(given: str | Mapping[str, Any] | None) -> Mapping[str, Any] | str:
    """Return the arguments of a call in a conversation.

    A text that is not a JSON object is returned as it is: a model may write anything, and the next
    request has it in its history. The template shows it.
    """
    if not isinstance(given, str):
        return given or {}
    try:
        return json_object(given or "{}")
    except ValueError:
        return given


def answer_message(text: str, reasoning: str, calls: Sequence[ToolCall]) -> dict[str, Any]:
    """Return the model's message in the format of Hugging Face's templates."""
    written = [tool_call(call.id, call.name, call.arguments) for call in calls]
    return template_message("assistant", text, reasoning_content=reasoning, tool_calls=written)


def read_messages(
    messages: Sequence[Mapping[str, Any]], read_file: Callable[[Any, str, str], Any]
) -> list[dict[str, Any]]:
    """Return the messages of a program as a template takes them.

    Args:
        messages: with a role and content: a text, or a list of parts with the type "text". An
            assistant's may have tool calls instead, in OpenAI's format or as `ToolCall`, and a
            user's may have `images`, also videos, and `audio`; it returns all under `media`,
            as `MediaFile`.
        read_file: returns an image, a video or a sound that was given, and gets its place for
            messages.

    Raises:
        RequestError: naming the message that is wrong, and its field.
    """
    if not messages:
        raise RequestError("messages is empty: at least one message is required")
    return [
        read_message(message, f"messages[{index}]", read_file)
        for index, message in enumerate(messages)
    ]


def check_tools(tools: Sequence[Mapping[str, Any]]) -> None:
    """Check that functions have names.

    Raises:
        RequestError: naming the tool that is wrong.
    """
    for index, tool in enumerate(tools):
        match tool:
            case {"function": {"name": str(name)}} if name:
                continue
        wanted = '{"type": "function", "function": {"name": ..., "parameters": ...}}'
        raise RequestError(f"tools[{index}] must be a function with a name, as {wanted}")


def read_message(
    message: Mapping[str, Any], where: str, read_file: Callable[[Any, str, str], Any]
) -> dict[str, Any]:
    """Return one message as `read_messages` does; `where` is its place for errors."""
    role = message.get("role")
    if not isinstance(role, str):
        what = "is missing" if role is None else f"must be a string, not {type(role).__name__}"
        raise RequestError(f"{where}.role {what}")
    found = {**message, "role": read_role(role, where)}
    calls = message.get("tool_calls")
    given_in = [field for field in ("images", "audio") if message.get(field) is not None]
    files: list[MediaFile] = []
    for field in given_in:
        given = found.pop(field)
        if not isinstance(given, list | tuple):
            raise RequestError(f"{where}.{field} must be a list, not {type(given).__name__}")
        for index, file in enumerate(given):
            place = f"{where}.{field}[{index}]"
            files.append(MediaFile(read_file(file, place, field), place))
    if found.pop("media", None) is not None:
        raise RequestError(f"{where}.media is not known: files go into images or audio")
    if given_in:
        found["media"] = files
    if calls is not None:
        if not isinstance(calls, list | tuple):
            raise RequestError(f"{where}.tool_calls must be a list, not {type(calls).__name__}")
        found["tool_calls"] = [
            _read_call(call, f"{where}.tool_calls[{i}]") for i, call in enumerate(calls)
        ]
    found["content"] = _read_content(message.get("content"), f"{where}.content")
    if message.get("content") is None and role.lower() != "assistant" and not files:
        raise RequestError(f"{where}.content is missing")
    return found


def _read_content(content: object, where: str) -> str:
    if content is None or isinstance(content, str):
        return content or ""
    if not isinstance(content, list | tuple):
        raise RequestError(f"{where} must be a string, not {type(content).__name__}")
    texts = []
    for index, part in enumerate(content):
        match part:
            case {"type": "text", "text": str(text)}:
                texts.append(text)
            case _:
                more = "images go into the message's `images`, sounds into its `audio`"
                raise RequestError(f"{where}[{index}] must be a part with text; {more}")
    return "\n".join(texts)


def _read_call(call: object, where: str) -> Any:
    match call:
        case ToolCall(name=name, arguments=arguments, id=id):
            return tool_call(id, name, arguments)
        case {"function": {"name": str(name), "arguments": str(text), **function}, **others}:
            written = {"name": name, "arguments": read_arguments(text), **function}
            return {**others, "function": written}
        case {"function": {"name": str()}}:
            return call
    raise RequestError(f"{where} must be a ToolCall, or a dict with a function and its name")
