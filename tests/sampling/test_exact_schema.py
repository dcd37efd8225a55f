"""Schemas with integers that doubles do not have: which texts they allow."""

from __future__ import annotations

from typing import Any

import pytest
from support.schemas import LARGE, closed

from tampu.sampling.constraint import Constraints
from tampu.sampling.grammar import Grammar
from tests.sampling.conftest import TOKENIZER

pytestmark = pytest.mark.server

UP_TO = {"type": "integer", "maximum": 2**64}


def allows(constraints: Constraints, grammar: Grammar, text: str) -> bool:
    """Return whether a text is a whole answer."""
    constraint = constraints.compile(grammar)
    tokens = TOKENIZER.encode_inside(text)
    return constraint.count_allowed([*tokens, 256]) == len(tokens) + 1


@pytest.mark.parametrize(
    ("schema", "allowed", "forbidden"),
    [
        ({"const": LARGE}, [LARGE], [LARGE - 21, LARGE + 1]),
        ({"enum": [2**53 + 1, 5]}, [2**53 + 1, 5], [2**53, 2**53 + 2]),
        ({"const": -(2**63) - 1}, [-(2**63) - 1], [-(2**63), 2**63 + 1]),
        ({"const": 10**30 + 7}, [10**30 + 7], [10**30, "1e+30"]),
        ({"enum": [1e22]}, ["1e+22"], ["1e+23"]),
        ({"type": "integer", "minimum": LARGE}, [LARGE, 10 * LARGE], [LARGE - 1, 0, -LARGE]),
        ({"type": "integer", "exclusiveMaximum": LARGE}, [LARGE - 1, 0, -LARGE * 99], [LARGE]),
        ({"type": "number", "maximum": LARGE}, ["-0.5", "7.25", LARGE], [LARGE + 1, f"{LARGE}.5"]),
        ({"type": ["null", "integer"], "maximum": 2**64}, ["null", 2**64], [2**64 + 1, '""']),
        (closed(id={"const": LARGE}), [f'{{"id": {LARGE}}}', f'{{\n "id":{LARGE}}}'], ["{}"]),
        (
            {"properties": {"a": UP_TO, "b": {"type": "null"}}, "required": ["b"]},
            ['{"b": null}', '{"a": 1, "b": null}', '{"b": null, "c": 1, "d": 2}'],
            ["{}", '{"a": 1}', '{"b": null, "a": 1}', '{"b": null, "b": 1}'],
        ),
        (
            {"properties": {"a": UP_TO}, "additionalProperties": False},
            ["{}", '{"a": 1}'],
            ['{"b": 1}', '{"a": 1, "b": 1}'],
        ),
        (
            {"items": UP_TO, "minItems": 2, "maxItems": 3},
            ["[1, 2]", "[1,2,3]"],
            ["[]", "[1]", "[1,2,3,4]", '["a","b"]'],
        ),
        (
            {"prefixItems": [UP_TO, {"type": "null"}], "items": False},
            ["[]", "[1]", "[1, null]"],
            ["[null]", "[1, null, 2]"],
        ),
        (
            {"prefixItems": [UP_TO, {"type": "null"}], "minItems": 1, "maxItems": 3},
            ["[1]", "[1, null]", '[1, null, "x"]'],
            ["[]", "[1, null, 1, 1]"],
        ),
    ],
)
def test_a_large_integer_is_enforced_to_its_last_digit(
    constraints: Constraints, schema: Any, allowed: list[Any], forbidden: list[Any]
) -> None:
    grammar = Grammar.schema(schema)
    assert not grammar.ignored
    assert [text for text in allowed if not allows(constraints, grammar, str(text))] == []
    assert [text for text in forbidden if allows(constraints, grammar, str(text))] == []


def test_white_space_is_fixed_on_one_line(constraints: Constraints) -> None:
    schema = closed(a={"const": LARGE}, b={"type": "null"})
    grammar = Grammar.schema(schema).on_one_line()
    assert allows(constraints, grammar, f'{{"a": {LARGE}, "b": null}}')
    assert not allows(constraints, grammar, f'{{"a":{LARGE}, "b": null}}')
    inside = grammar.within('start: "<" answer ">"')
    assert allows(constraints, inside, f'<{{"a": {LARGE}, "b": null}}>')
