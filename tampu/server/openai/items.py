"""The items of a conversation in OpenAI's API of responses, as messages.

Each function raises RequestError for an invalid or unsupported item, which the message names.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from tampu.chat.messages import read_arguments, read_role, template_message, tool_call
from tampu.errors import RequestError, require
from tampu.server.fields.tools import full_name
from tampu.server.openai.fields import read_content, wrong_part

# The items of the input, and what each must have.
_ITEMS = {
    "function_call": "call_id, name and arguments", "function_call_output": "call_id and output",
    "mcp_call": "id, server_label, name and arguments",
    "custom_tool_call": "call_id, name and input", "custom_tool_call_output": "call_id and output",
}  # fmt: skip


def read_items(
    given: str | list[dict[str, Any]] | None,
    instructions: str | None = None,
    field: str = "input",
) -> tuple[dict[str, Any], ...]:
    """Return the conversation of an input in the format of Hugging Face's templates.

    Reasoning and tool calls, items of their own here, become parts of the assistant's message.
    """
    require(bool(given), f"{field}: a text or a list of items is needed")
    messages = [{"role": "system", "content": instructions}] if instructions else []
    if isinstance(given, str):
        return (*messages, {"role": "user", "content": given})
    for index, item in enumerate(given or ()):
        for message in _messages(item, f"{field}[{index}]"):
            if messages and _continues(messages[-1], message):
                messages[-1] = _joined(messages[-1], message)
            else:
                messages.append(message)
    return tuple(messages)


def _messages(item: dict[str, Any], where: str) -> Iterator[dict[str, Any]]:
    """Yield the messages of an item; a call of an MCP server's tool has its result in it."""
    match item:
        case {"type": "mcp_list_tools"}:
            return
        case {
            "type": "mcp_call", "id": str(id), "name": str(name),
            "arguments": str() | dict() as arguments,
            "server_label": str(server),
        }:  # fmt: skip
            call = tool_call(id, full_name(server, name), read_arguments(arguments))
            yield {"role": "assistant", "content": "", "tool_calls": [call]}
            output = item.get("output")
            content = f"Error: {_told(item.get('error'))}" if output is None else str(output)
            yield {"role": "tool", "tool_call_id": id, "content": content}
        case _:
            yield _message(item, where)


def _told(error: object) -> str:
    """Return what the error of a call says."""
    match error:
        case {"content": list(parts)}:
            return "\n".join(str(part.get("text", "")) for part in parts if isinstance(part, dict))
        case {"message": str(text)} | str(text):
            return text
    return "the call failed"


def _continues(last: dict[str, Any], message: dict[str, Any]) -> bool:
    """Whether the last message and the next are parts of one message of the assistant."""
    is_call = not message["content"] and "tool_calls" in message
    is_assistant = last["role"] == message["role"] == "assistant"
    return is_assistant and (not last["content"] or is_call)


def _joined(first: dict[str, Any], second: dict[str, Any]) -> dict[str, Any]:
    """Return two messages of the assistant as one."""
    calls = [*first.get("tool_calls", ()), *second.get("tool_calls", ())]
    content = first["content"] or second["content"]
    joined = {**first, **second, "content": content}
    return {**joined, "tool_calls": calls} if calls else joined


def _message(item: dict[str, Any], where: str) -> dict[str, Any]:
    match item:
        case {"role": str(role), "content": str() | list() as content, **rest} if (
            rest.get("type", "message") == "message"
        ):
            text, media = read_content(content, f"{where}.content")
            return template_message(read_role(role, where), text, media=media)
        case {
            "type": "function_call", "call_id": str(id), "name": str(name),
            "arguments": str() | dict() as arguments,
        }:  # fmt: skip
            name = full_name(item.get("namespace"), name)
            call = tool_call(id, name, read_arguments(arguments))
            return {"role": "assistant", "content": "", "tool_calls": [call]}
        case {
            "type": "custom_tool_call",
            "call_id": str(id),
            "name": str(name),
            "input": str(text),
        }:
            call = tool_call(id, full_name(item.get("namespace"), name), {"input": text})
            return {"role": "assistant", "content": "", "tool_calls": [call]}
        case {
            "type": "function_call_output" | "custom_tool_call_output", "call_id": str(id),
            "output": output,
        }:  # fmt: skip
            text = output if isinstance(output, str) else _output(output, f"{where}.output")
            return {"role": "tool", "tool_call_id": id, "content": text}
        case {"type": "reasoning", **rest}:
            return {"role": "assistant", "content": "", "reasoning_content": _reasoning(rest)}
        case {"type": kind} if kind != "message":
            raise wrong_part(item, where, _ITEMS)
        case _:
            raise RequestError(f"{where} must have a role, and a content that is text or parts")


def _output(output: object, where: str) -> str:
    if isinstance(output, list) and all(isinstance(part, dict) for part in output):
        return read_content(output, where)[0]
    raise RequestError(f"{where} must be a text or a list of parts")


def _reasoning(item: dict[str, Any]) -> str:
    parts = item.get("content") or item.get("summary") or ()
    return "\n".join(str(part.get("text", "")) for part in parts if isinstance(part, dict))
