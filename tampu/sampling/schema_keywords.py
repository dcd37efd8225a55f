"""The table `KEYWORDS`: how each keyword of a JSON schema is handled.

A keyword is enforced, because llguidance compiles it or because others that it compiles say the
same; or it is ignored with a warning; or it is an annotation, which has no condition. Keywords
outside the table are annotations, as JSON Schema has it.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from enum import Enum, auto
from itertools import permutations
from typing import Any, TypeAlias

from tampu.sampling import schema_properties as of_objects
from tampu.sampling.schema_branches import are_disjoint, values_of
from tampu.sampling.schema_formats import conditions_of, is_of_numbers
from tampu.sampling.schema_patterns import without_assertions
from tampu.sampling.schema_properties import NOT_ENFORCED, Node

MAX_UNIQUE = 4  # values of which all orders are written out

Rewrite: TypeAlias = Callable[[Node], str]
"""Changes a schema so that it says what a keyword means; returns what is ignored, or ""."""


class Holds(Enum):
    """What the value of a keyword is."""

    VALUE = auto()
    SCHEMA = auto()
    SCHEMAS = auto()  # in a list
    NAMED = auto()  # in an object, by names


@dataclass(frozen=True, slots=True)
class Keyword:
    """What is done with a keyword.

    Attributes:
        holds: what its value is.
        type: of the values that it is about, which a schema without a type gets; "": of any.
        rewrite: what is done before it is compiled; None: nothing.
        values: what its value may be, by Python's types; of one that holds schemas `holds` says it.
        is_kept: whether it is compiled.
    """

    holds: Holds = Holds.VALUE
    type: str = ""
    rewrite: Rewrite | None = None
    values: tuple[Any, ...] = ()
    is_kept: bool = True


def _ignored(node: Node, keyword: str, harmless: Any = None) -> str:
    return "" if node.schema[keyword] == harmless else NOT_ENFORCED


def _ignore(keyword: str, harmless: Any = None, kind: str = "") -> Keyword:
    """Return a keyword that cannot be enforced; its value `harmless` has no condition."""
    return Keyword(type=kind, rewrite=lambda node: _ignored(node, keyword, harmless), is_kept=False)


def _one_of(node: Node) -> str:
    if not are_disjoint(node.schema["oneOf"], node.document):
        return "its branches may overlap, so it is taken as anyOf"
    return ""


def _not(node: Node) -> str:
    if node.schema["not"] in ({}, True):
        node.replace({"enum": []})
        return ""
    return _ignored(node, "not", harmless=False)


def _conditional(node: Node) -> str:
    """Handle `if`, with `then` and `else`."""
    return NOT_ENFORCED if {"then", "else"} & node.schema.keys() else ""


def _items(node: Node) -> str:
    """Write tuples as drafts from 2020-12 do."""
    items, more = node.schema["items"], node.schema.pop("additionalItems", None)
    if isinstance(items, list | tuple):
        rest = {} if more is None else {"items": more}
        node.schema = {
            ("prefixItems" if key == "items" else key): value for key, value in node.schema.items()
        } | rest
    return ""


def _unevaluated_items(node: Node) -> str:
    if node.schema["unevaluatedItems"] is True or "items" in node.schema:
        return ""
    if node.schema["unevaluatedItems"] is False and not node.has_branches:
        node.schema["items"] = False
        return ""
    return NOT_ENFORCED


def _unique_items(node: Node) -> str:
    """Write all lists of a few values without repetition out."""
    schema = node.schema
    if not schema["uniqueItems"] or schema.get("maxItems", 2) in (0, 1):
        return ""
    items = schema.get("items")
    if isinstance(items, Mapping) and items.get("type") == "boolean":
        items = {"enum": [False, True]}
    values = values_of(items, node.document)
    least, most = schema.get("minItems", 0), schema.get("maxItems", MAX_UNIQUE)
    if values is None or len(values) > MAX_UNIQUE or "prefixItems" in schema:
        return NOT_ENFORCED
    lists = [
        list(chosen)
        for count in range(max(least, 0), min(most, len(values)) + 1)
        for chosen in permutations(values, count)
    ]
    for name in ("items", "minItems", "maxItems"):
        schema.pop(name, None)
    schema["allOf"] = [*schema.get("allOf", ()), {"enum": lists}]
    return ""


def _format(node: Node) -> str:
    name = node.schema["format"]
    conditions = conditions_of(name)
    if conditions is None:
        del node.schema["format"]
        return f"the format {name[:50]!r} is not known"
    del node.schema["format"]
    both = conditions.keys() & node.schema.keys()
    if both:
        node.schema["allOf"] = [*node.schema.get("allOf", ()), conditions]
    else:
        node.schema.update(conditions)
    return ""


def _pattern(node: Node) -> str:
    pattern = node.schema["pattern"]
    weaker = without_assertions(pattern)
    if weaker == pattern:
        return ""
    if weaker is None:
        del node.schema["pattern"]
        return "references to groups cannot be enforced, so the pattern is left out"
    node.schema["pattern"] = weaker
    return r"look-arounds and \b cannot be enforced, so they are left out"


def _draft4_bound(keyword: str, other: str) -> Rewrite:
    """Return what writes `exclusiveMinimum: true` beside `minimum` as drafts from 6 do."""

    def rewrite(node: Node) -> str:
        is_exclusive = node.schema[keyword]
        if isinstance(is_exclusive, bool):
            del node.schema[keyword]
            if is_exclusive and other in node.schema:
                node.schema[keyword] = node.schema.pop(other)
        return ""

    return rewrite


def _reference(keyword: str) -> Keyword:
    """Return a reference that is resolved like `$ref`, since no other schema is around this one."""

    def rewrite(node: Node) -> str:
        node.schema.setdefault("$ref", node.schema[keyword])
        return ""

    return Keyword(rewrite=rewrite, is_kept=False)


_NOTHING = Keyword(is_kept=False)  # beside the keyword that it belongs to

_COUNT = (int, float, str)  # JSON Schema has 2.0, and Google's schemas "2"
_NUMBER = (int, float)
_LIST = (list, tuple)

KEYWORDS: Mapping[str, Keyword] = {
    # Rewritten first, in this order.
    "not": Keyword(rewrite=_not, is_kept=False),
    "$dynamicRef": _reference("$dynamicRef"),
    "$recursiveRef": _reference("$recursiveRef"),
    "if": Keyword(rewrite=_conditional, is_kept=False),
    "then": _NOTHING,
    "else": _NOTHING,
    "items": Keyword(Holds.SCHEMA, "array", _items),
    "additionalItems": _NOTHING,
    "unevaluatedItems": Keyword(type="array", rewrite=_unevaluated_items, is_kept=False),
    "uniqueItems": Keyword(type="array", rewrite=_unique_items, is_kept=False),
    "propertyNames": Keyword(type="object", rewrite=of_objects.property_names, is_kept=False),
    "unevaluatedProperties": Keyword(type="object", rewrite=of_objects.unevaluated, is_kept=False),
    "exclusiveMinimum": Keyword(
        type="number", rewrite=_draft4_bound("exclusiveMinimum", "minimum"), values=_NUMBER
    ),
    "exclusiveMaximum": Keyword(
        type="number", rewrite=_draft4_bound("exclusiveMaximum", "maximum"), values=_NUMBER
    ),
    # Enforced by llguidance.
    "type": Keyword(),
    "enum": Keyword(values=_LIST),
    "const": Keyword(),
    "$ref": Keyword(values=(str,)),
    "anyOf": Keyword(Holds.SCHEMAS),
    "allOf": Keyword(Holds.SCHEMAS),
    "oneOf": Keyword(Holds.SCHEMAS, rewrite=_one_of),
    "prefixItems": Keyword(Holds.SCHEMAS, "array"),
    "minItems": Keyword(type="array", values=_COUNT),
    "maxItems": Keyword(type="array", values=_COUNT),
    "properties": Keyword(Holds.NAMED, "object"),
    "patternProperties": Keyword(Holds.NAMED, "object"),
    "additionalProperties": Keyword(Holds.SCHEMA, "object"),
    "required": Keyword(type="object", values=_LIST),
    "maxProperties": Keyword(type="object", rewrite=of_objects.max_properties, values=_COUNT),
    "minProperties": Keyword(type="object", rewrite=of_objects.min_properties, values=_COUNT),
    "minLength": Keyword(type="string", values=_COUNT),
    "maxLength": Keyword(type="string", values=_COUNT),
    "pattern": Keyword(type="string", rewrite=_pattern, values=(str,)),
    "minimum": Keyword(type="number", values=_NUMBER),
    "maximum": Keyword(type="number", values=_NUMBER),
    "multipleOf": Keyword(type="number", values=_NUMBER),
    "format": Keyword(type="string", rewrite=_format, values=(str,)),
    # Ignored, with a warning.
    "contains": _ignore("contains", kind="array"),
    "minContains": _NOTHING,
    "maxContains": _NOTHING,
    "dependentRequired": _ignore("dependentRequired", {}, "object"),
    "dependentSchemas": _ignore("dependentSchemas", {}, "object"),
    "dependencies": _ignore("dependencies", {}, "object"),
}


REWRITTEN = tuple((name, row.rewrite) for name, row in KEYWORDS.items() if row.rewrite)
"""The keywords that are changed before they are compiled, with the functions for it, in order."""
KEPT = frozenset(name for name, row in KEYWORDS.items() if row.is_kept)
_TYPES = {name: row.type for name, row in KEYWORDS.items() if row.type}


VALUES = {
    name: row.values or (Mapping if row.holds is Holds.NAMED else _LIST)
    for name, row in KEYWORDS.items()
    if row.values or row.holds in (Holds.NAMED, Holds.SCHEMAS)
}


def implied_types(schema: Mapping[str, Any]) -> list[str]:
    """Return the types of the values that the keywords of a schema are about."""
    found = {_TYPES[keyword] for keyword in schema if keyword in _TYPES}
    name = schema.get("format")
    if isinstance(name, str) and is_of_numbers(name):
        found = found - {"string"} | {"number"}
    return sorted(found)
