"""The calls in the text between a format's tags; each function returns None for what is none."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any

from tampu.chat.output.deltas import ToolCall
from tampu.chat.output.literals import Literals, decoded_json, decoded_sequence
from tampu.chat.output.signatures import Signatures

_LONGEST_PYTHON = 1 << 20  # characters; it is read in Python, JSON is not
_NAMES = ("name", "tool_name", "function")
_ARGUMENTS = ("arguments", "parameters", "args")
_IDS = ("id", "tool_call_id")
_FUNCTION = re.compile(r"\s*<function=([^>\s]+)>\s*")
_PARAMETER = re.compile(r"\s*<parameter=([^>]+)>")
_PARAMETER_END = re.compile(r"</parameter>|<parameter=|</function>")
_ARGUMENTS_OF = re.compile(r"\s*([^\s<>{}]+)\s*")
_ARGUMENT = re.compile(r"\s*<arg_key>([^<]*)</arg_key>\s*<arg_value>")
_INVOKE = re.compile(r'\s*<｜DSML｜invoke name="([^"]*)">\s*')
_INVOKE_END = re.compile(r"\s*</｜DSML｜invoke>\s*")
_DSML_PARAMETER = re.compile(r'\s*<｜DSML｜parameter name="([^"]*)"(?: string="(true|false)")?>')


def json_calls(body: str, _: Signatures) -> list[ToolCall] | None:
    """`{"name": ..., "arguments": {...}}`: one, a list of them, or some with `;` between."""
    try:
        values = decoded_sequence(body, ";")
    except ValueError:
        return None
    if len(values) == 1 and isinstance(values[0], list):
        values = values[0]
    return _all(map(_call, values))


def pythonic_calls(body: str, _: Signatures) -> list[ToolCall] | None:
    """`[name(key=value), ...]`, with or without the brackets."""
    if len(body) > _LONGEST_PYTHON:
        return None
    try:
        return [ToolCall(name, arguments) for name, arguments in Literals(body).calls()]
    except (ValueError, UnicodeError):
        return None


def gemma_calls(quote: str) -> Callable[[str, Signatures], list[ToolCall] | None]:
    """`call:name{key:value,...}`, with `quote` around strings."""

    def read(body: str, _: Signatures) -> list[ToolCall] | None:
        if len(body) > _LONGEST_PYTHON or not body.lstrip().startswith("call:"):
            return None
        try:
            name, arguments = Literals(body.lstrip()[5:], quote).named_object()
        except (ValueError, UnicodeError):
            return None
        return [ToolCall(name, arguments)]

    return read


def function_tags(body: str, signatures: Signatures) -> list[ToolCall] | None:
    r"""`<function=name><parameter=key>\nvalue\n</parameter>...</function>`, as Qwen 3 Coder."""
    start = _FUNCTION.match(body)
    if not start:
        return None
    name, position = start[1], start.end()
    arguments: dict[str, Any] = {}
    while parameter := _PARAMETER.match(body, position):
        # Some models forget the closing tag before the next parameter.
        end = _PARAMETER_END.search(body, parameter.end())
        if not end:
            return None
        text = body[parameter.end() : end.start()].removeprefix("\n").removesuffix("\n")
        arguments[parameter[1]] = signatures.value(name, parameter[1], text)
        position = end.start() if end.group().startswith("<p") else end.end()
    is_whole = body[position:].strip() in {"", "</function>"}
    return [ToolCall(name, arguments)] if is_whole else None


def argument_tags(body: str, signatures: Signatures) -> list[ToolCall] | None:
    r"""`name\n<arg_key>key</arg_key>\n<arg_value>value</arg_value>...`, as GLM does."""
    start = _ARGUMENTS_OF.match(body)
    if not start:
        return None
    name, position = start[1], start.end()
    arguments: dict[str, Any] = {}
    while key := _ARGUMENT.match(body, position):
        end = body.find("</arg_value>", key.end())
        if end < 0:
            return None
        arguments[key[1]] = signatures.value(name, key[1], body[key.end() : end])
        position = end + len("</arg_value>")
    return None if body[position:].strip() else [ToolCall(name, arguments)]


def mistral_calls(body: str, signatures: Signatures) -> list[ToolCall] | None:
    """A JSON list, or `name[CALL_ID]id[ARGS]{...}` once or again after each `[TOOL_CALLS]`."""
    if body.lstrip().startswith(("[{", "[ {", "[\n")):
        return json_calls(body, signatures)
    return _all(map(_mistral_call, body.split("[TOOL_CALLS]")))


def deepseek_calls(body: str, _: Signatures) -> list[ToolCall] | None:
    """Calls between tags of their own: `name<sep>{...}`, or with a type and a JSON fence."""
    begin, end = "<｜tool▁call▁begin｜>", "<｜tool▁call▁end｜>"
    parts = [part.strip() for part in body.replace(end, begin).split(begin)]
    return _all(_deepseek_call(part) for part in parts if part)


def dsml_calls(body: str, _: Signatures) -> list[ToolCall] | None:
    """DeepSeek 3.2's XML of invocations, whose parameters say whether they are strings."""
    calls: list[ToolCall] = []
    position = 0
    while start := _INVOKE.match(body, position):
        position = start.end()
        arguments: dict[str, Any] = {}
        while item := _DSML_PARAMETER.match(body, position):
            end = body.find("</｜DSML｜parameter>", item.end())
            if end < 0:
                return None
            text = body[item.end() : end]
            try:
                arguments[item[1]] = decoded_json(text) if item[2] == "false" else text
            except ValueError:
                return None
            position = end + len("</｜DSML｜parameter>")
        close = _INVOKE_END.match(body, position)
        position = close.end() if close else position
        calls.append(ToolCall(start[1], arguments))
    return None if body[position:].strip() else calls or None


def fenced_actions(body: str, signatures: Signatures) -> list[ToolCall] | None:
    """Command R's list of actions; the tool that only answers is no call."""
    calls = json_calls(body.strip().removesuffix("```"), signatures)
    return calls and [call for call in calls if call.name != "directly_answer"]


def _call(value: Any) -> ToolCall | None:
    if not isinstance(value, dict):
        return None
    if isinstance(value.get("function"), dict):
        value = value["function"] | {key: value[key] for key in _IDS if key in value}
    name = next((value[key] for key in _NAMES if key in value), None)
    arguments: Any = next((value[key] for key in _ARGUMENTS if key in value), {})
    if isinstance(arguments, str):
        arguments = _object(arguments)
    if not isinstance(name, str) or not name or not isinstance(arguments, dict | None):
        return None
    given = next((value[key] for key in _IDS if key in value), None)
    return ToolCall(name, arguments or {}, given if isinstance(given, str) else None)


def _mistral_call(text: str) -> ToolCall | None:
    match = re.fullmatch(
        r"\s*([^\s\[{]+)(?:\[CALL_ID\]([^\[{]*))?(?:\[ARGS\])?\s*(\{.*)", text, re.DOTALL
    )
    arguments = _object(match[3].strip()) if match else None
    return ToolCall(match[1], arguments, match[2]) if match and arguments is not None else None


def _deepseek_call(text: str) -> ToolCall | None:
    before, separator, after = text.partition("<｜tool▁sep｜>")
    if not separator:
        return None
    if before.strip() == "function" and "```json" in after:
        name, _, fenced = after.partition("```json")
        after = fenced.strip().removesuffix("```")
    else:
        name = before
    arguments = _object(after.strip())
    return ToolCall(name.strip(), arguments) if arguments is not None and name.strip() else None


def _object(text: str) -> dict[str, Any] | None:
    try:
        value = decoded_json(text)
    except ValueError:
        return None
    return value if isinstance(value, dict) else None


def _all(calls: Any) -> list[ToolCall] | None:
    found: list[ToolCall] = []
    for call in calls:
        if call is None:
            return None
        found.append(call)
    return found or None
