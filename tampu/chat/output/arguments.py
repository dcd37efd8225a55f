"""Grammars of arguments that are written one by one, not as one JSON object."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from typing import Any, TypeAlias

from tampu.chat.output.signatures import parameters_of, types_of
from tampu.sampling.grammar import lark_json, lark_text

_ANYTHING = r"/(?s:.*)/"


class ArgumentRules:
    """Rules that a grammar needs besides those written in place.

    Attributes:
        lines: the rules.
    """

    def __init__(self, tokens: Mapping[str, int]) -> None:
        """Take the control tokens, which are written as tokens."""
        self.lines: list[str] = []
        self._tokens = tokens

    def literal(self, text: str) -> str:
        """Return a text as it is, control tokens in it as tokens."""
        return lark_text(text, self._tokens)

    def text_until(self, end: str) -> str:
        """Return any text up to the first `end`, and `end`."""
        if any(end.startswith(token) for token in self._tokens):
            return f"{_ANYTHING} {self.literal(end)}"
        plain = min((end.find(t) for t in self._tokens if t in end), default=len(end))
        name = f"text{len(self.lines)}"
        self.lines.append(f"{name}[suffix={lark_text(end[:plain])}]: {_ANYTHING}")
        return f"{name} {self.literal(end[plain:])}" if end[plain:] else name


WriteArguments: TypeAlias = Callable[[dict[str, Any], ArgumentRules], str]


def _tagged(begin: str, end: str) -> WriteArguments:
    """Return what writes arguments between tags; in `begin` KEY and IS_TEXT are filled in."""

    def write(schema: dict[str, Any], rules: ArgumentRules) -> str:
        parameters, required = _parameters(schema)
        parts: list[str] = []
        for key, value in parameters.items():
            is_text = "true" if _is_text(value) else "false"
            tag = begin.replace("IS_TEXT", is_text).replace("KEY", key)
            parts.append(f"({_text_value(rules, tag, value, end)}){'' if key in required else '?'}")
        return " ".join(parts) or '""'

    return write


function_tags = _tagged("<parameter=KEY>\n", "\n</parameter>\n")
argument_tags = _tagged("<arg_key>KEY</arg_key>\n<arg_value>", "</arg_value>\n")
invocation = _tagged('<parameter name="KEY">', "</parameter>\n")
dsml = _tagged('<｜DSML｜parameter name="KEY" string="IS_TEXT">', "</｜DSML｜parameter>\n")


def pythonic(schema: dict[str, Any], rules: ArgumentRules) -> str:
    """Write arguments as Python's keyword arguments."""

    def one(key: str, value: dict[str, Any]) -> str:
        if types_of(value) == {"boolean"}:
            return f'{rules.literal(f"{key}=")} ("True" | "False")'
        return f"{rules.literal(f'{key}=')} {lark_json(value)}"

    return _separated(schema, one, '", "')


def gemma(quote: str) -> WriteArguments:
    """Return what writes arguments as Gemma does, with `quote` around strings."""

    def write_value(value: Mapping[str, Any], rules: ArgumentRules) -> str:
        if "enum" in value or "const" in value:
            choices = value.get("enum", [value.get("const")])
            return f"({' | '.join(rules.literal(_shown(choice, quote)) for choice in choices)})"
        types = types_of(value)
        if types == {"object"} and value.get("properties"):
            return f'"{{" {write(dict(value), rules)} "}}"'
        if types == {"array"} and isinstance(value.get("items"), Mapping):
            item = write_value(value["items"], rules)
            return f'"[" ({item} ("," {item})*){"" if value.get("minItems") else "?"} "]"'
        if types and types <= {"integer", "number", "boolean", "null"}:
            return lark_json(value)
        return f"{rules.literal(quote)} {rules.text_until(quote)}"

    def write(schema: dict[str, Any], rules: ArgumentRules) -> str:
        def one(key: str, value: dict[str, Any]) -> str:
            return f"{rules.literal(f'{key}:')} {write_value(value, rules)}"

        return _separated(schema, one, '","')

    return write


def _shown(value: object, quote: str) -> str:
    return f"{quote}{value}{quote}" if isinstance(value, str) else json.dumps(value)


def _is_text(value: Mapping[str, Any]) -> bool:
    return not types_of(value) or "string" in types_of(value)


def _text_value(rules: ArgumentRules, begin: str, value: dict[str, Any], end: str) -> str:
    """Return a value as bare text if it is a string, else as JSON."""
    choices = value.get("enum", [value["const"]] if "const" in value else None)
    if choices and all(isinstance(choice, str) for choice in choices):
        written = " | ".join(rules.literal(choice) for choice in choices)
        return f"{rules.literal(begin)} ({written}) {rules.literal(end)}"
    if _is_text(value):
        tag = end.strip()
        after = rules.literal(end.partition(tag)[2])
        return f"{rules.literal(begin)} {rules.text_until(tag)} {after}"
    return f"{rules.literal(begin)} {lark_json(value)} {rules.literal(end)}"


def _parameters(schema: dict[str, Any]) -> tuple[dict[str, dict[str, Any]], set[str]]:
    """Return the parameters with their schemas, in order, and the names of the required ones."""
    definitions = {key: schema[key] for key in ("$defs", "definitions") if key in schema}
    parameters = {key: {**value, **definitions} for key, value in parameters_of(schema).items()}
    required = schema.get("required")
    names = required if isinstance(required, list | tuple) else ()
    return parameters, set(map(str, names))


def _separated(
    schema: dict[str, Any], write: Callable[[str, dict[str, Any]], str], separator: str
) -> str:
    """Return parameters with a separator between, the required ones first."""
    parameters, required = _parameters(schema)
    must = [f"({write(key, parameters[key])})" for key in parameters if key in required]
    may = [f"({write(key, parameters[key])})" for key in parameters if key not in required]
    optional = [f"({separator} {part})?" for part in may]
    if must:
        return f" {separator} ".join(must) + " " + " ".join(optional)
    beginnings = [" ".join([may[i], *optional[i + 1 :]]) for i in range(len(may))]
    return f"({' | '.join(beginnings)})?" if beginnings else '""'
