"""The output format of a request: what is given in another shape, empty, or wrong."""

from __future__ import annotations

import json
from typing import Any

import httpx
import pytest

pytestmark = pytest.mark.server

USER = [{"role": "user", "content": "x"}]
SCHEMA = {"enum": ["yes"]}
WRAPPED = {"name": "x", "strict": True, "schema": SCHEMA}
TYPED = {"type": "json_schema", "json_schema": WRAPPED}
ROUTES: dict[str, dict[str, Any]] = {
    "/v1/chat/completions": {"messages": USER},
    "/v1/completions": {"prompt": "x"},
    "/v1/responses": {"input": "x"},
    "/v1/messages": {"messages": USER, "max_tokens": 9},
    "/api/chat": {"messages": USER, "stream": False},
    "/api/generate": {"prompt": "x", "stream": False},
}

QUICK = "/v1/chat/completions"
EVERY_ROUTE = pytest.mark.parametrize(
    "path",
    [path if path == QUICK else pytest.param(path, marks=pytest.mark.slow) for path in ROUTES],
)


def ask(client: httpx.Client, path: str, **more: Any) -> httpx.Response:
    return client.post(path, json={"model": "talker", **ROUTES[path], **more})


def message(response: httpx.Response) -> str:
    """Return the message of a refusal."""
    assert response.status_code == 400, response.text
    error = response.json()["error"]
    return error if isinstance(error, str) else str(error["message"])


@EVERY_ROUTE
@pytest.mark.parametrize(
    "form",
    [
        {"json_schema": WRAPPED},
        {"json_schema": json.dumps(WRAPPED)},
        {"json_schema": TYPED},
        {"guided_json": WRAPPED},
        {"structured_outputs": {"json": WRAPPED}},
        {"format": WRAPPED},
        {"format": TYPED},
        {"response_format": {"type": "json_object", "schema": WRAPPED}},
    ],
)
def test_a_schema_in_openais_object_is_followed_where_a_bare_one_is_expected(
    client: httpx.Client, path: str, form: dict[str, Any]
) -> None:
    response = ask(client, path, **form)
    assert response.status_code == 200, response.text
    assert json.dumps('"yes"') in response.text


@EVERY_ROUTE
@pytest.mark.parametrize(
    ("form", "told"),
    [
        ({"regex": ""}, "regex is empty"),
        ({"ebnf": ""}, "ebnf is empty"),
        ({"json_schema": ""}, "json_schema is empty"),
        ({"guided_regex": ""}, "guided_regex is empty"),
        ({"structured_outputs": {"regex": ""}}, "structured_outputs.regex is empty"),
        ({"response_format": {"type": "regex", "regex": ""}}, "response_format.regex is empty"),
        ({"response_format": {"type": "grammar"}}, "response_format.grammar is missing"),
        ({"structural_tag": "{}"}, "structural_tag is not supported"),
        ({"guided_whitespace_pattern": " ?"}, "guided_whitespace_pattern is not supported"),
        ({"response_format": 5}, "response_format must be an object, not an integer"),
        ({"response_format": {}}, "response_format.type is missing"),
        ({"text": {"format": 5}}, "text.format must be an object, not an integer"),
        (
            {"text": {"format": {"type": "json_schema", "schema": 5}}},
            "text.format.schema must be true or false or an object, not an integer",
        ),
        (
            {"structured_outputs": {"choice": [5]}},
            "structured_outputs.choice[0] must be a string",
        ),
        ({"grammar": 'root ::= "y'}, """grammar: line 1: '"y' is not understood"""),
        ({"guided_grammar": "start: x"}, 'guided_grammar: line 1: unknown name: "x"'),
        ({"regex": "a("}, "regex: invalid regular expression 'a(': unclosed group"),
        (
            {"output_format": {"type": "json_schema", "schema": {"type": "text"}}},
            "output_format: schema: /type: 'text' is not a JSON type",
        ),
        (
            {"format": {"type": "string", "pattern": "a("}},
            "format: schema: /: invalid regular expression 'a(': unclosed group",
        ),
        ({"format": "xml"}, 'format must be "json", a JSON schema'),
    ],
)
def test_a_wrong_format_is_refused_in_the_words_of_the_request(
    client: httpx.Client, path: str, form: dict[str, Any], told: str
) -> None:
    assert message(ask(client, path, **form)).startswith(told)


@EVERY_ROUTE
def test_an_empty_format_or_grammar_is_none(client: httpx.Client, path: str) -> None:
    plain = ask(client, path, options={"temperature": 0})
    given = ask(client, path, options={"temperature": 0}, format="", grammar="")
    assert plain.status_code == given.status_code == 200
    assert "Hello" in given.text


@pytest.mark.parametrize("is_streaming", [False, True])
def test_a_message_that_the_limit_cuts_off_is_incomplete(
    client: httpx.Client, is_streaming: bool
) -> None:
    def status(limit: int) -> tuple[str, str]:
        response = ask(client, "/v1/responses", max_output_tokens=limit, stream=is_streaming)
        assert response.status_code == 200
        if is_streaming:
            events = [json.loads(line[6:]) for line in response.text.splitlines()
                      if line.startswith("data: ")]  # fmt: skip
            [done] = [event for event in events if event["type"] == "response.output_item.done"]
            answer = events[-1]["response"]
            assert answer["output"] == [done["item"]]
        else:
            answer = response.json()
        return answer["status"], answer["output"][-1]["status"]

    assert status(2) == ("incomplete", "incomplete")
    assert status(20) == ("completed", "completed")
