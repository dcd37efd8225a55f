"""Answers under the schemas that pydantic writes are read by pydantic."""

from __future__ import annotations

import json

import jsonschema
import pytest
from pydantic import TypeAdapter
from support import nonsense
from support.pydantic_types import IGNORED, TYPES, schema_of

from tampu.sampling.constraint import Constraints
from tampu.sampling.grammar import Grammar
from tests.sampling.conftest import TOKENIZER

pytestmark = pytest.mark.server

# Their texts are more than a schema says: which numbers Python reads, which files there are.
NOT_READ = {"Decimal", "NewPath", "Json", "timedelta", "AnyUrl", "bytes", "Base64Str",
            "Base64UrlStr", "dict[int, str]"}  # fmt: skip


@pytest.mark.parametrize("name", TYPES)
def test_an_answer_is_a_value_of_its_type(constraints: Constraints, name: str) -> None:
    schema = schema_of(TYPES[name])
    grammar = Grammar.schema(schema)
    assert grammar.ignored == ()
    for seed in range(2):
        text = nonsense.answer(constraints.compile(grammar), TOKENIZER, seed)
        jsonschema.Draft202012Validator(schema).validate(json.loads(text))
        if name not in NOT_READ:
            TypeAdapter(TYPES[name]).validate_json(text)


@pytest.mark.parametrize("name", IGNORED)
def test_what_is_not_enforced_is_named(constraints: Constraints, name: str) -> None:
    kind, place = IGNORED[name]
    grammar = Grammar.schema(schema_of(kind))
    assert [line.split(": ")[1] for line in grammar.ignored] == [place]
    json.loads(nonsense.answer(constraints.compile(grammar), TOKENIZER))


def test_there_are_sixty_types() -> None:
    assert len({**TYPES, **IGNORED}) >= 60
    assert all(isinstance(schema_of(kind), dict) for kind in TYPES.values())
