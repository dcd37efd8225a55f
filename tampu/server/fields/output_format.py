"""The output format of a request, by the names that any API or server has for it.

All of them mean the same in every API: OpenAI's `response_format` and `text.format`, Anthropic's
`output_config.format` and `output_format`, Ollama's `format`, llama-server's `json_schema` and
`grammar`, vLLM's `guided_...` and `structured_outputs`, SGLang's `regex`, `ebnf` and `json_schema`.
A request has at most one format.

Each function raises RequestError for a value that it does not accept; `field` is the client's name
for it, for the message.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from operator import attrgetter
from typing import Any, TypeAlias

import msgspec

from tampu.engine.prompts import StructuredOutput
from tampu.errors import GrammarError, RequestError, require
from tampu.sampling.grammar import grammar_of
from tampu.server.fields.options import ModelBody
from tampu.settings.type_errors import type_error

OutputFormat: TypeAlias = str | bool | dict[str, Any] | None
"""As `grammar_of` takes it; None: any text."""

# The fields of a ResponseFormat that belong to each of its types.
_FIELDS_OF_TYPES = {
    "text": (), "json_object": ("schema",), "json_schema": ("json_schema", "schema"),
    "regex": ("regex",), "lark": ("lark",), "gbnf": ("gbnf",), "grammar": ("grammar",),
    "choices": ("choices",),
}  # fmt: skip
_HOLDERS = ("text", "output_config")  # objects with more than the format
_EMPTY_IS_NONE = ("format", "grammar")  # the defaults of Ollama's and llama-server's clients
_WRAPPER = {"name", "description", "strict"}  # of OpenAI, around a schema
_MAX_SHOWN = 10  # warnings of a schema
_GBNF_RULE = re.compile(r"^\s*[A-Za-z][\w-]*\s*::=", re.MULTILINE)
# The types of the formats in vLLM's object; each means the same as the field `guided_...`.
_STRUCTURED_OUTPUTS: Mapping[str, Any] = {
    "json": dict[str, Any] | bool | str, "regex": str, "choice": list[str], "grammar": str,
}  # fmt: skip
# Of vLLM's object: how it looks for the grammar, and what is never done here.
_WITHOUT_EFFECT = ("disable_fallback", "backend")
_NEVER = ("disable_any_whitespace", "disable_additional_properties", "whitespace_pattern",
          "structural_tag")  # fmt: skip


class JSONSchema(msgspec.Struct, kw_only=True):
    """A schema that the answer must follow."""

    schema: dict[str, Any] | None = None
    name: str | None = None
    strict: bool | None = None


class ResponseFormat(msgspec.Struct, kw_only=True):
    """OpenAI's and Anthropic's output format; also llama-server's `schema`, and grammars."""

    type: str
    json_schema: JSONSchema | None = None
    schema: dict[str, Any] | bool | None = None
    regex: str | None = None
    lark: str | None = None
    gbnf: str | None = None
    grammar: str | None = None
    choices: list[str] | None = None


class FormattedBody(ModelBody, kw_only=True):
    """A request whose answer has an output format; each field is a name of it."""

    format: Any = None
    response_format: dict[str, Any] | None = None
    text: Any = None  # a prompt, in requests that mean another API
    output_config: dict[str, Any] | None = None
    output_format: dict[str, Any] | None = None
    json_schema: dict[str, Any] | bool | str | None = None
    grammar: str | None = None
    ebnf: str | None = None
    regex: str | None = None
    guided_json: dict[str, Any] | bool | str | None = None
    guided_regex: str | None = None
    guided_choice: list[str] | None = None
    guided_grammar: str | None = None
    structured_outputs: dict[str, Any] | None = None
    guided_whitespace_pattern: Any = None
    structural_tag: Any = None


def read_formats(body: FormattedBody) -> StructuredOutput | None:
    """Return the output format of a body; None: any text."""
    given: dict[str, OutputFormat] = {}
    warnings: list[str] = []
    for (name, read), value in zip(_READ.items(), _values(body), strict=True):
        field = name
        if name in _HOLDERS:
            held = value.get("format") if isinstance(value, dict) else None
            value, field = held, f"{name}.format"
        if value is None or (value == "" and name in _EMPTY_IS_NONE):
            continue
        require(value != "", f"{field} is empty")
        wanted = read(value, field)
        if wanted is not None:
            warnings += ignored_warnings(_check(wanted, field), field)
            given[field] = wanted
    require(len(given) <= 1, f"{' and '.join(given)}: at most one output format can be given")
    for field, wanted in given.items():
        return StructuredOutput(format=wanted, field=field, warnings=tuple(warnings))
    return None


def ignored_warnings(ignored: Sequence[str], field: str) -> list[str]:
    """Return the warnings of a schema of which something is ignored; `field` is where it is."""
    lines = [f"{field}: {line}" for line in ignored[:_MAX_SHOWN]]
    more = len(ignored) - _MAX_SHOWN
    return [*lines, f"{field}: {more} more keywords are ignored"] if more > 0 else lines


def _response_format(value: Any, field: str) -> OutputFormat:
    """Return the output format of an object with a type."""
    try:
        given = msgspec.convert(value, ResponseFormat)
    except msgspec.ValidationError as error:
        raise RequestError(type_error(error, inside=field)) from error
    allowed = _FIELDS_OF_TYPES.get(given.type)
    if allowed is None:
        raise RequestError(f"{field}.type must be one of {', '.join(_FIELDS_OF_TYPES)}")
    values = {name: value for name, value in msgspec.structs.asdict(given).items()
              if name != "type" and value is not None}  # fmt: skip
    for name in values:
        require(name in allowed, f"{field}.{name} is not supported with type {given.type}")
    require(len(values) <= 1, f"{field}: json_schema and schema: at most one can be given")
    if given.type == "text":
        return None
    if given.type == "json_object" and given.schema is None:
        return "json"
    if "schema" in allowed:
        schema = given.schema if given.json_schema is None else given.json_schema.schema
        require(schema is not None, f"{field}: {given.type} needs a schema")
        return _unwrapped(schema)
    require(any(values.values()), f"{field}.{given.type} is {'empty' if values else 'missing'}")
    if given.grammar is not None:
        return _grammar(given.grammar, field)
    return values


def _format(value: Any, field: str) -> OutputFormat:
    """Return a format as `grammar_of` takes it, or OpenAI's object for one."""
    match value:
        case {"type": "text" | "json_object" | "json_schema"}:
            return _response_format(value, field)
        case str() if value.lstrip().startswith("{"):
            return _schema(value, field)
    return _unwrapped(value)


def _unwrapped(schema: Any) -> OutputFormat:
    """Return a schema, which may be in OpenAI's object for it."""
    match schema:
        case {"schema": dict() | bool() as inner, **rest} if rest.keys() <= _WRAPPER:
            return inner
    wanted: OutputFormat = schema
    return wanted


def _check(wanted: OutputFormat, field: str) -> tuple[str, ...]:
    """Return what of a format is ignored."""
    try:
        grammar = grammar_of(wanted)
    except GrammarError as error:
        raise error.at(field) from error
    return grammar.ignored if grammar else ()


def _schema(value: Any, field: str) -> OutputFormat:
    """Return a JSON schema, given as such or as a text."""
    if isinstance(value, str):
        try:
            value = msgspec.json.decode(value)
        except (msgspec.DecodeError, RecursionError) as error:
            raise RequestError(f"{field} is not valid JSON: {error}") from error
    if not isinstance(value, dict | bool):
        raise RequestError(f"{field} must be a JSON schema")
    return _format(value, field)


def _grammar(text: Any, _: str) -> OutputFormat:
    """Return a grammar; GBNF has `::=` in its rules, Lark `:`."""
    return {"gbnf" if _GBNF_RULE.search(text) else "lark": text}


def _structured_outputs(given: dict[str, Any], field: str) -> OutputFormat:
    """Return the format in vLLM's object."""
    values = {name: value for name, value in given.items() if value not in (None, False)}
    for name in _NEVER:
        require(name not in values, f"{field}.{name} is not supported")
    values = {name: value for name, value in values.items() if name not in _WITHOUT_EFFECT}
    known = (*_STRUCTURED_OUTPUTS, "json_object")
    [name, value], *more = [*values.items()] or [("", None)]
    if more or name not in known:
        raise RequestError(f"{field} must have one of {', '.join(known)}")
    if name == "json_object":
        return "json"
    field, kind = f"{field}.{name}", _STRUCTURED_OUTPUTS[name]
    require(value != "", f"{field} is empty")
    try:
        return _READ[f"guided_{name}"](msgspec.convert(value, kind), field)
    except msgspec.ValidationError as error:
        raise RequestError(type_error(error, inside=field)) from error


def _refuse(_: Any, field: str) -> OutputFormat:
    raise RequestError(f"{field} is not supported")


def _as(kind: str) -> Callable[[Any, str], OutputFormat]:
    return lambda value, _: {kind: value}


# What reads each field of FormattedBody.
_READ: Mapping[str, Callable[[Any, str], OutputFormat]] = {
    "format": _format,
    "response_format": _response_format,
    "text": _response_format,
    "output_config": _response_format,
    "output_format": _response_format,
    "json_schema": _schema,
    "grammar": _grammar,
    "ebnf": _grammar,
    "regex": _as("regex"),
    "guided_json": _schema,
    "guided_regex": _as("regex"),
    "guided_choice": _as("choices"),
    "guided_grammar": _grammar,
    "structured_outputs": _structured_outputs,
    "guided_whitespace_pattern": _refuse,
    "structural_tag": _refuse,
}
_values = attrgetter(*_READ)
