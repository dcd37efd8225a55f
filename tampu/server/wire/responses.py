"""OpenAI's API of responses: the struct of requests, and what they mean.

Each function raises RequestError for an invalid or unsupported field, which the message names.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from tampu.chat.output.reasoning import Think
from tampu.errors import RequestError
from tampu.server.generation_request import GenerationRequest, require
from tampu.server.model_defaults import ModelDefaults
from tampu.server.wire.adapters import chosen_adapters
from tampu.server.wire.conversation import (
    Conversation,
    read_role,
    template_message,
    tool_call,
    with_conversation,
)
from tampu.server.wire.openai_fields import (
    check_cache_options,
    check_verbosity,
    read_arguments,
    read_content,
    read_effort,
    refuse_fields,
    wrong_part,
)
from tampu.server.wire.options import parse_limited
from tampu.server.wire.other_servers import GeneratingBody, line_limits, parameters_of
from tampu.server.wire.output_format import read_formats
from tampu.server.wire.tools import full_name, read_tool_choice, response_tools, shortened

_LOGPROBS = "message.output_text.logprobs"
# Accepted values of `include`: logprobs, and parts that never occur here.
_INCLUDED = (
    _LOGPROBS, "reasoning.encrypted_content", "message.input_image.image_url",
    "file_search_call.results", "web_search_call.results", "web_search_call.action.sources",
    "computer_call_output.output.image_url", "code_interpreter_call.outputs",
)  # fmt: skip

# The items of the input, and what each must have.
_ITEMS = {
    "function_call": "call_id, name and arguments", "function_call_output": "call_id and output",
    "mcp_call": "id, server_label, name and arguments",
    "custom_tool_call": "call_id, name and input", "custom_tool_call_output": "call_id and output",
}  # fmt: skip


class ResponsesRequest(GeneratingBody, kw_only=True):
    """`POST /v1/responses`."""

    input: str | list[dict[str, Any]] | None = None
    instructions: str | None = None
    top_logprobs: int | None = None
    max_output_tokens: int | None = None
    tools: list[dict[str, Any]] | None = None
    tool_choice: str | dict[str, Any] | None = None
    parallel_tool_calls: bool | None = None
    reasoning: dict[str, Any] | None = None
    text: dict[str, Any] | None = None
    include: list[str] | None = None
    prompt_cache_key: str | None = None
    prompt_cache_options: dict[str, Any] | None = None
    metadata: dict[str, Any] | None = None
    store: bool | None = None
    previous_response_id: str | None = None
    conversation: Any = None
    # Unsupported; a request with one of them is refused.
    background: Any = None
    background_options: Any = None
    prompt: Any = None
    moderation: Any = None
    personality: Any = None
    max_tool_calls: Any = None
    context_management: Any = None
    image: Any = None


def parse_response(body: ResponsesRequest, defaults: ModelDefaults) -> GenerationRequest:
    """Return the request for a response."""
    refuse_fields(
        body,
        "background", "background_options", "prompt",
        "moderation", "personality", "max_tool_calls", "context_management", "image",
    )  # fmt: skip
    check_cache_options(body.prompt_cache_options)
    check_verbosity((body.text or {}).get("verbosity"), "text.verbosity")
    think = _effort(body.reasoning or {})
    warnings: list[str] = []
    if think and "thinking" not in defaults.info.capabilities:
        think = None
        warnings.append("reasoning.effort has no effect: the model does not reason")
    conversation = Conversation(
        messages=read_items(body.input, body.instructions),
        tools=response_tools(body.tools),
        tool_choice=read_tool_choice(body.tool_choice, is_parallel=body.parallel_tool_calls),
        think=think,
        structure=read_formats(body),
        warnings=warnings,
    )
    return with_conversation(_parameters(body, defaults), conversation, defaults)


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


def reference_id(item: dict[str, Any], where: str) -> str | None:
    """Return the id of a reference to a stored item, None for an item itself.

    OpenAI's clients may leave out the type of a reference.
    """
    if item.get("type") != "item_reference" and (item.get("type"), *item) != (None, "id"):
        return None
    id = item.get("id")
    if not isinstance(id, str):
        raise RequestError(f"{where}: item_reference needs an id")
    return id


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
            told = f"Error: {_told(item.get('error'))}" if output is None else str(output)
            yield {"role": "tool", "tool_call_id": id, "content": told}
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
            text, images = read_content(content, f"{where}.content")
            return template_message(read_role(role, where), text, images=images)
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


def _effort(reasoning: dict[str, Any]) -> Think:
    """Return the reasoning effort; reasoning is returned whole, whatever summary is requested."""
    message = "reasoning.mode is not supported, only standard"
    require(reasoning.get("mode") in (None, "standard"), message)
    return read_effort(reasoning.get("effort"), "reasoning.effort")


def _parameters(body: ResponsesRequest, defaults: ModelDefaults) -> GenerationRequest:
    for wanted in body.include or ():
        message = f"include: {shortened(wanted)} is not supported; {', '.join(_INCLUDED)} are"
        require(wanted in _INCLUDED, message)
    with_logprobs = bool(body.top_logprobs) or _LOGPROBS in (body.include or ())
    limits = {"max_tokens": body.max_tokens, "max_output_tokens": body.max_output_tokens}
    given = [limit for limit in limits.items() if limit[1] is not None]
    return parse_limited(
        body,
        defaults,
        given[-1] if given else ("max_tokens", None),
        fields=parameters_of(body, limits),
        is_streamed=bool(body.stream),
        lora=chosen_adapters(body.lora, body.lora_path),
        ignore_eos=body.ignore_eos,
        return_progress=body.telemetry().needs_progress or None,
        **line_limits(body),
        logprobs=with_logprobs,
        top_logprobs=body.top_logprobs,
    )
