"""Schemas with large integers as rules of Lark.

llguidance reads the numbers of a schema as doubles, which have no integers of 17 digits or more but
some. So the objects, lists and alternatives that lead to such a number are written as rules here,
and what does not lead to one as a JSON schema within them.
"""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any

from tampu.sampling.integer_ranges import range_pattern
from tampu.sampling.schema import fault
from tampu.sampling.schema_keywords import KEYWORDS
from tampu.sampling.schema_references import under

EXACT = 2**53  # doubles have all integers up to it
# White space as llguidance's for JSON, and without a choice.
SPACE_RULES = r"""json_space: JSON_SPACE?
JSON_SPACE: /\x20|\x0A{1,2}[\x20\x09]{0,20}/
json_comma: json_space "," json_space
json_colon: json_space ":" json_space"""
ONE_LINE_RULES = 'json_space: ""\njson_comma: ", "\njson_colon: ": "'
_NAME_RULE = r"""JSON_NAME: /"(\\(["\\\/bfnrt]|u00[01][0-9a-f])|[^"\\\x00-\x1f\x7f])*"/"""
_MAX_SIZE = 1 << 20  # of the rules, in characters
_MAX_DIGITS = 100  # of limits that are exact
_BOUNDS = ("minimum", "maximum", "exclusiveMinimum", "exclusiveMaximum")


def has_large_integers(value: Any) -> bool:
    """Return whether there is an integer in JSON that a double may not have."""
    if isinstance(value, Mapping):
        return any(map(has_large_integers, value.values()))
    if isinstance(value, list | tuple):
        return any(map(has_large_integers, value))
    if isinstance(value, float):
        return abs(value) > EXACT and math.isfinite(value)
    return isinstance(value, int) and abs(value) > EXACT


def exact_rules(schema: Mapping[str, Any], as_json: Callable[[Any], str]) -> str:
    """Return a grammar in Lark, from its rule `start` on, of JSON that matches a checked schema.

    Args:
        schema: with large integers.
        as_json: returns the Lark expression of a schema without any.

    Raises:
        GrammarError: for keywords that are not supported with large integers.
    """
    return _Writer(schema, as_json).written()


class _Writer:
    """Writes the rules of one schema."""

    def __init__(self, schema: Mapping[str, Any], as_json: Callable[[Any], str]) -> None:
        self._root = {key: value for key, value in schema.items() if key != "$defs"}
        self._definitions: Mapping[str, Any] = schema.get("$defs", {})
        self._as_json = as_json
        self._lines: list[str] = []
        self._rules: dict[str, str] = {}  # by the references to them
        self._size = 0
        self._large = _leading(self._definitions)
        self._small = {
            name: value for name, value in self._definitions.items() if not self._leads(value)
        }
        self._waiting: list[str] = []  # references whose rules are not written yet

    def written(self) -> str:
        """Return all rules."""
        start = self._reference("#")
        while self._waiting:
            reference = self._waiting.pop()
            key = reference.rpartition("/")[2].replace("~1", "/").replace("~0", "~")
            target = self._root if reference == "#" else self._definitions[key]
            where = reference[1:]
            self._add(f"{self._rules[reference]}: {self._expression(target, where)}")
        return "\n".join([f"start: {start}", *self._lines, _NAME_RULE, SPACE_RULES])

    def _leads(self, value: Any) -> bool:
        """Return whether there is a large integer in a schema, or in one that it refers to."""
        if isinstance(value, Mapping):
            reference = value.get("$ref")
            is_large = isinstance(reference, str) and reference in self._large
            return is_large or any(map(self._leads, value.values()))
        if isinstance(value, list | tuple):
            return any(map(self._leads, value))
        return has_large_integers(value)

    def _rule(self, text: str) -> str:
        """Add a rule; return its name."""
        name = f"json_{len(self._lines)}"
        self._add(f"{name}: {text}")
        return name

    def _add(self, line: str) -> None:
        self._size += len(line)
        if self._size > _MAX_SIZE:
            raise fault("", "it is too complex, with integers over 2**53")
        self._lines.append(line)

    def _reference(self, reference: str) -> str:
        """Return the rule of what a reference names."""
        if reference not in self._rules:
            self._rules[reference] = f"json_of_{len(self._rules)}"
            self._waiting.append(reference)
        return self._rules[reference]

    def _json(self, schema: Any) -> str:
        """Return the expression of a schema that leads to no large integer."""
        if not isinstance(schema, Mapping):
            schema = {} if schema else {"enum": []}
        has_references = self._small and any(True for _ in _references(schema))
        return self._as_json({**schema, "$defs": self._small} if has_references else schema)

    def _expression(self, schema: Any, pointer: str) -> str:
        """Return the expression of a schema."""
        if not self._leads(schema):
            return self._json(schema)
        keywords = schema.keys()
        for keyword in ("$ref", "anyOf", "oneOf", "allOf"):
            if keyword in schema and len(keywords) > 1:
                raise _not_supported(pointer, keyword)
        if "$ref" in schema:
            return self._reference(schema["$ref"])
        if len(schema.get("allOf", ())) > 1:
            raise _not_supported(pointer, "allOf")
        for keyword in ("anyOf", "oneOf", "allOf"):
            if keyword in schema:
                where = under(pointer, keyword)
                return _any_of(
                    self._expression(branch, under(where, str(index)))
                    for index, branch in enumerate(schema[keyword])
                )
        if "const" in schema or "enum" in schema:
            return self._values(schema, pointer)
        types = schema.get("type")
        return _any_of(
            self._of_type(schema, kind, pointer)
            for kind in (types if isinstance(types, list) else [types])
        )

    def _values(self, schema: Mapping[str, Any], pointer: str) -> str:
        """Return the expression of given values."""
        if {"const", "enum"} <= schema.keys():
            raise _not_supported(pointer, "enum")
        rest = {key: value for key, value in schema.items() if key not in ("const", "enum", "type")}
        for keyword in rest:
            raise _not_supported(pointer, keyword)
        values = [schema["const"]] if "const" in schema else schema["enum"]
        types = schema.get("type")
        kinds = types if isinstance(types, list) else [types] if types else None
        fitting = [value for value in values if kinds is None or _is_of(value, kinds)]
        if not fitting:
            raise fault(pointer, "no value is of its type")
        small = [value for value in fitting if not has_large_integers(value)]
        large = [self._value(value) for value in fitting if has_large_integers(value)]
        return _any_of([*large, *([self._as_json({"enum": small})] if small else [])])

    def _value(self, value: Any) -> str:
        """Return the expression of one value."""
        if not has_large_integers(value):
            return self._as_json({"const": value})
        if isinstance(value, Mapping):
            parts = [
                f"{_quoted(key)} json_colon {self._value(each)}" for key, each in value.items()
            ]
            return _enclosed("{", " json_comma ".join(parts), "}")
        if isinstance(value, list | tuple):
            return _enclosed("[", " json_comma ".join(map(self._value, value)), "]")
        return json.dumps(json.dumps(value))

    def _of_type(self, schema: Mapping[str, Any], kind: str | None, pointer: str) -> str:
        """Return the expression of the values of one type."""
        group = "number" if kind == "integer" else kind
        own = {key: value for key, value in schema.items() if KEYWORDS[key].type == group}
        if kind is not None and not self._leads(own):
            return self._json({**own, "type": kind})
        if group == "number":
            return _numbers(own, pointer, is_integer=kind == "integer")
        if kind == "object":
            return self._object(own, pointer)
        if kind == "array":
            return self._list(own, pointer)
        raise _not_supported(pointer, next(iter(own), "these keywords"))

    def _object(self, schema: Mapping[str, Any], pointer: str) -> str:
        for keyword in schema.keys() - {"properties", "required", "additionalProperties"}:
            raise _not_supported(pointer, keyword)
        properties, required = schema.get("properties", {}), schema.get("required", [])
        rest = schema.get("additionalProperties", True)
        where = under(pointer, "properties")
        schemas = {**properties, **{name: rest for name in required if name not in properties}}
        items = []
        for name, inner in schemas.items():
            if inner is not False:
                value = self._expression(inner, under(where, name))
                rule = self._rule(f"{_quoted(name)} json_colon {value}")
                items.append((rule, name in required))
        if any(schemas[name] is False for name in required):
            raise fault(pointer, "a required property is not allowed")
        extra = ""
        if rest is not False:
            name = "JSON_NAME"
            if schemas:
                taken = " | ".join(map(_quoted, schemas))
                name = f"JSON_NAME_{len(self._lines)}"
                self._add(f"{name}: JSON_NAME & ~({taken})")
            extra = self._rule(f"{name} json_colon {self._expression(rest, pointer)}")
        return _enclosed("{", self._members(items, extra), "}")

    def _members(self, items: list[tuple[str, bool]], extra: str) -> str:
        """Return the expression of rules in their order with commas; some are required.

        `extra` is the rule of any more, at the end; "": there are none.
        """
        more = f"(json_comma {extra})*" if extra else ""
        after = [more]  # what follows each item, from the last on
        for rule, is_required in reversed(items):
            own = f"json_comma {rule}" if is_required else f"(json_comma {rule})?"
            after.append(self._rule(f"{own} {after[-1]}"))
        after.reverse()
        beginnings = []
        for index, (rule, is_required) in enumerate(items):
            beginnings.append(f"{rule} {after[index + 1]}")
            if is_required:
                return _any_of(beginnings)
        last = [f"{extra} {more}"] if extra else []
        return f"({_any_of([*beginnings, *last])})?" if beginnings or last else ""

    def _list(self, schema: Mapping[str, Any], pointer: str) -> str:
        first, rest = schema.get("prefixItems", []), schema.get("items", True)
        least, most = schema.get("minItems", 0), schema.get("maxItems")
        places = [
            self._rule(self._expression(each, pointer)) for each in first if each is not False
        ]
        if len(places) < len(first) or (rest is False and least > len(places)):
            raise _not_supported(pointer, "items: false")
        text = ""
        if rest is not False:
            item = self._rule(self._expression(rest, under(pointer, "items")))
            low = max(least - len(places), 0)
            high = None if most is None else max(most - len(places), 0)
            text = _repeated(item, low, high, is_first=not places)
        for index in range(len(places) - 1, -1, -1):
            separator = "json_comma " if index else ""
            text = f"{separator}{places[index]} {text}"
            text = text if index < least else f"({text})?"
            if most is not None and index >= most:
                text = ""
        return _enclosed("[", text, "]")


def _leading(definitions: Mapping[str, Any]) -> set[str]:
    """Return the references, within definitions, to what leads to a large integer."""
    users: dict[str, list[str]] = {}
    waiting = ["#"]
    for name, value in definitions.items():
        own = f"#/$defs/{under('', name)[1:]}"
        for reference in _references(value):
            users.setdefault(reference, []).append(own)
        if has_large_integers(value):
            waiting.append(own)
    found: set[str] = set()
    while waiting:
        reference = waiting.pop()
        if reference not in found:
            found.add(reference)
            waiting += users.get(reference, ())
    return found


def _references(value: Any) -> Iterator[str]:
    """Yield the references in a schema."""
    if isinstance(value, Mapping):
        if isinstance(value.get("$ref"), str):
            yield value["$ref"]
        for each in value.values():
            yield from _references(each)
    elif isinstance(value, list | tuple):
        for each in value:
            yield from _references(each)


def _numbers(schema: Mapping[str, Any], pointer: str, *, is_integer: bool) -> str:
    """Return the expression of the numbers between bounds."""
    if schema.get("multipleOf", 1) != 1:
        raise _not_supported(pointer, "multipleOf")
    limits = {name: schema[name] for name in _BOUNDS if name in schema}
    lows = [math.ceil(limits["minimum"])] if "minimum" in limits else []
    lows += [math.floor(limits[name]) + 1 for name in ("exclusiveMinimum",) if name in limits]
    highs = [math.floor(limits["maximum"])] if "maximum" in limits else []
    highs += [math.ceil(limits[name]) - 1 for name in ("exclusiveMaximum",) if name in limits]
    low, high = _shortened(max(lows, default=None)), _shortened(min(highs, default=None))
    patterns = [range_pattern(low, high)]
    if not is_integer and "multipleOf" not in schema:
        above = range_pattern(max(low or 0, 0), None if high is None else high - 1)
        below = range_pattern(
            0 if high is None else max(-high, 0), None if low is None else -low - 1
        )
        patterns += [above and rf"{above}\.[0-9]+", below and rf"-{below}\.[0-9]+"]
    found = [pattern for pattern in patterns if pattern]
    if not found:
        raise fault(pointer, "no number is within its bounds")
    return f"/{'|'.join(found)}/"


def _shortened(limit: int | None) -> int | None:
    """Return a limit nearer to 0 for one with very many digits: its pattern would be very long."""
    digits = 0 if limit is None else len(str(abs(limit)))
    if limit is None or digits <= _MAX_DIGITS:
        return limit
    nearer: int = 10 ** (digits - 1) - 1
    return nearer if limit > 0 else -nearer


def _repeated(item: str, least: int, most: int | None, *, is_first: bool) -> str:
    """Return the expression of so many items, with a comma before each but the `is_first`."""
    if most == 0:
        return ""
    if not is_first:
        return f"(json_comma {item}){{{least},{'' if most is None else most}}}"
    more = _repeated(item, max(least - 1, 0), None if most is None else most - 1, is_first=False)
    return f"{item} {more}" if least else f"({item} {more})?"


def _any_of(expressions: Iterable[str]) -> str:
    found = [*expressions]
    return f"({' | '.join(found)})" if len(found) > 1 else "".join(found)


def _enclosed(begin: str, inside: str, end: str) -> str:
    return f'"{begin}" json_space {inside} json_space "{end}"'


def _quoted(name: str) -> str:
    """Return the expression of a name in JSON."""
    return json.dumps(json.dumps(name, ensure_ascii=False), ensure_ascii=False)


def _is_of(value: Any, kinds: Iterable[str]) -> bool:
    checks = {
        "null": value is None,
        "boolean": isinstance(value, bool),
        "integer": isinstance(value, int | float) and not isinstance(value, bool) and not value % 1,
        "number": isinstance(value, int | float) and not isinstance(value, bool),
        "string": isinstance(value, str),
        "array": isinstance(value, list | tuple),
        "object": isinstance(value, Mapping),
    }
    return any(checks[kind] for kind in kinds)


def _not_supported(pointer: str, keyword: str) -> Exception:
    return fault(under(pointer, keyword), "it is not supported with integers over 2**53")
