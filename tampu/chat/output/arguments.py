"""Arguments that are written one by one, not as one JSON object, as parts of a Lark grammar."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from typing import Any, TypeAlias

from tampu.chat.output.signatures import types_of
from tampu.sampling.grammar import lark_json, lark_text

_ANYTHING = r"/(?s:.*)/"


class ArgumentRules:
    """Rules that a grammar needs besides those that it writes in place.

    Attributes:
        lines: the rules.
    """

    def __init__(self, tokens: Mapping[str, int]) -> None:
        """Take the control tokens that stand for themselves."""
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


Written: TypeAlias = Callable[[dict[str, Any], ArgumentRules], str]


def _function_tags(schema: dict[str, Any], rules: ArgumentRules) -> str:
    return _in_order(
        schema, lambda key, value: _text_value(
            rules, f"<parameter={key}>\n", value, "\n</parameter>\n")
    )  # fmt: skip


def _argument_tags(schema: dict[str, Any], rules: ArgumentRules) -> str:
    return _in_order(
        schema, lambda key, value: _text_value(
            rules, f"<arg_key>{key}</arg_key>\n<arg_value>", value, "</arg_value>\n")
    )  # fmt: skip


def _dsml(schema: dict[str, Any], rules: ArgumentRules) -> str:
    def one(key: str, value: dict[str, Any]) -> str:
        is_text = "true" if _is_text(value) else "false"
        begin = f'<｜DSML｜parameter name="{key}" string="{is_text}">'
        return _text_value(rules, begin, value, "</｜DSML｜parameter>\n")

    return _in_order(schema, one)


def _pythonic(schema: dict[str, Any], rules: ArgumentRules) -> str:
    def one(key: str, value: dict[str, Any]) -> str:
        if types_of(value) == {"boolean"}:
            return f'{rules.literal(f"{key}=")} ("True" | "False")'
        return f"{rules.literal(f'{key}=')} {lark_json(value)}"

    return _separated(schema, one, '", "')


def _gemma(quote: str) -> Written:
    def value_of(value: Mapping[str, Any], rules: ArgumentRules) -> str:
        if "enum" in value or "const" in value:
            choices = value.get("enum", [value.get("const")])
            return (
                "(" + " | ".join(rules.literal(_shown(choice, quote)) for choice in choices) + ")"
            )
        types = types_of(value)
        if types == {"object"} and value.get("properties"):
            inner = _separated(
                dict(value),
                lambda key, item: f"{rules.literal(f'{key}:')} {value_of(item, rules)}",
                '","',
            )
            return f'"{{" {inner} "}}"'
        if types == {"array"} and isinstance(value.get("items"), Mapping):
            item = value_of(value["items"], rules)
            items = f'({item} ("," {item})*)'
            return f'"[" {items}{"" if value.get("minItems") else "?"} "]"'
        if types and types <= {"integer", "number", "boolean", "null"}:
            return lark_json(value)
        return f"{rules.literal(quote)} {rules.text_until(quote)}"

    def write(schema: dict[str, Any], rules: ArgumentRules) -> str:
        def one(key: str, value: dict[str, Any]) -> str:
            return f"{rules.literal(f'{key}:')} {value_of(value, rules)}"

        return _separated(schema, one, '","')

    return write


BY_NAME: Mapping[str, Written] = {
    "argument-tags": _argument_tags,
    "dsml": _dsml,
    "function-tags": _function_tags,
    "functiongemma": _gemma("<escape>"),
    "gemma": _gemma('<|"|>'),
    "pythonic": _pythonic,
}


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
        return (
            f"{rules.literal(begin)} {rules.text_until(tag)} {rules.literal(end.partition(tag)[2])}"
        )
    return f"{rules.literal(begin)} {lark_json(value)} {rules.literal(end)}"


def _parameters(schema: dict[str, Any]) -> tuple[dict[str, dict[str, Any]], set[str]]:
    """Return the parameters with their schemas, in order, and which of them must be there."""
    definitions = {key: schema[key] for key in ("$defs", "definitions") if key in schema}
    properties = schema.get("properties")
    found = properties if isinstance(properties, Mapping) else {}
    parameters = {
        str(key): {**(found[key] if isinstance(found[key], Mapping) else {}), **definitions}
        for key in found
    }
    required = schema.get("required")
    return parameters, {str(key) for key in required} if isinstance(
        required, list | tuple
    ) else set()


def _in_order(schema: dict[str, Any], write: Callable[[str, dict[str, Any]], str]) -> str:
    parameters, required = _parameters(schema)
    parts = [
        f"({write(key, parameters[key])}){'' if key in required else '?'}" for key in parameters
    ]
    return " ".join(parts) or '""'


def _separated(
    schema: dict[str, Any], write: Callable[[str, dict[str, Any]], str], separator: str
) -> str:
    """Return parameters with a separator between: those that must be there first."""
    parameters, required = _parameters(schema)
    must = [f"({write(key, parameters[key])})" for key in parameters if key in required]
    may = [f"({write(key, parameters[key])})" for key in parameters if key not in required]
    optional = [f"({separator} {part})?" for part in may]
    if must:
        return f" {separator} ".join(must) + " " + " ".join(optional)
    beginnings = [" ".join([may[i], *optional[i + 1 :]]) for i in range(len(may))]
    return f"({' | '.join(beginnings)})?" if beginnings else '""'
