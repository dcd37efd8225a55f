"""Answers under the schemas that generators write: valid, or a warning says why they may not be."""

from __future__ import annotations

import json
from typing import Any

import jsonschema
import pytest
from support import nonsense
from support.library_schemas import ENFORCED, IGNORED

from tampu.sampling.constraint import Constraints
from tampu.sampling.grammar import Grammar
from tests.sampling.conftest import TOKENIZER

pytestmark = pytest.mark.server


def is_json_schema(value: Any) -> bool:
    """Return whether no keyword has a meaning of its own, as in OpenAPI's and Google's schemas."""
    text = json.dumps(value)
    return '"nullable"' not in text and '"OBJECT"' not in text and '"$id"' not in text


@pytest.mark.parametrize("name", ENFORCED)
def test_an_answer_follows_the_schema(constraints: Constraints, name: str) -> None:
    schema = ENFORCED[name]
    grammar = Grammar.schema(schema)
    assert grammar.ignored == ()
    for seed in range(3):
        answer = json.loads(nonsense.answer(constraints.compile(grammar), TOKENIZER, seed))
        if is_json_schema(schema):
            newest = jsonschema.Draft202012Validator
            default = jsonschema.Draft7Validator if "additionalItems" in schema else newest
            kind = jsonschema.validators.validator_for(schema, default)
            kind(schema).validate(answer)


@pytest.mark.parametrize("name", IGNORED)
def test_what_is_not_enforced_is_named(constraints: Constraints, name: str) -> None:
    schema, places = IGNORED[name]
    grammar = Grammar.schema(schema)
    assert sorted(line.split(": ")[1] for line in grammar.ignored) == places
    json.loads(nonsense.answer(constraints.compile(grammar), TOKENIZER))


def test_google_schemas_have_their_order_and_types(constraints: Constraints) -> None:
    grammar = Grammar.schema(ENFORCED["Google"])
    for seed in range(4):
        answer = json.loads(nonsense.answer(constraints.compile(grammar), TOKENIZER, seed))
        assert [*answer][:2] == ["b", "a"]
        assert answer["a"] is None or len(answer["a"]) <= 3
