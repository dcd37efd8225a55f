"""The `anthropic` package against a server, and the built-in model's answers through it."""

from __future__ import annotations

import base64
from collections.abc import Iterator
from typing import Any

import anthropic
import pytest
from anthropic.types import Message
from support.serving import Server

from tests.clients.questions import SUM, WARM, WEATHER, picture

pytestmark = [pytest.mark.client, pytest.mark.server]

TOOLS: list[Any] = [
    {
        "name": WEATHER["name"],
        "description": WEATHER["description"],
        "input_schema": WEATHER["parameters"],
    }
]


GREEDY: dict[str, Any] = {"extra_body": {"temperature": 0}}


@pytest.fixture(scope="module")
def client(server: Server) -> Iterator[anthropic.Anthropic]:
    with anthropic.Anthropic(base_url=server.url, api_key="none", max_retries=0) as client:
        yield client


def ask(client: anthropic.Anthropic, messages: list[Any] = SUM, **more: Any) -> Message:
    options = GREEDY | {"max_tokens": 60} | more
    return client.messages.create(model="demo", messages=messages, **options)


def test_a_question_is_answered(client: anthropic.Anthropic) -> None:
    message = ask(client)
    assert [block.text for block in message.content] == ["85"]
    assert (message.role, message.stop_reason, message.stop_sequence) == (
        "assistant", "end_turn", None,
    )  # fmt: skip
    assert message.usage.output_tokens > 0


@pytest.mark.parametrize("is_streaming", [False, True])
def test_a_tool_is_used_with_its_input(client: anthropic.Anthropic, is_streaming: bool) -> None:
    message: anthropic.types.Message
    if is_streaming:
        with client.messages.stream(
            model="demo", messages=WARM, max_tokens=60, **GREEDY, tools=TOOLS
        ) as stream:
            message = stream.get_final_message()
    else:
        message = ask(client, WARM, tools=TOOLS)
    [block] = message.content
    assert (block.type, block.name, block.input) == ("tool_use", "get_weather", {"city": "Cairo"})
    assert message.stop_reason == "tool_use"


def test_a_tools_result_goes_back_to_the_model(client: anthropic.Anthropic) -> None:
    first = ask(client, WARM, tools=TOOLS)
    result = {
        "type": "tool_result",
        "tool_use_id": first.content[0].id,
        "content": [{"type": "text", "text": "It is sunny."}],
    }
    messages = [
        *WARM,
        {"role": "assistant", "content": first.content},
        {"role": "user", "content": [result]},
    ]
    second = ask(client, messages, tools=TOOLS)
    assert second.content[0].type == "text"
    assert second.content[0].text


@pytest.mark.parametrize("choice", [{"type": "any"}, {"type": "tool", "name": "get_weather"}])
def test_a_tool_that_has_to_be_used_is_used(
    client: anthropic.Anthropic, choice: dict[str, str]
) -> None:
    place: dict[str, Any] = {"type": "object", "properties": {"city": {"enum": ["Cairo", "Rome"]}}}
    place |= {"required": ["city"], "additionalProperties": False}
    tools = [{"name": "get_weather", "input_schema": place}]
    only_one = choice | {"disable_parallel_tool_use": True}
    message = ask(client, SUM, tools=tools, tool_choice=only_one)
    assert message.stop_reason == "tool_use"
    block: Any
    [block] = message.content
    assert block.name == "get_weather"
    assert block.input["city"] in ("Cairo", "Rome")


def test_image_reaches_the_model(client: anthropic.Anthropic) -> None:
    data = base64.b64encode(picture()).decode()
    source = {"type": "base64", "media_type": "image/png", "data": data}
    question = {"type": "text", "text": "What colour is it?"}
    content = [{"type": "image", "source": source}, question]
    message = ask(client, [{"role": "user", "content": content}])
    assert message.content[0].text == "Red."
