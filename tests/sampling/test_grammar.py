"""What a request may ask of its answer's form, and what is wrong with it when it is refused."""

from __future__ import annotations

import json
import re
from contextlib import suppress
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tampu.errors import GrammarError
from tampu.sampling.grammar import Grammar, grammar_of, lark_regex, lark_text
from tampu.sampling.schema import MAX_DEPTH, checked_schema
from tampu.sampling.schema_keywords import KEYWORDS


def nested(depth: int) -> dict[str, Any]:
    schema: dict[str, Any] = {"type": "string"}
    for _ in range(depth):
        schema = {"anyOf": [schema]}
    return schema


@pytest.mark.parametrize(
    ("schema", "message"),
    [
        (1, "schema: /: it must be an object"),
        ([], "schema: /: it must be an object"),
        (None, "schema: /: it must be an object"),
        (False, "schema: /: it allows nothing"),
        ({"properties": {"a": 1}}, "schema: /properties/a: a schema must be"),
        ({"$ref": "http://example.org/x"}, "schema: /$ref: only references within"),
        ({"$ref": "file:///etc/passwd"}, "schema: /$ref: only references within"),
        ({"$ref": 5}, "schema: /$ref: it must be a text"),
        ({"$ref": "#/properties/x2"}, "schema: /$ref: there is nothing at '#/properties/x2'"),
        ({"$ref": "#nowhere"}, "schema: /$ref: there is nothing at '#nowhere'"),
        ({"properties": [1]}, "schema: /properties: it must be an object"),
        ({"items": {"anyOf": {}}}, "schema: /items/anyOf: it must be a list"),
        ({"required": ["a", 1]}, "schema: /required: it must be a list of names"),
        ({"minimum": "1"}, "schema: /minimum: it must be a number"),
        ({"multipleOf": True}, "schema: /multipleOf: it must be a number"),
        ({"maxLength": -1}, "schema: /maxLength: it must be a count, 0 or more"),
        ({"maxItems": 1.5}, "schema: /maxItems: it must be a count, 0 or more"),
        ({"pattern": 1}, "schema: /pattern: it must be a text"),
        ({"type": "strnig"}, "schema: /type: 'strnig' is not a JSON type"),
        ({"const": float("nan")}, "schema: /: it holds the number nan"),
        ({"maximum": float("inf")}, "schema: /: it holds the number inf"),
        ({"const": b"x"}, "schema: /: it holds a bytes"),
        ({1: 2}, "schema: /: its keys must be strings"),
        ({"enum": ["x" * 300_000]}, "schema: /: it has 300"),
        (nested(10_000), f"schema: /: it is nested more than {MAX_DEPTH} deep"),
    ],
)
def test_a_schema_is_refused_with_the_place_and_the_reason(schema: Any, message: str) -> None:
    with pytest.raises(GrammarError, match=f"^{re.escape(message)}"):
        Grammar.schema(schema)


@pytest.mark.parametrize(
    ("schema", "places"),
    [
        ({"properties": {"a/b": {"uniqueItems": True}}}, ["/properties/a~1b/uniqueItems"]),
        ({"items": {"contains": {}}}, ["/items/contains"]),
        ({"$ref": "#/$defs/x", "$defs": {"x": {"not": {"const": 1}}}}, ["/$defs/x/not"]),
        ({"$defs": {"unused": {"contains": {}}}}, []),
        ({"anyOf": [{}, {"if": {}, "then": {}}]}, ["/anyOf/1/if"]),
        ({"if": {}}, []),
        ({"then": {}, "else": {}, "minContains": 2, "additionalItems": {}}, []),
        ({"dependentRequired": {"a": ["b"]}}, ["/dependentRequired"]),
        ({"dependentRequired": {}, "dependentSchemas": {}, "dependencies": {}}, []),
        ({"minProperties": 2, "contains": {}}, ["/contains", "/minProperties"]),
        ({"type": "string", "format": "phone"}, ["/format"]),
        ({"type": "string", "pattern": r"^(?!a)\w+$"}, ["/pattern"]),
        ({"oneOf": [{"type": "integer"}, {"minimum": 2}]}, ["/oneOf"]),
        ({"propertyNames": {"format": "email"}}, ["/propertyNames"]),
    ],
)
def test_what_cannot_be_enforced_is_named(schema: Any, places: list[str]) -> None:
    named = [line.split(": ")[1] for line in Grammar.schema(schema).ignored]
    assert sorted(named) == sorted(places)
    assert checked_schema(schema).ignored == Grammar.schema(schema).within("start: answer").ignored


def test_annotations_are_dropped_from_a_copy_of_the_schema() -> None:
    schema = {
        "properties": {"uniqueItems": {"uniqueItems": False}, "x": True},
        "unevaluatedProperties": True,
        "x-guidance": {"lenient": True},
        "minProperties": 2,
        "required": ["a", "b"],
        "items": [{"unevaluatedItems": True}],
        "enum": [{"not": 1}],
    }
    before = json.dumps(schema)
    checked = checked_schema(schema)
    assert checked.schema == {
        "properties": {"uniqueItems": {"type": "array"}, "x": True},
        "required": ["a", "b"],
        "prefixItems": [{"type": "array"}],
        "enum": [{"not": 1}],
    }
    assert checked.ignored == ()
    assert json.dumps(schema) == before
    assert checked_schema(True).schema == {}


@pytest.mark.parametrize(
    ("schema", "expected"),
    [
        # Without a type, the keywords say what is meant.
        ({"properties": {"a": {}}}, {"properties": {"a": {}}, "type": "object"}),
        ({"required": ["a"]}, {"required": ["a"], "type": "object"}),
        ({"additionalProperties": False}, {"additionalProperties": False, "type": "object"}),
        ({"items": {"minimum": 1}}, {"items": {"minimum": 1, "type": "number"}, "type": "array"}),
        ({"prefixItems": [True]}, {"prefixItems": [True], "type": "array"}),
        ({"pattern": "^a$"}, {"pattern": "^a$", "type": "string"}),
        ({"minLength": 2.0}, {"minLength": 2, "type": "string"}),
        ({"format": "uri"}, {"format": "uri", "type": "string"}),
        ({"format": "url"}, {"format": "uri", "type": "string"}),
        ({"propertyNames": {"maxLength": 3}},
         {"patternProperties": {r"^[\s\S]{0,3}$": True}, "additionalProperties": False,
          "type": "object"}),
        ({"format": "double"}, {"type": "number"}),
        ({"format": "password"}, {"type": "string"}),
        ({"$ref": "#/$defs/a", "description": "d", "$defs": {"a": {"type": "null"}}},
         {"$ref": "#/$defs/a", "$defs": {"a": {"type": "null"}}}),
        ({"properties": {"a": {}}, "anyOf": [{"required": ["a"]}]},
         {"properties": {"a": {}}, "type": "object",
          "anyOf": [{"required": ["a"], "type": "object"}]}),
        ({"minimum": 1, "maxLength": 2}, {"minimum": 1, "maxLength": 2,
                                           "type": ["number", "string"]}),
        ({"type": "string", "pattern": None, "enum": None, "const": None},
         {"type": "string", "const": None}),
        ({"title": "any", "description": "d", "x-y": 1, "deprecated": True}, {}),
        ({"enum": [1], "minimum": 1}, {"enum": [1], "minimum": 1}),
        # Other spellings of the same.
        ({"type": "STRING", "nullable": True}, {"type": ["string", "null"]}),
        ({"type": "string", "enum": ["a"], "nullable": True},
         {"type": ["string", "null"], "enum": ["a", None]}),
        ({"anyOf": [{"type": "null"}], "nullable": True},
         {"anyOf": [{"anyOf": [{"type": "null"}]}, {"type": "null"}]}),
        ({"type": "array", "items": [{}], "additionalItems": False},
         {"type": "array", "prefixItems": [{}], "items": False}),
        ({"type": "object", "additionalProperties": {"not": {}}},
         {"type": "object", "additionalProperties": False}),
        ({"type": "integer", "minimum": 1, "exclusiveMinimum": True},
         {"type": "integer", "exclusiveMinimum": 1}),
        ({"type": "integer", "minimum": 1, "exclusiveMinimum": False},
         {"type": "integer", "minimum": 1}),
        ({"type": "integer", "exclusiveMaximum": True}, {"type": "integer"}),
        ({"type": "integer", "format": "uint8"},
         {"type": "integer", "minimum": 0, "maximum": 255}),
        ({"type": "string", "maxLength": "5", "minLength": 10**30},
         {"type": "string", "maxLength": 5, "minLength": 10**30}),
        ({"type": "string", "maxLength": 10**30}, {"type": "string"}),
        ({"type": "object", "properties": {"a": {}, "b": {}}, "propertyOrdering": ["b"]},
         {"type": "object", "properties": {"b": {}, "a": {}}}),
        # References, by place, anchor and identifier; only what is referred to is kept.
        ({"$ref": "#/definitions/a%20b", "definitions": {"a b": {"type": "null"}, "c": False}},
         {"$ref": "#/$defs/a b", "$defs": {"a b": {"type": "null"}}}),
        ({"items": {"$ref": "T"}, "$defs": {"x": {"$id": "T", "type": "null"}}},
         {"items": {"$ref": "#/$defs/x"}, "type": "array", "$defs": {"x": {"type": "null"}}}),
        ({"$id": "http://e.org/s", "items": {"$ref": "http://e.org/t"},
          "$defs": {"x": {"$id": "t", "type": "null"}}},
         {"items": {"$ref": "#/$defs/x"}, "type": "array", "$defs": {"x": {"type": "null"}}}),
        ({"items": {"$dynamicRef": "#n"}, "$defs": {"x": {"$dynamicAnchor": "n"}}},
         {"items": {"$ref": "#/$defs/x"}, "type": "array", "$defs": {"x": {}}}),
        ({"items": {"$recursiveRef": "#"}}, {"items": {"$ref": "#"}, "type": "array"}),
        ({"properties": {"a": {"type": "null"}, "b": {"$ref": "#/properties/a"}}},
         {"properties": {"a": {"type": "null"}, "b": {"$ref": "#/$defs/a"}}, "type": "object",
          "$defs": {"a": {"type": "null"}}}),
        ({"items": [{"$ref": "#/x/a"}, {"$ref": "#/y/a"}], "x": {"a": True}, "y": {"a": {}}},
         {"prefixItems": [{"$ref": "#/$defs/a"}, {"$ref": "#/$defs/a1"}], "type": "array",
          "$defs": {"a": True, "a1": {}}}),
        # Keywords that are written as others.
        ({"propertyNames": {"enum": ["a"]}, "additionalProperties": {"type": "null"}},
         {"properties": {"a": {"type": "null"}}, "additionalProperties": False, "type": "object"}),
        ({"propertyNames": {"pattern": "^a"}},
         {"patternProperties": {"^a": True}, "additionalProperties": False, "type": "object"}),
        ({"type": "object", "propertyNames": {"type": "string"}}, {"type": "object"}),
        ({"type": "array", "items": {"enum": [1, 2]}, "uniqueItems": True, "minItems": 1},
         {"type": "array", "allOf": [{"enum": [[1], [2], [1, 2], [2, 1]]}]}),
        ({"type": "object", "properties": {"a": {}}, "unevaluatedProperties": False},
         {"type": "object", "properties": {"a": {}}, "additionalProperties": False}),
        ({"type": "object", "unevaluatedProperties": False,
          "allOf": [{"properties": {"a": {}}}, {"$ref": "#/$defs/b"}],
          "$defs": {"b": {"properties": {"b": {}}}}},
         {"type": "object", "properties": {"a": True, "b": True}, "additionalProperties": False,
          "allOf": [{"properties": {"a": {}}, "type": "object"}, {"$ref": "#/$defs/b"}],
          "$defs": {"b": {"properties": {"b": {}}, "type": "object"}}}),
        ({"type": "object", "properties": {"a": {}}, "required": ["a"], "minProperties": 1},
         {"type": "object", "properties": {"a": {}}, "required": ["a"]}),
    ],
)  # fmt: skip
def test_other_ways_to_write_a_schema_are_read(schema: Any, expected: Any) -> None:
    checked = checked_schema(schema)
    assert (checked.schema, checked.ignored) == (expected, ())


def chained(count: int, last: Any, branches: int = 1) -> dict[str, Any]:
    """Return a schema of definitions, each an alternative of the next."""
    named = {f"d{i}": {"anyOf": [{"$ref": f"#/$defs/d{i + 1}"}] * branches} for i in range(count)}
    return {"$ref": "#/$defs/d0", "$defs": {**named, f"d{count}": last}}


def test_long_chains_of_references_are_followed() -> None:
    source = Grammar.schema(chained(2000, {"const": 2**60 + 1})).source
    assert str(2**60 + 1) in source


def test_schemas_that_grow_are_refused_or_not_compared_to_the_end() -> None:
    wide = chained(7, {"type": "string"}, branches=10)
    schema = {"oneOf": [wide, {"type": "integer"}], "$defs": wide["$defs"]}
    [line] = Grammar.schema(schema).ignored
    assert "its branches may overlap" in line
    many = {f"p{i}": {"type": "integer", "maximum": int("123456789" * 11) + i} for i in range(1500)}
    with pytest.raises(GrammarError, match="it is too complex, with integers over"):
        Grammar.schema({"properties": many})
    nested: dict[str, Any] = {"enum": ["x"] * 9}
    for _ in range(20):
        nested = {"properties": {"a": nested, "b": {"anyOf": [{"type": "null"}] * 100}}}
    places = [{"$ref": "#/x" + "/properties/a" * i} for i in range(20)]
    assert Grammar.schema({"anyOf": places, "x": nested})
    wide = {"items": {"anyOf": [True] * 25_000}}
    with pytest.raises(GrammarError, match="it is too complex, with what it refers to"):
        Grammar.schema({"anyOf": [{"$ref": "#/x"}, {"$ref": "#/x/items"}], "x": wide})


KEYS = st.sampled_from([*KEYWORDS, "nullable", "propertyOrdering", "$id", "$anchor", "$defs", "x"])
TEXTS = st.text() | st.sampled_from(["#", "#/$defs/x", "#/items", "x", "object", "STRING", "uuid"])


@given(st.recursive(st.none() | st.booleans() | st.integers() | st.floats() | TEXTS, lambda inner:
                    st.lists(inner) | st.dictionaries(KEYS, inner)))  # fmt: skip
def test_any_json_is_accepted_or_refused_as_a_schema(schema: Any) -> None:
    with suppress(GrammarError):
        json.dumps(Grammar.schema(schema).source)


@pytest.mark.parametrize(
    ("wanted", "expected"),
    [
        (None, None),
        ("", None),
        ("json", Grammar.json()),
        ({"type": "integer"}, Grammar.schema({"type": "integer"})),
        (True, Grammar.schema({})),
        ({}, Grammar.schema({})),
        ({"regex": "a+"}, Grammar.regex("a+")),
        ({"lark": 'start: "a"'}, Grammar.lark('start: "a"')),
        ({"gbnf": 'root ::= "a"'}, Grammar.gbnf('root ::= "a"')),
        ({"choices": ["a", "b"]}, Grammar.choices(["a", "b"])),
    ],
)
def test_each_format_becomes_its_grammar(wanted: object, expected: Grammar | None) -> None:
    assert grammar_of(wanted) == expected


@pytest.mark.parametrize(
    ("wanted", "message"),
    [
        ("yaml", 'format must be "json"'),
        (5, 'format must be "json"'),
        ({"choices": []}, "choices: they must be texts"),
        ({"choices": [1]}, "choices: they must be texts"),
        ({"choices": ["a"] * 10_001}, "choices: 10001 are more"),
        ({"lark": "x" * 300_000}, "grammar: it has 300000 bytes"),
        ({"regex": "x" * 300_000}, "grammar: it has 300000 bytes"),
        ({"gbnf": "x" * 300_000}, "grammar: it has 300000 bytes"),
    ],
)
def test_a_wrong_format_is_refused(wanted: Any, message: str) -> None:
    with pytest.raises(GrammarError, match=f"^{re.escape(message)}"):
        grammar_of(wanted)


def test_regular_expressions_are_written_between_slashes() -> None:
    assert lark_regex("a/b") == r"/a\/b/"
    assert lark_regex("\\.\n") == r"/\.\n/"
    assert lark_regex("") == "/(?:)/"


def test_lark_texts_may_contain_control_tokens() -> None:
    assert lark_text('a"\n') == '"a\\"\\n"'
    tokens = {"<|end|>": 7, "<|end|>x": 8}
    assert lark_text("a<|end|>b<|end|>x", tokens) == '"a" <[7]> "b" <[8]>'
    assert lark_text("", tokens) == '""'
