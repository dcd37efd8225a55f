"""JSON schemas, checked before they are compiled.

A schema becomes one that llguidance enforces: keywords that it does not have are written as others
that mean the same, or are left out and named (`schema_keywords.py` says which). Schemas that
are wrong, and those that no answer can match, are refused with the place.
"""

from __future__ import annotations

import json
import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any, TypeGuard

from tampu.errors import GrammarError
from tampu.sampling.schema_keywords import KEPT, KEYWORDS, REWRITTEN, VALUES, Holds, implied_types
from tampu.sampling.schema_properties import BRANCHES, Node
from tampu.sampling.schema_references import Document, under

MAX_BYTES = 256 * 1024
MAX_DEPTH = 64

_TYPES = frozenset({"null", "boolean", "object", "array", "number", "integer", "string"})
_SPELLINGS = _TYPES | {name.upper() for name in _TYPES}
_COUNTS = frozenset(
    ("minLength", "maxLength", "minItems", "maxItems", "minProperties", "maxProperties")
)
_MAX_PLACES = 50_000  # those that several references name are counted once
_MAX_COUNT = 2**31  # of characters, items or properties: no answer is longer
_WANTED: dict[object, str] = {
    Mapping: "an object", (str,): "a text", (list, tuple): "a list", (int, float, str): "a count"
}  # fmt: skip
_STATED = frozenset({"type", "enum", "const"})  # they say which values are meant


@dataclass(frozen=True, slots=True)
class CheckedSchema:
    """A schema that is enforced as it is.

    Attributes:
        schema: without keywords that have no effect; its references are to its `$defs`.
        ignored: what the original had more: places with keywords and reasons.
    """

    schema: dict[str, Any]
    ignored: tuple[str, ...] = ()


def checked_schema(schema: object, *, is_enforced: bool = True) -> CheckedSchema:
    """Return a schema without keywords that have no effect.

    References to other documents are an error only where the schema `is_enforced`.

    Raises:
        GrammarError: naming the place, as a JSON pointer, and what is wrong there.
    """
    _check_shape(schema)
    if schema is True:
        return CheckedSchema({})
    if not isinstance(schema, Mapping):
        raise fault("", "it must be an object" if schema is not False else "it allows nothing")
    try:
        size = len(json.dumps(schema, ensure_ascii=False).encode("utf-8", "surrogatepass"))
    except ValueError as error:  # a number of more digits than Python writes
        raise fault("", str(error)) from None
    if size > MAX_BYTES:
        raise fault("", f"it has {size} bytes; at most {MAX_BYTES} are allowed")
    return _Checker(Document(schema), is_enforced=is_enforced).checked()


def fault(pointer: str, reason: str) -> GrammarError:
    """Return the error for what is wrong at a place of a schema."""
    return GrammarError(f"schema: {pointer or '/'}: {reason}")


class _Checker:
    """Checks the places of one document."""

    def __init__(self, document: Document, *, is_enforced: bool) -> None:
        self._document = document
        self._is_enforced = is_enforced
        self._ignored: dict[str, None] = {}
        self._names: dict[str, str] = {}  # of definitions, by the places that they are copied from
        self._waiting: list[tuple[str, dict[Any, Any] | list[Any], Any]] = []

    def checked(self) -> CheckedSchema:
        """Return the document's schema."""
        holder: dict[str, Any] = {"": self._document.root}
        self._definitions: dict[str, Any] = {}
        self._waiting = [("", holder, "")]
        count = 0
        while self._waiting:
            count += 1
            if count > _MAX_PLACES:
                raise fault("", "it is too complex, with what it refers to")
            pointer, within, key = self._waiting.pop()
            within[key] = self._place(pointer, within[key])
        root: Any = holder[""]
        if root is False:
            raise fault("", "it allows nothing")
        found = {} if root is True else root
        if self._definitions:
            found["$defs"] = self._definitions
        return CheckedSchema(found, tuple(self._ignored))

    def _place(self, pointer: str, given: Any) -> dict[str, Any] | bool:
        """Return what is at a place; the places inside it wait to be checked."""
        if isinstance(given, bool):
            return given
        if not isinstance(given, Mapping):
            raise fault(pointer, "a schema must be an object, true or false")
        if given.keys() == {"not"} and given["not"] in ({}, True):
            return False
        stated = {key: value for key, value in given.items() if value is not None or key == "const"}
        node = Node(pointer, stated, self._document)
        _check_types(node)
        _check_values(node)
        _read_counts(node)
        for keyword, rewrite in REWRITTEN:
            if keyword in node.schema and (reason := rewrite(node)):
                self._ignored[f"schema: {under(pointer, keyword)}: ignored, {reason}"] = None
        _order_properties(node)
        node.schema = {key: value for key, value in node.schema.items() if key in KEPT}
        if "$ref" in node.schema:
            self._resolve(node)
        if not node.schema.keys() & _STATED:
            _add_types(node, implied_types(given))
        if given.get("nullable") is True:
            _allow_null(node)
        if self._is_enforced:
            _check_bounds(node)
        self._waiting += reversed([*_subschemas(node)])  # the first is next
        return node.schema

    def _resolve(self, node: Node) -> None:
        """Let a reference name a definition, a copy of what it refers to."""
        reference = node.schema["$ref"]
        where = under(node.pointer, "$ref")
        target = self._document.pointer_of(reference) if isinstance(reference, str) else None
        if target is None:
            if isinstance(reference, str) and reference.startswith("#"):
                raise fault(where, f"there is nothing at {reference!r:.200}")
            if self._is_enforced:
                raise fault(where, "only references within the schema are supported")
            del node.schema["$ref"]
        elif target == "":
            node.schema["$ref"] = "#"
        else:
            node.schema["$ref"] = f"#/$defs/{self._definition(target)}"

    def _definition(self, target: str) -> str:
        """Return the name of the definition of a place, as a part of a pointer."""
        if target not in self._names:
            last = target.rpartition("/")[2]
            taken = {*self._names.values()}
            free = (f"{last}{number or ''}" for number in range(len(taken) + 1))
            self._names[target] = next(name for name in free if name not in taken)
            key = self._names[target].replace("~1", "/").replace("~0", "~")
            self._definitions[key] = self._document.at(target)
            self._waiting.append((target, self._definitions, key))
        return self._names[target]


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


def _check_types(node: Node) -> None:
    """Check the types; Google's schemas have them in upper case."""
    given = node.schema.get("type")
    if given is None:
        return
    names = given if isinstance(given, list | tuple) else [given]
    for name in names:
        if not isinstance(name, str) or name not in _SPELLINGS:
            raise fault(under(node.pointer, "type"), f"{name!r:.50} is not a JSON type")
    lower = [*dict.fromkeys(name.lower() for name in names)]
    node.schema["type"] = lower if given is names else lower[0]


def _check_values(node: Node) -> None:
    """Check that the values of keywords are of the right kind."""
    for keyword in VALUES.keys() & node.schema.keys():
        value, kinds = node.schema[keyword], VALUES[keyword]
        is_wrong = isinstance(value, bool) and not keyword.startswith("exclusive")
        if is_wrong or not isinstance(value, kinds):
            wanted = _WANTED.get(kinds, "a number")
            raise fault(under(node.pointer, keyword), f"it must be {wanted}")
    for name in node.schema.get("required", ()):
        if not isinstance(name, str):
            raise fault(under(node.pointer, "required"), "it must be a list of names")


def _read_counts(node: Node) -> None:
    """Write counts as integers: JSON Schema has 2.0 too, and Google's schemas have "2"."""
    for keyword in _COUNTS & node.schema.keys():
        given = node.schema[keyword]
        is_text = isinstance(given, str) and given.isascii() and given.isdigit()
        count = int(given) if is_text and len(given) < 19 else given
        if isinstance(count, str) or count < 0 or count % 1:
            raise fault(under(node.pointer, keyword), "it must be a count, 0 or more")
        count = int(count)
        if keyword.startswith("max") and count > _MAX_COUNT:
            del node.schema[keyword]
        else:
            node.schema[keyword] = count


def _order_properties(node: Node) -> None:
    """Put properties in the order that a schema of Google's wants."""
    order, properties = node.schema.get("propertyOrdering"), node.schema.get("properties")
    if isinstance(order, list | tuple) and isinstance(properties, Mapping):
        first = {name: properties[name] for name in order if name in properties}
        node.schema["properties"] = first | dict(properties)


def _add_types(node: Node, implied: list[str]) -> None:
    """Add the types that the keywords imply, if nothing else says which values are meant."""
    schema = node.schema
    if not implied:
        return
    if not BRANCHES & schema.keys():
        schema["type"] = implied if len(implied) > 1 else implied[0]
    elif "properties" in schema and "$ref" not in schema:
        schema["type"] = "object"


def _allow_null(node: Node) -> None:
    """Allow null, as OpenAPI's `nullable` does."""
    schema = node.schema
    if (BRANCHES | {"const"}) & schema.keys():
        node.schema = {"anyOf": [schema, {"type": "null"}]}
        return
    types = schema.get("type")
    if types is not None:
        names = types if isinstance(types, list) else [types]
        schema["type"] = [*dict.fromkeys([*names, "null"])]
    values = schema.get("enum")
    if isinstance(values, list | tuple) and None not in values:
        schema["enum"] = [*values, None]


def _check_bounds(node: Node) -> None:
    """Refuse bounds that llguidance 1.9 gets wrong: it allows an excluded whole number.

    It does so if the other bound is less than 1 away: 0 for more than 0 and at most 0.25.
    """
    others = {
        "exclusiveMinimum": ("maximum", "exclusiveMaximum"),
        "exclusiveMaximum": ("minimum", "exclusiveMinimum"),
    }
    for keyword, names in others.items():
        bound = node.schema.get(keyword)
        if node.schema.get("type") == "integer" or not _is_number(bound) or bound % 1:
            continue
        for other in (node.schema.get(name) for name in names):
            if _is_number(other) and abs(other - bound) < 1:
                where = under(node.pointer, keyword)
                raise fault(where, "a whole bound so near to the other one is not supported")


def _is_number(value: object) -> TypeGuard[int | float]:
    return isinstance(value, int | float) and not isinstance(value, bool)


def _subschemas(node: Node) -> Iterator[tuple[str, Any, Any]]:
    """Yield the place of each schema in this one, with the copy that holds it and its key there."""
    schema = node.schema
    for keyword, value in [*schema.items()]:
        holds = KEYWORDS[keyword].holds
        if holds is Holds.NAMED and isinstance(value, Mapping):
            schema[keyword] = named = dict(value)
            for name in named:
                yield under(node.pointer, keyword, name), named, name
        elif holds is Holds.SCHEMAS and isinstance(value, list | tuple):
            schema[keyword] = listed = [*value]
            for index in range(len(listed)):
                yield under(node.pointer, keyword, str(index)), listed, index
        elif holds is Holds.SCHEMA:
            yield under(node.pointer, keyword), schema, keyword
