"""JSON schemas, checked before they are compiled.

Every keyword of a schema is enforced, or the schema is refused with the place and the keyword:
llguidance itself names unsupported keywords; this adds their places, the limits, and the cases in
which an answer would not be valid.
"""

from __future__ import annotations

import json
import math
from collections.abc import Iterator, Mapping
from typing import Any, TypeGuard

from tampu.errors import GrammarError

MAX_BYTES = 256 * 1024
MAX_DEPTH = 64

_MAPS = ("properties", "patternProperties", "$defs", "definitions")
_LISTS = ("anyOf", "allOf", "oneOf", "prefixItems")
_ONES = ("items", "additionalProperties", "additionalItems")
_UNSUPPORTED = frozenset({
    "uniqueItems", "contains", "minContains", "maxContains", "not", "if", "then", "else",
    "propertyNames", "dependentRequired", "dependentSchemas", "dependencies",
    "unevaluatedProperties", "unevaluatedItems", "$dynamicRef", "$recursiveRef", "discriminator",
})  # fmt: skip
_TYPES = frozenset({"null", "boolean", "object", "array", "number", "integer", "string"})
_NO_CONDITION = {"uniqueItems": False, "unevaluatedProperties": True, "unevaluatedItems": True}


def checked_schema(schema: object, *, is_enforced: bool = True) -> dict[str, Any]:
    """Return a schema without keywords that have no effect.

    Keywords that are not supported are an error only where the schema `is_enforced`.

    Raises:
        GrammarError: naming the place, as a JSON pointer, and what is wrong or not supported there.
    """
    _check_shape(schema)
    if schema is True:
        return {}
    if not isinstance(schema, Mapping):
        raise fault("", "it must be an object" if schema is not False else "it allows nothing")
    try:
        size = len(json.dumps(schema, ensure_ascii=False).encode("utf-8", "surrogatepass"))
    except ValueError as error:  # a number of more digits than Python writes
        raise fault("", str(error)) from None
    if size > MAX_BYTES:
        raise fault("", f"it has {size} bytes; at most {MAX_BYTES} are allowed")
    checked = {key: schema[key] for key in schema if key != "x-guidance"}
    waiting: list[tuple[str, dict[str, Any]]] = [("", checked)]
    while waiting:
        pointer, one = waiting.pop()
        _check_types(pointer, one)
        if is_enforced:
            _check_keywords(pointer, one)
        _check_reference(pointer, one, schema, is_enforced=is_enforced)
        for where, holder, key in _subschemas(pointer, one):
            inner = holder[key]
            if isinstance(inner, Mapping):
                holder[key] = copy = dict(inner)
                waiting.append((where, copy))
            elif not isinstance(inner, bool):
                raise fault(where, "a schema must be an object, true or false")
    return checked


def fault(pointer: str, reason: str) -> GrammarError:
    """Return the error for what is wrong at a place of a schema."""
    return GrammarError(f"schema: {pointer or '/'}: {reason}")


def _check_shape(schema: object) -> None:
    """Check the depth and that it is plain JSON, without recursion."""
    waiting = [(schema, 1)]
    while waiting:
        value, depth = waiting.pop()
        if depth > MAX_DEPTH:
            raise fault("", f"it is nested more than {MAX_DEPTH} deep")
        if isinstance(value, Mapping):
            if not all(isinstance(key, str) for key in value):
                raise fault("", "its keys must be strings")
            waiting += [(item, depth + 1) for item in value.values()]
        elif isinstance(value, list | tuple):
            waiting += [(item, depth + 1) for item in value]
        elif isinstance(value, float) and not math.isfinite(value):
            raise fault("", f"it holds the number {value}, which JSON does not have")
        elif not isinstance(value, str | int | float | None):
            raise fault("", f"it holds a {type(value).__name__}, which JSON does not have")


def _check_types(pointer: str, schema: Mapping[str, Any]) -> None:
    types = schema.get("type", ())
    for name in types if isinstance(types, list | tuple) else (types,):
        if not isinstance(name, str) or name not in _TYPES:
            raise fault(_under(pointer, "type"), f"{name!r:.50} is not a JSON type")


def _check_keywords(pointer: str, schema: dict[str, Any]) -> None:
    for keyword in _NO_CONDITION.keys() & schema.keys():
        if schema[keyword] is _NO_CONDITION[keyword]:
            del schema[keyword]
    if found := sorted(_UNSUPPORTED & schema.keys()):
        raise fault(_under(pointer, found[0]), "this keyword is not supported")
    _check_bounds(pointer, schema)
    required = schema.get("required", ())
    count = len(required) if isinstance(required, list | tuple) else 0
    least = schema.get("minProperties", 0)
    if isinstance(least, int) and least > max(count, 1):
        where = _under(pointer, "minProperties")
        raise fault(where, "it is supported up to the number of required properties")


def _check_reference(
    pointer: str, schema: Mapping[str, Any], root: Mapping[str, Any], *, is_enforced: bool
) -> None:
    reference = schema.get("$ref", "#")
    where = _under(pointer, "$ref")
    if not isinstance(reference, str) or not reference.startswith("#"):
        if not is_enforced:
            return
        raise fault(where, "only references within the schema are supported")
    found: Any = root
    for name in reference.split("/")[1:]:
        name = name.replace("~1", "/").replace("~0", "~")
        if isinstance(found, Mapping) and name in found:
            found = found[name]
        elif isinstance(found, list | tuple) and name.isdecimal() and int(name) < len(found):
            found = found[int(name)]
        else:
            raise fault(where, f"there is nothing at {reference!r:.200}")


def _check_bounds(pointer: str, schema: Mapping[str, Any]) -> None:
    """Refuse bounds that llguidance 1.9 gets wrong: it allows an excluded whole number.

    It does so if the other bound is less than 1 away: 0 for more than 0 and at most 0.25.
    """
    others = {
        "exclusiveMinimum": ("maximum", "exclusiveMaximum"),
        "exclusiveMaximum": ("minimum", "exclusiveMinimum"),
    }
    for keyword, names in others.items():
        bound = schema.get(keyword)
        if schema.get("type") == "integer" or not _is_number(bound) or bound % 1:
            continue
        for other in (schema.get(name) for name in names):
            if _is_number(other) and abs(other - bound) < 1:
                where = _under(pointer, keyword)
                raise fault(where, "a whole bound so near to the other one is not supported")


def _is_number(value: object) -> TypeGuard[int | float]:
    return isinstance(value, int | float) and not isinstance(value, bool)


def _subschemas(pointer: str, schema: dict[str, Any]) -> Iterator[tuple[str, Any, Any]]:
    """Yield the place of each schema in this one, with the copy that holds it and its key there."""
    for keyword in _MAPS:
        if isinstance(schema.get(keyword), Mapping):
            schema[keyword] = dict(schema[keyword])
            for name in schema[keyword]:
                yield _under(pointer, keyword, name), schema[keyword], name
    for keyword in (*_LISTS, *_ONES):
        if isinstance(schema.get(keyword), list | tuple):
            schema[keyword] = list(schema[keyword])
            for index in range(len(schema[keyword])):
                yield _under(pointer, keyword, str(index)), schema[keyword], index
        elif keyword in _ONES and keyword in schema:
            yield _under(pointer, keyword), schema, keyword


def _under(pointer: str, *names: str) -> str:
    escaped = (name.replace("~", "~0").replace("/", "~1") for name in names)
    return "/".join([pointer, *escaped])
