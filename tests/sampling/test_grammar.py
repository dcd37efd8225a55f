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
from tampu.sampling.grammar import Grammar, grammar_of, lark_text
from tampu.sampling.schema import MAX_DEPTH, checked_schema


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
        ({"properties": {"a/b": {"uniqueItems": True}}}, "schema: /properties/a~1b/uniqueItems: "),
        ({"items": {"contains": {}}}, "schema: /items/contains: this keyword is not supported"),
        ({"$defs": {"x": {"not": {}}}}, "schema: /$defs/x/not: "),
        ({"anyOf": [{}, {"if": {}, "then": {}}]}, "schema: /anyOf/1/if: "),
        ({"dependentRequired": {}}, "schema: /dependentRequired: "),
        ({"unevaluatedProperties": False}, "schema: /unevaluatedProperties: "),
        ({"propertyNames": {}}, "schema: /propertyNames: "),
        ({"$dynamicRef": "#a"}, "schema: /$dynamicRef: "),
        ({"properties": {"a": 1}}, "schema: /properties/a: a schema must be"),
        ({"$ref": "http://example.org/x"}, "schema: /$ref: only references within"),
        ({"$ref": "file:///etc/passwd"}, "schema: /$ref: only references within"),
        ({"$ref": 5}, "schema: /$ref: only references within"),
        ({"minProperties": 2}, "schema: /minProperties: "),
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
    assert checked_schema(schema) == {
        "properties": {"uniqueItems": {}, "x": True},
        "minProperties": 2,
        "required": ["a", "b"],
        "items": [{}],
        "enum": [{"not": 1}],
    }
    assert json.dumps(schema) == before
    assert checked_schema(True) == {}


@given(st.recursive(st.none() | st.booleans() | st.integers() | st.text(), lambda inner:
                    st.lists(inner) | st.dictionaries(st.sampled_from(
                        ["type", "anyOf", "items", "properties", "$ref", "enum", "required",
                         "minProperties", "x"]), inner)))  # fmt: skip
def test_any_json_is_accepted_or_refused_as_a_schema(schema: Any) -> None:
    with suppress(GrammarError):
        json.dumps(checked_schema(schema))


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


def test_lark_texts_may_contain_control_tokens() -> None:
    assert lark_text('a"\n') == '"a\\"\\n"'
    tokens = {"<|end|>": 7, "<|end|>x": 8}
    assert lark_text("a<|end|>b<|end|>x", tokens) == '"a" <[7]> "b" <[8]>'
    assert lark_text("", tokens) == '""'
