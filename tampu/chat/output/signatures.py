"""The types of tools' parameters, for formats whose arguments are written as bare text."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from tampu.chat.output.literals import CONSTANTS, exact_json
from tampu.sampling.schema_branches import resolved
from tampu.sampling.schema_keywords import implied_types
from tampu.sampling.schema_references import Document

_TYPES_OF = {str: "string", bool: "boolean", int: "integer", float: "number", type(None): "null"}


class Signatures:
    """The parameters of tools, each `{"type": "function", "function": {...}}`; false if none."""

    def __init__(self, tools: Sequence[Mapping[str, Any]] = ()) -> None:
        self._parameters: dict[str, Mapping[str, Any]] = {}
        for tool in tools:
            function = mapping_or_empty(tool.get("function", tool))
            schema = mapping_or_empty(function.get("parameters"))
            self._parameters[str(function.get("name"))] = parameters_of(schema)

    def __bool__(self) -> bool:
        return bool(self._parameters)

    def __contains__(self, name: str) -> bool:
        return name in self._parameters

    def value(self, function: str, parameter: str, text: str) -> Any:
        """Return the value of a bare text, of the type in its parameter's schema."""
        schema = mapping_or_empty(self._parameters.get(function, {}).get(parameter))
        types = types_of(schema)
        if not types or ("string" in types and not (text == "null" and "null" in types)):
            return text
        if text in CONSTANTS:
            return CONSTANTS[text]
        try:
            return exact_json(text)
        except ValueError:
            return text


def types_of(schema: Mapping[str, Any]) -> set[str]:
    """Return the JSON types that a schema names, alternatives included; none if it names none."""
    named = schema.get("type")
    types = {named} if isinstance(named, str) else set()
    if isinstance(named, Sequence) and not isinstance(named, str):
        types = {name for name in named if isinstance(name, str)}
    for key in ("anyOf", "oneOf"):
        for other in schema.get(key) or () if isinstance(schema.get(key), Sequence) else ():
            types |= types_of(mapping_or_empty(other))
    values = [schema["const"]] if "const" in schema else schema.get("enum")
    if not types and isinstance(values, Sequence):
        types = {_TYPES_OF.get(type(value), "object") for value in values}
    return types or {*implied_types(schema)}


def parameters_of(schema: Mapping[str, Any]) -> dict[str, dict[str, Any]]:
    """Return the schemas of an object's properties, each what it refers to if it is a reference."""
    document = Document(schema)
    return {
        str(name): {**mapping_or_empty(resolved(value, document))}
        for name, value in mapping_or_empty(schema.get("properties")).items()
    }


def mapping_or_empty(value: object) -> Mapping[str, Any]:
    """Return a mapping; an empty one for anything else."""
    return value if isinstance(value, Mapping) else {}
