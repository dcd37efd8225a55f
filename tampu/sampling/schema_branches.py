"""Checks whether two schemas can share a value; if none do, `oneOf` equals `anyOf`."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any

from tampu.sampling.schema_references import Document

_TYPES = frozenset({"null", "boolean", "object", "array", "number", "string"})
_DEPTH = 8  # of properties and references that are looked at
_STEPS = 20_000


def are_disjoint(branches: Sequence[Any], document: Document) -> bool:
    """Return whether it is certain that no value matches two of these schemas."""
    comparison = _Comparison(document)
    seen = [resolved(branch, document) for branch in branches]
    return all(
        comparison.excludes(one, other, _DEPTH)
        for index, one in enumerate(seen)
        for other in seen[index + 1 :]
    )


def values_of(schema: Any, document: Document) -> list[Any] | None:
    """Return the only values that a schema allows; None: it does not list them."""
    schema = resolved(schema, document)
    if not isinstance(schema, Mapping):
        return None
    if "const" in schema:
        return [schema["const"]]
    values = schema.get("enum")
    return [*values] if isinstance(values, list | tuple) else None


class _Comparison:
    """Compares schemas of one document, up to a number of steps: after them nothing is certain."""

    def __init__(self, document: Document) -> None:
        self._document = document
        self._steps = _STEPS

    def excludes(self, one: Any, other: Any, depth: int) -> bool:
        """Return whether it is certain that two schemas have no value in common."""
        document = self._document
        self._steps -= 1
        one, other = resolved(one, document), resolved(other, document)
        if one is False or other is False:
            return True
        is_over = depth == 0 or self._steps < 0
        if is_over or not isinstance(one, Mapping) or not isinstance(other, Mapping):
            return False
        for first, second in ((one, other), (other, one)):
            for keyword in ("anyOf", "oneOf"):
                branches = first.get(keyword)
                if isinstance(branches, list | tuple) and branches:
                    return all(self.excludes(each, second, depth - 1) for each in branches)
        types, others = _types(one, document), _types(other, document)
        if not types & others:
            return True
        values, other_values = values_of(one, document), values_of(other, document)
        if values is not None and other_values is not None:
            return not {*map(_key, values)} & {*map(_key, other_values)}
        return types == others == {"object"} and any(
            self.excludes(_property(one, name), _property(other, name), depth - 1)
            for name in dict.fromkeys((*_required(one), *_required(other)))
        )


def resolved(schema: Any, document: Document) -> Any:
    """Return a schema, or that which it refers to if it says nothing itself."""
    for _ in range(_DEPTH):
        if not isinstance(schema, Mapping):
            return schema
        inner = schema.get("allOf")
        if isinstance(inner, list | tuple) and len(inner) == 1 and "properties" not in schema:
            schema = inner[0]
            continue
        reference = schema.get("$ref")
        pointer = document.pointer_of(reference) if isinstance(reference, str) else None
        if pointer is None:
            return schema
        schema = document.at(pointer)
    return schema


def _types(schema: Mapping[str, Any], document: Document) -> set[str]:
    """Return the types of the values that a schema may allow; integers are numbers."""
    values = values_of(schema, document)
    if values is not None:
        return {_type_of(value) for value in values}
    named = schema.get("type")
    names = [named] if isinstance(named, str) else named
    if not isinstance(names, list | tuple) or not names:
        return {"object"} if "properties" in schema else {*_TYPES}
    lower = {str(name).lower() for name in names}
    return {"number" if name == "integer" else name for name in lower}


def _type_of(value: object) -> str:
    match value:
        case None:
            return "null"
        case bool():
            return "boolean"
        case int() | float():
            return "number"
        case str():
            return "string"
        case Mapping():
            return "object"
    return "array"


def _property(schema: Mapping[str, Any], name: str) -> Any:
    properties = schema.get("properties")
    if isinstance(properties, Mapping) and name in properties:
        return properties[name]
    return True if schema.get("patternProperties") else schema.get("additionalProperties", True)


def _required(schema: Mapping[str, Any]) -> list[str]:
    names = schema.get("required")
    return [name for name in names if isinstance(name, str)] if isinstance(names, list) else []


def _key(value: Any) -> str:
    """Return a text that is equal for equal JSON values: 1 and 1.0 are."""
    if isinstance(value, float) and value.is_integer():
        value = int(value)
    return json.dumps(value, sort_keys=True)
