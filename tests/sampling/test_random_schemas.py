"""Schemas that nobody wrote: whatever is compiled gives answers that a validator accepts."""

from __future__ import annotations

import json
from contextlib import suppress
from typing import Any

import jsonschema
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from support import nonsense

from tampu.errors import GrammarError
from tampu.sampling.constraint import Constraints
from tampu.sampling.grammar import Grammar
from tests.sampling.conftest import TOKENIZER

pytestmark = pytest.mark.server

NAMES = st.sampled_from(["a", "b", "c d", 'e"'])
SMALL = st.integers(0, 3)
LARGE = st.sampled_from([2**53 + 1, -(2**60) - 1, 2**64, -(10**22), 1e20])
NUMBERS = LARGE | st.integers(-20, 20) | st.integers(-80, 80).map(lambda n: n / 4)
VALUES = LARGE | st.none() | st.booleans() | st.integers(-9, 9) | st.text('ab"é\n', max_size=3)
TYPES = st.sampled_from(["object", "array", "string", "integer", "number", "boolean", "null"])
CONDITIONS = {
    "type": TYPES | st.lists(TYPES, min_size=1, max_size=3, unique=True),
    "enum": st.lists(VALUES, min_size=1, max_size=3),
    "const": VALUES,
    "minimum": NUMBERS,
    "maximum": NUMBERS,
    "exclusiveMinimum": NUMBERS,
    "exclusiveMaximum": NUMBERS,
    "multipleOf": st.sampled_from([1, 2, 5, 10]),
    "minLength": SMALL,
    "maxLength": SMALL,
    "pattern": st.sampled_from(["^a", "b$", "^[a-c]{1,3}$", "a|bc", "^\\d+$"]),
    "minItems": SMALL,
    "maxItems": SMALL,
    "minProperties": SMALL,
    "maxProperties": SMALL,
    "required": st.lists(NAMES, max_size=2, unique=True),
    "$ref": st.sampled_from(["#/$defs/x", "#/$defs/y", "#/properties/a"]),
    "uniqueItems": st.booleans(),
    "description": st.just("any"),
}


def schemas(inner: st.SearchStrategy[Any]) -> st.SearchStrategy[Any]:
    nested = {
        "properties": st.dictionaries(NAMES, inner, max_size=3),
        "patternProperties": st.dictionaries(st.sampled_from(["^z", "y$"]), inner, max_size=2),
        "additionalProperties": inner,
        "items": inner,
        "prefixItems": st.lists(inner, min_size=1, max_size=2),
        "anyOf": st.lists(inner, min_size=1, max_size=3),
        "oneOf": st.lists(inner, min_size=1, max_size=2),
        "allOf": st.lists(inner, min_size=1, max_size=2),
        "$defs": st.dictionaries(st.sampled_from(["x", "y"]), inner, max_size=2),
        "not": inner,
    }
    keywords = st.sampled_from([*sorted(nested), "type", "required", "minItems"])
    return st.lists(keywords, min_size=1, max_size=4, unique=True).flatmap(
        lambda names: st.fixed_dictionaries({name: (CONDITIONS | nested)[name] for name in names})
    )


SIMPLE = st.booleans() | st.lists(
    st.sampled_from(sorted(CONDITIONS)), max_size=3, unique=True
).flatmap(lambda names: st.fixed_dictionaries({name: CONDITIONS[name] for name in names}))


@settings(max_examples=50)
@given(schema=st.recursive(SIMPLE, schemas, max_leaves=6), seed=st.integers(0, 99))
def test_a_random_schema_gives_valid_answers_or_is_refused(
    constraints: Constraints, schema: Any, seed: int
) -> None:
    try:
        grammar = Grammar.schema(schema)
        constraint = constraints.compile(grammar)
        text = nonsense.answer(constraint, TOKENIZER, seed)
    except (GrammarError, nonsense.EndlessAnswerError):
        return  # refused, or cut off
    if grammar.ignored:
        return  # said in a warning
    with suppress(RecursionError):  # of the validator, in schemas that refer to themselves
        jsonschema.Draft202012Validator(schema).validate(json.loads(text))
