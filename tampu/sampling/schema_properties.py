"""Rewrites the keywords of objects in a JSON schema that llguidance does not have."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from tampu.sampling.schema_branches import values_of
from tampu.sampling.schema_formats import conditions_of
from tampu.sampling.schema_references import Document

NOT_ENFORCED = "it cannot be enforced"
BRANCHES = frozenset({"anyOf", "allOf", "oneOf", "$ref"})
_MAX_NAMES = 256


@dataclass(slots=True)
class Node:
    """A place of a schema.

    Attributes:
        pointer: where it is in the document.
        schema: a copy of what is there, which is changed.
        document: around it.
    """

    pointer: str
    schema: dict[str, Any]
    document: Document = field(repr=False)

    @property
    def has_branches(self) -> bool:
        """Whether other schemas apply to the same value."""
        return bool(BRANCHES & self.schema.keys())

    def replace(self, schema: dict[str, Any]) -> None:
        """Put another schema in its place."""
        self.schema = schema


def property_names(node: Node) -> str:
    """Write a few names as properties, and a pattern of names as that of properties."""
    schema, names = node.schema, node.schema["propertyNames"]
    if names in ({}, True) or (isinstance(names, Mapping) and names.keys() <= _OF_ANY_NAME):
        return ""
    if "patternProperties" in schema:
        return NOT_ENFORCED
    rest = schema.get("additionalProperties", True)
    properties = schema.get("properties") or {}
    values = values_of(names, node.document)
    if values is not None and len(values) <= _MAX_NAMES and not node.has_branches:
        allowed = [value for value in values if isinstance(value, str)]
        schema["properties"] = {name: properties.get(name, rest) for name in allowed}
        schema["additionalProperties"] = False
        return ""
    pattern = _pattern_of(names)
    if pattern is None or properties:
        return NOT_ENFORCED
    schema["patternProperties"] = {pattern: rest}
    schema["additionalProperties"] = False
    return ""


def _pattern_of(names: Any) -> str | None:
    """Return the pattern of all names that a schema allows; None: it is not that simple."""
    if not isinstance(names, Mapping):
        return None
    conditions = {key: value for key, value in names.items() if key not in _OF_ANY_NAME}
    match conditions:
        case {"pattern": str(pattern), **more} if not more:
            return pattern
        case {"format": str(name), **more} if not more:
            return (conditions_of(name) or {}).get("pattern")
        case {"minLength": int(least), **more} if more.keys() <= {"maxLength"}:
            return rf"^[\s\S]{{{least},{more.get('maxLength', '')}}}$"
        case {"maxLength": int(most), **more} if not more:
            return rf"^[\s\S]{{0,{most}}}$"
    return None


_OF_ANY_NAME = frozenset({"type", "title", "description", "$comment"})


def unevaluated(node: Node) -> str:
    """Write `unevaluatedProperties` as `additionalProperties` where both mean the same."""
    schema, wanted = node.schema, node.schema["unevaluatedProperties"]
    if wanted is True or "additionalProperties" in schema:
        return ""
    if not node.has_branches:
        schema["additionalProperties"] = wanted
        return ""
    named = _names_in_all(schema, node.document)
    if named is None:
        return NOT_ENFORCED
    properties = schema.pop("properties", {})
    schema["properties"] = dict.fromkeys(named, True) | dict(properties)
    schema["additionalProperties"] = wanted
    return ""


def min_properties(node: Node) -> str:
    """Leave only a number that can be counted: names that may be repeated cannot."""
    schema, least = node.schema, node.schema["minProperties"]
    left = least - len(_required(schema))
    if left == 1 and (not _optional(schema) or _is_closed(schema)):
        most = schema.get("maxProperties", least)
        if most == least or not _optional(schema):
            return ""
    del schema["minProperties"]
    return "it is enforced up to the number of required properties" if left > 0 else ""


def max_properties(node: Node) -> str:
    """Leave only a number that can be counted."""
    schema, most = node.schema, node.schema["maxProperties"]
    optional = _optional(schema)
    if not optional:
        return ""
    left = most - len(_required(schema))
    if _is_closed(schema) and left >= len(optional):
        del schema["maxProperties"]
        return ""
    if _is_closed(schema) and left == 1:
        return ""
    del schema["maxProperties"]
    return "beside optional properties it cannot be enforced"


def _is_closed(schema: Mapping[str, Any]) -> bool:
    return schema.get("additionalProperties") is False and "patternProperties" not in schema


def _required(schema: Mapping[str, Any]) -> set[str]:
    names = schema.get("required", ())
    return {str(name) for name in names} if isinstance(names, list | tuple) else set()


def _optional(schema: Mapping[str, Any]) -> list[str]:
    properties = schema.get("properties", {})
    needed = _required(schema)
    names = properties if isinstance(properties, Mapping) else ()
    return [name for name in names if name not in needed and properties[name] is not False]


def _names_in_all(schema: Mapping[str, Any], document: Document) -> list[str] | None:
    """Return the properties that the parts of an `allOf` name; None: that is not certain."""
    if schema.keys() & {"anyOf", "oneOf", "$ref"}:
        return None
    found: list[str] = []
    for part in schema.get("allOf", ()):
        reference = part.get("$ref") if isinstance(part, Mapping) else None
        pointer = document.pointer_of(reference) if isinstance(reference, str) else None
        target = part if pointer is None else document.at(pointer)
        if not isinstance(target, Mapping) or target.keys() & _MORE_NAMES:
            return None
        found += target.get("properties", {})
    return found


_MORE_NAMES = frozenset({
    "$ref", "anyOf", "oneOf", "allOf", "patternProperties", "additionalProperties", "if",
    "dependentSchemas",
})  # fmt: skip
