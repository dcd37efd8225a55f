"""Messages about wrong types say the field and what it must be."""

from __future__ import annotations

from typing import Any, Literal

import msgspec
import pytest

from tampu.settings.type_errors import type_error


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
