"""Thinking on, off, by effort and with a budget, through the client packages.

The model "tryer" begins inside a thought unless it is not to think; its prompt holds the effort.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import anthropic
import openai
import pytest
from support.serving import Server

pytestmark = [pytest.mark.client, pytest.mark.server]

USER: list[Any] = [{"role": "user", "content": "x"}]
# How many tokens more the prompt has: of "(low)", "(medium)", "(high)", or of "</think>".
LEVELS = {"none": 6, "minimal": 5, "low": 5, "medium": 7, "high": 6, "xhigh": 6, "max": 6}


@pytest.fixture
def openai_client(contract_server: Server) -> Iterator[openai.OpenAI]:
    url = f"{contract_server.url}/v1"
    with openai.OpenAI(base_url=url, api_key="none", max_retries=0) as client:
        yield client


@pytest.fixture
def anthropic_client(contract_server: Server) -> Iterator[anthropic.Anthropic]:
    with anthropic.Anthropic(base_url=contract_server.url, api_key="none", max_retries=0) as client:
        yield client


@pytest.mark.parametrize("effort", LEVELS)
def test_an_effort_reaches_the_prompt_of_a_chat_and_of_a_response(
    openai_client: openai.OpenAI, effort: Any
) -> None:
    chat: dict[str, Any] = {"model": "tryer", "messages": USER, "temperature": 0}
    plain = openai_client.chat.completions.create(**chat).usage.prompt_tokens
    asked = openai_client.chat.completions.create(**chat, reasoning_effort=effort)
    assert asked.usage.prompt_tokens - plain == LEVELS[effort]
    message = asked.choices[0].message.model_dump()
    assert ("reasoning" in message) is (effort != "none")
    given: dict[str, Any] = {"model": "tryer", "input": "x", "temperature": 0}
    plain = openai_client.responses.create(**given).usage.input_tokens
    response = openai_client.responses.create(**given, reasoning={"effort": effort})
    assert response.usage.input_tokens - plain == LEVELS[effort]
    assert [item.type for item in response.output] == (
        ["message"] if effort == "none" else ["reasoning", "message"]
    )


@pytest.mark.parametrize(
    ("more", "effort"),
    [
        ({}, "none"),
        ({"thinking": {"type": "disabled"}}, "none"),
        ({"thinking": {"type": "adaptive"}}, None),
        ({"thinking": {"type": "enabled", "budget_tokens": 1024}}, None),
        ({"thinking": {"type": "adaptive"}, "output_config": {"effort": "low"}}, "low"),
        ({"output_config": {"effort": "medium"}}, "medium"),
        ({"output_config": {"effort": "max"}}, "high"),
    ],
    ids=str,
)
def test_thinking_option_reaches_the_prompt_of_a_message(
    anthropic_client: anthropic.Anthropic, more: dict[str, Any], effort: str | None
) -> None:
    def read(**given: Any) -> int:
        counted = anthropic_client.messages.count_tokens(model="tryer", messages=USER, **given)
        return counted.input_tokens

    plain = read(thinking={"type": "adaptive"})
    assert read(**more) - plain == (LEVELS[effort] if effort else 0)
    message = anthropic_client.messages.create(
        model="tryer", messages=USER, max_tokens=20, extra_body={"temperature": 0}, **more
    )
    kinds = [block.type for block in message.content]
    assert kinds == (["text"] if effort == "none" else ["thinking", "text"])


def test_streamed_reasoning_ends_at_its_budget(anthropic_client: anthropic.Anthropic) -> None:
    thinking: Any = {"type": "enabled", "budget_tokens": 1}
    with anthropic_client.messages.stream(
        model="tryer", messages=USER, max_tokens=30, thinking=thinking,
        extra_body={"temperature": 0},
    ) as stream:  # fmt: skip
        message = stream.get_final_message()
    thought, text = message.content
    assert thought.thinking == "Hm"
    assert thought.signature
    assert text.text.endswith("Yes.")
    assert message.usage.output_tokens_details.thinking_tokens < message.usage.output_tokens


def test_budget_applies_with_structured_output(openai_client: openai.OpenAI) -> None:
    form: Any = {"type": "json_schema", "json_schema": {"name": "x", "schema": {"enum": ["yes"]}}}
    answer = openai_client.chat.completions.create(
        model="tryer",
        messages=USER,
        temperature=0,
        max_completion_tokens=60,
        response_format=form,
        extra_body={"think_budget": 1},
    )
    assert answer.choices[0].message.content == '"yes"'
    assert answer.choices[0].message.model_dump()["reasoning"] == "Hm"
