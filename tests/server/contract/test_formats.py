"""`POST /api/format/check` tries an output format as a request would, and generates nothing."""

from __future__ import annotations

from typing import Any

import httpx
import pytest

pytestmark = pytest.mark.server

VALID: list[dict[str, Any]] = [
    {},
    {"format": ""},
    {"format": "json"},
    {"format": {"type": "object", "properties": {"a": {"type": "integer"}}}},
    {"format": {"gbnf": 'root ::= "yes" | "no"'}},
    {"format": {"lark": "start: <end_of_turn>"}},  # a control token of the model
    {"format": {"regex": "[0-9]+"}},
    {"response_format": {"type": "json_schema", "json_schema": {"schema": {"type": "object"}}}},
    {"grammar": 'root ::= "x"'},
]
REFUSED: list[tuple[dict[str, Any], str]] = [
    ({"format": 7}, 'format must be "json"'),
    ({"format": {"type": "objekt"}}, "format: schema: /type: 'objekt' is not a JSON type"),
    ({"format": {"gbnf": "root ::= other"}}, "format: the rule other, which root uses, is missing"),
    ({"format": {"lark": "start: x\nx: ("}}, "format: line 2: "),
    ({"format": {"lark": "start: <nothing>"}}, "unknown special token"),
    ({"format": {"regex": "[0-9"}}, "unclosed character class"),
    ({"format": "json", "grammar": 'root ::= "x"'}, "at most one output format"),
]


def check(client: httpx.Client, body: dict[str, Any]) -> httpx.Response:
    return client.post("/api/format/check", json={"model": "demo", **body})


@pytest.mark.parametrize("body", VALID, ids=str)
def test_a_format_that_can_be_followed_is_valid(client: httpx.Client, body: dict[str, Any]) -> None:
    assert check(client, body).json() == {"valid": True}


@pytest.mark.parametrize(("body", "why"), REFUSED, ids=str)
def test_the_reason_is_told_for_others(
    client: httpx.Client, body: dict[str, Any], why: str
) -> None:
    response = check(client, body)
    assert response.status_code == 200
    told = response.json()
    assert told["valid"] is False
    assert why in told["error"]


def test_an_unknown_model_is_not_found(client: httpx.Client) -> None:
    assert check(client, {"model": "nothing", "format": "json"}).status_code == 404


def test_a_request_is_refused_with_the_same_words(client: httpx.Client) -> None:
    wrong = {"model": "demo", "prompt": "x", "format": {"regex": "[0-9"}}
    refusal = client.post("/api/generate", json=wrong)
    assert refusal.status_code == 400
    assert refusal.json()["error"] == check(client, {"format": wrong["format"]}).json()["error"]
