"""Parses the tool calls between a format's tags; ValueError for any other text."""

from __future__ import annotations

import re
from collections.abc import Callable
from functools import partial
from typing import Any

from tampu.chat.output.literals import (
    Literals,
    decoded_json,
    encoded_json,
    exact_json,
    json_items,
    json_members,
    json_sequence,
    object_text,
)
from tampu.chat.output.signatures import Signatures
from tampu.chat.output.stream_parser import WrittenCall

_MAX_PYTHON = 1 << 20  # characters: Python code reads them, unlike JSON
_NAMES = ("name", "tool_name", "function")
_ARGUMENTS = ("arguments", "parameters", "args")
_IDS = ("id", "tool_call_id")
_FUNCTION = re.compile(r"\s*<function=([^>\s]+)>\s*")
_PARAMETER = re.compile(r"\s*<parameter=([^>]+)>")
# Some models forget the closing tag before the next parameter.
_PARAMETER_END = re.compile(r"</parameter>|(?=<parameter=)|</function>")
_ARGUMENTS_OF = re.compile(r"\s*([^\s<>{}]+)\s*")
_ARGUMENT = re.compile(r"\s*<arg_key>([^<]*)</arg_key>\s*<arg_value>")
_ARGUMENT_END = re.compile("</arg_value>")
_MISTRAL = re.compile(r"\s*([^\s\[{]+)(?:\[CALL_ID\]([^\[{]*))?(?:\[ARGS\])?\s*(\{.*)", re.DOTALL)


class _InvokeTags:
    """The tags of XML invocations, each with a prefix."""

    def __init__(self, prefix: str) -> None:
        self.begin = re.compile(rf'\s*<{prefix}invoke name="([^"]*)">\s*')
        self.end = re.compile(rf"\s*</{prefix}invoke>\s*")
        named = rf'<{prefix}parameter name="([^"]*)"(?: string="(true|false)")?>'
        self.parameter = re.compile(rf"\s*{named}")
        self.parameter_end = re.compile(f"</{prefix}parameter>")


_DSML = _InvokeTags("｜DSML｜")
_INVOKE = _InvokeTags("")


def json_calls(body: str, _: Signatures) -> list[WrittenCall]:
    """`{"name": ..., "arguments": {...}}`: one, a list of them, or some with `;` between."""
    texts = json_sequence(body, ";")
    if len(texts) == 1 and texts[0].startswith("["):
        texts = json_items(texts[0])
    return list(map(_json_call, texts))


def pythonic_calls(body: str, _: Signatures) -> list[WrittenCall]:
    """`[name(key=value), ...]`, with or without the brackets."""
    _require(len(body) <= _MAX_PYTHON)
    return [_written(name, arguments) for name, arguments in Literals(body).calls()]


def gemma_calls(quote: str) -> Callable[[str, Signatures], list[WrittenCall]]:
    """`call:name{key:value,...}`, with `quote` around strings."""

    def read(body: str, _: Signatures) -> list[WrittenCall]:
        body = body.lstrip()
        _require(len(body) <= _MAX_PYTHON and body.startswith("call:"))
        return [_written(*Literals(body[5:], quote).named_object())]

    return read


def function_tags(body: str, signatures: Signatures) -> list[WrittenCall]:
    r"""`<function=name><parameter=key>\nvalue\n</parameter>...</function>`, as Qwen 3 Coder."""

    def value(key: re.Match[str], text: str) -> Any:
        return signatures.value(name, key[1], text.removeprefix("\n").removesuffix("\n"))

    name, start = _name(_FUNCTION, body)
    arguments, end = _tagged(body, start, _PARAMETER, _PARAMETER_END, value)
    _require(body[end:].strip() in {"", "</function>"})
    return [_written(name, arguments)]


def argument_tags(body: str, signatures: Signatures) -> list[WrittenCall]:
    r"""`name\n<arg_key>key</arg_key>\n<arg_value>value</arg_value>...`, as GLM does."""

    def value(key: re.Match[str], text: str) -> Any:
        return signatures.value(name, key[1], text)

    name, start = _name(_ARGUMENTS_OF, body)
    arguments, end = _tagged(body, start, _ARGUMENT, _ARGUMENT_END, value)
    _require(not body[end:].strip())
    return [_written(name, arguments)]


def dsml_calls(body: str, _: Signatures) -> list[WrittenCall]:
    """DeepSeek 3.2's XML of invocations, whose parameters say whether they are strings."""

    def value(_: str, key: re.Match[str], text: str) -> Any:
        return exact_json(text) if key[2] == "false" else text

    return _invocations(body, _DSML, value)


def invoke_calls(body: str, signatures: Signatures) -> list[WrittenCall]:
    """The same without prefixes, as MiniMax-M2 does; the values are bare texts."""

    def value(function: str, key: re.Match[str], text: str) -> Any:
        return signatures.value(function, key[1], text)

    return _invocations(body, _INVOKE, value)


def _invocations(
    body: str, tags: _InvokeTags, value: Callable[[str, re.Match[str], str], Any]
) -> list[WrittenCall]:
    """Return calls; `value` takes a function's name, a parameter's opening tag and its text."""
    calls: list[WrittenCall] = []
    position = 0
    while start := tags.begin.match(body, position):
        arguments, position = _tagged(
            body, start.end(), tags.parameter, tags.parameter_end, partial(value, start[1])
        )
        if close := tags.end.match(body, position):
            position = close.end()
        calls.append(_written(start[1], arguments))
    _require(not body[position:].strip())
    return calls


def mistral_calls(body: str, signatures: Signatures) -> list[WrittenCall]:
    """A JSON list, or `name[CALL_ID]id[ARGS]{...}` once or again after each `[TOOL_CALLS]`."""
    if body.lstrip().startswith(("[{", "[ {", "[\n")):
        return json_calls(body, signatures)
    calls: list[WrittenCall] = []
    for text in body.split("[TOOL_CALLS]"):
        match = _MISTRAL.fullmatch(text)
        if match is None:
            raise ValueError("not a call")
        calls.append(WrittenCall(match[1], object_text(match[3].strip()), match[2]))
    return calls


def deepseek_calls(body: str, _: Signatures) -> list[WrittenCall]:
    """Calls between tags of their own: `name<sep>{...}`, or with a type and a JSON fence."""
    begin, end = "<｜tool▁call▁begin｜>", "<｜tool▁call▁end｜>"
    calls: list[WrittenCall] = []
    for part in filter(None, map(str.strip, body.replace(end, begin).split(begin))):
        name, separator, text = part.partition("<｜tool▁sep｜>")
        if name.strip() == "function" and "```json" in text:
            name, _fence, fenced = text.partition("```json")
            text = fenced.strip().removesuffix("```")
        _require(bool(separator and name.strip()))
        calls.append(WrittenCall(name.strip(), object_text(text.strip())))
    return calls


def kimi_calls(body: str, _: Signatures) -> list[WrittenCall]:
    """Calls between tags of their own, each with its id, which has the name: `functions.f:0`."""
    begin, end = "<|tool_call_begin|>", "<|tool_call_end|>"
    calls: list[WrittenCall] = []
    for part in filter(None, map(str.strip, body.replace(end, begin).split(begin))):
        id, separator, text = map(str.strip, part.partition("<|tool_call_argument_begin|>"))
        name = re.sub(r":\d+$", "", id.removeprefix("functions."))
        _require(bool(separator and name))
        calls.append(WrittenCall(name, object_text(text), id))
    return calls


def fenced_actions(body: str, signatures: Signatures) -> list[WrittenCall]:
    """Command R's list of actions, without the tool that only answers."""
    calls = json_calls(body.strip().removesuffix("```"), signatures)
    return [call for call in calls if call.name != "directly_answer"]


def _json_call(text: str) -> WrittenCall:
    members = json_members(text)
    if members.get("function", "").startswith("{"):
        ids = {key: members[key] for key in _IDS if key in members}
        members = json_members(members["function"]) | ids
    name, arguments, id = (
        next((members[key] for key in keys if key in members), "null")
        for keys in (_NAMES, _ARGUMENTS, _IDS)
    )
    called, given_id = decoded_json(name), decoded_json(id)
    if arguments.startswith('"'):
        arguments = decoded_json(arguments)
    _require(isinstance(called, str) and called != "")
    arguments = object_text("{}" if arguments in ("", "null") else arguments)
    return WrittenCall(called, arguments, given_id if isinstance(given_id, str) else None)


def _written(name: str, arguments: dict[str, Any]) -> WrittenCall:
    return WrittenCall(name, encoded_json(arguments))


def _name(pattern: re.Pattern[str], body: str) -> tuple[str, int]:
    """Return the function's name at the start of a call, and where it ends."""
    match = pattern.match(body)
    if match is None:
        raise ValueError("not a call")
    return match[1], match.end()


def _tagged(
    body: str,
    position: int,
    begin: re.Pattern[str],
    end: re.Pattern[str],
    value: Callable[[re.Match[str], str], Any],
) -> tuple[dict[str, Any], int]:
    """Return the arguments between tags from a position on, and where they end."""
    arguments: dict[str, Any] = {}
    while key := begin.match(body, position):
        close = end.search(body, key.end())
        if close is None:
            raise ValueError("an argument does not end")
        arguments[key[1]] = value(key, body[key.end() : close.start()])
        position = close.end()
    return arguments, position


def _require(is_call: bool) -> None:  # noqa: FBT001
    if not is_call:
        raise ValueError("not a call")
