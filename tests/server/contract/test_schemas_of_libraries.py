"""Schemas of pydantic and of other languages' generators: each API takes them all."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

import httpx
import pytest
from support import library_schemas, pydantic_types

pytestmark = [pytest.mark.server, pytest.mark.slow]

USER = [{"role": "user", "content": "x"}]
ENFORCED = {
    **{name: pydantic_types.schema_of(kind) for name, kind in pydantic_types.TYPES.items()},
    **library_schemas.ENFORCED,
}
IGNORED = {
    **{name: pydantic_types.schema_of(kind) for name, (kind, _) in pydantic_types.IGNORED.items()},
    **{name: schema for name, (schema, _) in library_schemas.IGNORED.items()},
}
FEW = {"options": {"num_predict": 1}, "think": False, "stream": False, "truncate": True}


def json_schema(schema: Any) -> dict[str, Any]:
    """Return OpenAI's object of a schema."""
    return {"type": "json_schema", "json_schema": {"name": "x", "schema": schema, "strict": True}}


def function(schema: Any) -> dict[str, Any]:
    """Return a function with a parameter of this schema, whose definitions are those of all."""
    hoisted = {key: schema[key] for key in ("$defs", "definitions") if key in schema}
    inner = {key: value for key, value in schema.items() if key not in hoisted}
    if '"#/properties' in json.dumps(schema):
        return {"name": "x", "parameters": schema}
    parameters = {"type": "object", "properties": {"x": inner}, "required": ["x"], **hoisted}
    return {"name": "x", "parameters": parameters}


FORMS: dict[str, tuple[str, Callable[[Any], dict[str, Any]]]] = {
    "chat completions": (
        "/v1/chat/completions", lambda s: {"messages": USER, "response_format": json_schema(s)}),
    "completions": ("/v1/completions", lambda s: {"prompt": "x", "guided_json": s}),
    "responses": ("/v1/responses", lambda s: {
        "input": "x", "text": {"format": {"type": "json_schema", "name": "x", "schema": s}}}),
    "messages": ("/v1/messages", lambda s: {
        "messages": USER, "output_config": {"format": {"type": "json_schema", "schema": s}}}),
    "Ollama's chat": ("/api/chat", lambda s: {"messages": USER, "format": s}),
    "Ollama's generate": ("/api/generate", lambda s: {"prompt": "x", "format": s}),
    "llama-server's completion": ("/completion", lambda s: {"prompt": "x", "json_schema": s}),
    "tools of chat completions": ("/v1/chat/completions", lambda s: {
        "messages": USER, "tools": [{"type": "function", "function": function(s)}],
        "tool_choice": "required"}),
    "tools of responses": ("/v1/responses", lambda s: {
        "input": "x", "tools": [{"type": "function", **function(s)}],
        "tool_choice": "required"}),
    "tools of messages": ("/v1/messages", lambda s: {
        "messages": USER, "tools": [{"name": "x", "input_schema": function(s)["parameters"]}],
        "tool_choice": {"type": "any"}}),
    "tools of Ollama's chat": ("/api/chat", lambda s: {
        "messages": USER, "tools": [{"type": "function", "function": function(s)}],
        "tool_choice": "required"}),
}  # fmt: skip


def ask(client: httpx.Client, form: str, schema: Any, **more: Any) -> httpx.Response:
    path, body = FORMS[form]
    limit = {"max_tokens": 1, "model": "pair" if "tools" in form else "talker"}
    return client.post(path, json={**FEW, **limit, **body(schema), **more})


@pytest.mark.parametrize("kind", ["formats", "tools"])
def test_each_api_takes_them_all(client: httpx.Client, kind: str) -> None:
    forms = [form for form in FORMS if ("tools" in form) == (kind == "tools")]
    for name, schema in ENFORCED.items():
        for form in forms:  # a grammar is compiled once
            response = ask(client, form, schema)
            assert response.status_code == 200, (form, name, response.text)
            assert ": ignored" not in response.headers.get("warning", ""), (form, name)


@pytest.mark.parametrize("form", FORMS)
def test_what_is_not_enforced_is_in_the_header(client: httpx.Client, form: str) -> None:
    for name, schema in IGNORED.items():
        for stream in (False, True):
            response = ask(client, form, schema, stream=stream)
            assert response.status_code == 200, (name, response.text)
            assert ": ignored, " in response.headers["warning"], name
