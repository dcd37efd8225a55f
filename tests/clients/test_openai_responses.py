"""Responses that are kept, by the `openai` package, with the built-in model."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import openai
import pytest
from support.serving import Server

pytestmark = [pytest.mark.client, pytest.mark.server]

WEATHER: dict[str, Any] = {
    "type": "function",
    "name": "get_weather",
    "description": "Get the weather in a city.",
    "parameters": {
        "type": "object",
        "properties": {"city": {"type": "string"}},
        "required": ["city"],
    },
}


@pytest.fixture(scope="module")
def client(native: Server) -> Iterator[openai.OpenAI]:
    with openai.OpenAI(base_url=f"{native.url}/v1", api_key="none", max_retries=0) as client:
        yield client


def ask(client: openai.OpenAI, given: Any, **more: Any) -> Any:
    return client.responses.create(
        model="demo", input=given, temperature=0, max_output_tokens=60, **more
    )


def test_a_call_of_a_function_is_answered_in_the_next_response(client: openai.OpenAI) -> None:
    choice = {"type": "function", "name": "get_weather"}
    first = ask(
        client, "Is it warm in Cairo?", tools=[WEATHER], tool_choice=choice,
        parallel_tool_calls=False,
    )  # fmt: skip
    [call] = first.output
    assert (call.type, first.store) == ("function_call", True)
    result = {"type": "function_call_output", "call_id": call.call_id, "output": "31 degrees"}
    second = ask(client, [result], previous_response_id=first.id, tools=[WEATHER])
    assert second.previous_response_id == first.id
    assert "31 degrees" in second.output_text
    kinds = [item.type for item in client.responses.input_items.list(second.id, order="asc")]
    assert kinds == ["message", "function_call", "function_call_output"]


def test_tokens_of_the_whole_conversation_are_counted(client: openai.OpenAI) -> None:
    first = ask(client, "What is 27 + 58?")
    counted = client.responses.input_tokens.count(
        model="demo", input="And then?", previous_response_id=first.id
    )
    second = ask(client, "And then?", previous_response_id=first.id)
    assert counted.input_tokens == second.usage.input_tokens > first.usage.input_tokens
