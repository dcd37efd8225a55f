"""Messages about wrong types say the field and what it must be."""

from __future__ import annotations

from typing import Any, Literal

import msgspec
import pytest

from tampu.settings.type_errors import type_error, with_keys


class Inner(msgspec.Struct, forbid_unknown_fields=True):
    role: str
    parts: list[dict[str, Any]] = []


class Outer(msgspec.Struct):
    name: str
    inner: list[Inner] = []
    number: float | None = None
    either: int | float | str | None = None
    flag: bool | None = None
    bias: dict[str, float] | None = None
    table: dict[int, float] | None = None
    size: Literal["s", "m"] | None = None


MESSAGES = {
    "{}": "name is missing",
    "[]": "the request must be an object, not a list",
    '{"name": null}': "name must be a string, not null",
    '{"name": "x", "number": "hot"}': "number must be a number, not a string",
    '{"name": "x", "number": true}': "number must be a number, not a boolean",
    '{"name": "x", "either": []}': "either must be a number or a string, not a list",
    '{"name": "x", "flag": 1}': "flag must be true or false, not an integer",
    '{"name": "x", "inner": [{}]}': "inner[0].role is missing",
    '{"name": "x", "inner": [{"role": "", "parts": [""]}]}': (
        "inner[0].parts[0] must be an object, not a string"
    ),
    '{"name": "x", "inner": [{"roll": ""}]}': "inner[0]: Object contains unknown field `roll`",
    '{"name": "x", "bias": {"a": ""}}': "each value of bias must be a number, not a string",
    '{"name": "x", "table": {"a": 1}}': "each key of table must be an integer, not a string",
    '{"name": "x", "size": "l"}': "size: Invalid enum value 'l'",
}


@pytest.mark.parametrize("text", MESSAGES)
def test_message_names_the_field_and_what_was_expected(text: str) -> None:
    with pytest.raises(msgspec.ValidationError) as caught:
        msgspec.json.decode(text, type=Outer)
    assert type_error(caught.value) == MESSAGES[text]


class Nested(msgspec.Struct):
    bias: dict[str, float] = {}
    deep: dict[str, list[dict[str, Inner]]] = {}


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ('{"bias": {"a": 1, "b": 2, "c": "x", "d": 3}}', "bias.c must be a number, not a string"),
        ('{"bias": {"c`": "x"}}', "each value of bias must be a number, not a string"),
        (
            '{"deep": {"a": [], "b": [{"c": {"role": ""}, "d": {"role": 5}}]}}',
            "deep.b[0].d.role must be a string, not an integer",
        ),
        ('{"deep": {"b": [{"d": {}}]}, "bias": {"a": ""}}', "deep.b[0].d.role is missing"),
        ('{"bias": 5}', "bias must be an object, not an integer"),
        ("[]", "the request must be an object, not a list"),
    ],
)
def test_keys_of_objects_are_named(text: str, message: str) -> None:
    with pytest.raises(msgspec.ValidationError) as caught:
        msgspec.json.decode(text, type=Nested)
    error = with_keys(caught.value, msgspec.json.decode(text), Nested)
    assert type_error(error) == message


@pytest.mark.parametrize(
    ("kind", "value", "message"),
    [
        (Outer, [], "text.format must be an object, not a list"),
        (Outer, {"name": 5}, "text.format.name must be a string, not an integer"),
        (list[str], [5], "text.format[0] must be a string, not an integer"),
    ],
)
def test_message_names_the_place_of_a_value_inside_the_request(
    kind: Any, value: Any, message: str
) -> None:
    with pytest.raises(msgspec.ValidationError) as caught:
        msgspec.convert(value, kind)
    assert type_error(caught.value, inside="text.format") == message
