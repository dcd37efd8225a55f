"""The `openai` package against a server, and the built-in model's answers through it."""

from __future__ import annotations

import base64
import json
from collections.abc import Iterator
from typing import Any, cast

import openai
import pytest
from support.serving import Server

from tests.clients.questions import PERSON, SUM, WARM, WEATHER, picture

pytestmark = [pytest.mark.client, pytest.mark.server]

PICTURE = base64.b64encode(picture()).decode()
TOOLS: list[Any] = [{"type": "function", "function": WEATHER}]


@pytest.fixture(scope="module")
def client(server: Server) -> Iterator[openai.OpenAI]:
    with openai.OpenAI(base_url=f"{server.url}/v1", api_key="none", max_retries=0) as client:
        yield client


def ask(client: openai.OpenAI, messages: list[Any] = SUM, **more: Any) -> Any:
    options: dict[str, Any] = {"model": "demo", "temperature": 0, "max_tokens": 60} | more
    return client.chat.completions.create(messages=messages, **options)


def test_a_question_is_answered(client: openai.OpenAI) -> None:
    chunks = list(ask(client, stream=True))
    assert "".join(chunk.choices[0].delta.content or "" for chunk in chunks) == "85"
    answer = ask(client)
    [choice] = answer.choices
    assert choice.message.content == "85"
    assert choice.message.role == "assistant"
    assert choice.finish_reason == "stop"
    assert answer.object == "chat.completion"
    assert answer.usage.prompt_tokens > 5
    assert answer.usage.total_tokens == answer.usage.prompt_tokens + answer.usage.completion_tokens


def test_cached_tokens_are_reported(client: openai.OpenAI) -> None:
    ask(client)
    usage = ask(client).usage
    assert 0 < usage.prompt_tokens_details.cached_tokens < usage.prompt_tokens


def test_a_conversation_with_a_tools_result_goes_on(client: openai.OpenAI) -> None:
    first = ask(client, WARM, tools=TOOLS).choices[0].message
    [call] = first.tool_calls
    assert (call.function.name, call.function.arguments) == ("get_weather", '{"city": "Cairo"}')
    result = {"role": "tool", "tool_call_id": call.id, "content": "It is sunny."}
    messages = [*WARM, first.model_dump(exclude_none=True), result]
    answer = ask(client, messages, tools=TOOLS)
    assert answer.choices[0].message.content
    assert answer.usage.prompt_tokens > 60


def test_tools_that_must_not_be_called_are_not_shown(client: openai.OpenAI) -> None:
    answer = ask(client, WARM, tools=TOOLS, tool_choice="none")
    assert answer.choices[0].message.tool_calls is None
    assert answer.usage.prompt_tokens == ask(client, WARM).usage.prompt_tokens


def test_several_choices_are_each_of_their_own_seed(client: openai.OpenAI) -> None:
    many = ask(client, n=3, temperature=1.5, seed=7, max_tokens=8)
    again = ask(client, n=3, temperature=1.5, seed=7, max_tokens=8)
    other = ask(client, n=1, temperature=1.5, seed=8, max_tokens=8)
    texts = [choice.message.content for choice in many.choices]
    assert [choice.index for choice in many.choices] == [0, 1, 2]
    assert texts == [choice.message.content for choice in again.choices]
    assert texts[1] == other.choices[0].message.content
    assert many.usage.prompt_tokens == other.usage.prompt_tokens


def test_a_prompts_own_scores_come_with_its_echo(client: openai.OpenAI) -> None:
    prompt = "27 + 58 ="
    for most in (0, 2):
        answer = client.completions.create(
            model="demo", prompt=prompt, max_tokens=most, temperature=0, logprobs=1, echo=True
        )
        scores = answer.choices[0].logprobs
        assert len(scores.tokens) == answer.usage.prompt_tokens + most
        assert "".join(scores.tokens).endswith(answer.choices[0].text[len(prompt) :])
        assert prompt in "".join(scores.tokens)
        assert scores.token_logprobs[0] is None
        assert all(logprob <= 0 for logprob in scores.token_logprobs[1:])
        assert [len(top) for top in scores.top_logprobs[1:]] == [1] * (len(scores.tokens) - 1)
    with pytest.raises(openai.BadRequestError, match="cannot be streamed"):
        client.completions.create(model="demo", prompt=prompt, logprobs=1, echo=True, stream=True)


def test_the_models_are_listed(client: openai.OpenAI) -> None:
    names = [model.id for model in client.models.list()]
    assert "demo:latest" in names
    assert client.models.retrieve("demo").id == "demo"
    with pytest.raises(openai.NotFoundError, match="not found") as raised:
        client.models.retrieve("library/nothing:7b")
    assert raised.value.code == "model_not_found"
    with pytest.raises(openai.NotFoundError) as raised:
        client.files.retrieve("file-none")
    assert raised.value.code is None


def test_a_response_calls_a_function_and_goes_on_with_its_output(client: openai.OpenAI) -> None:
    tools: list[Any] = [{"type": "function", **WEATHER}]
    question: Any = {"role": "user", "content": WARM[0]["content"]}
    with client.responses.stream(model="demo", input=[question], tools=tools, temperature=0) as s:
        [call] = s.get_final_response().output
    assert call.type == "function_call"
    assert (call.name, json.loads(call.arguments)) == ("get_weather", {"city": "Cairo"})
    output: Any = {
        "type": "function_call_output",
        "call_id": call.call_id,
        "output": "It is sunny.",
    }
    more = client.responses.create(
        model="demo",
        input=[question, cast("Any", call.model_dump(exclude_none=True)), output],
        tools=tools,
        temperature=0,
    )
    assert more.output_text


def test_image_is_refused_by_a_model_without_vision(client: openai.OpenAI) -> None:
    picture = {"type": "image_url", "image_url": {"url": "data:image/png;base64,aGk="}}
    remote = {"type": "image_url", "image_url": {"url": "https://example.com/cat.png"}}
    for part, told in ((picture, "does not support images"), (remote, "URLs are not fetched")):
        with pytest.raises(openai.BadRequestError, match=told):
            ask(client, [{"role": "user", "content": [part]}], model="tiny")


PLACES = {
    "type": "object",
    "properties": {"city": {"enum": ["Cairo", "Rome"]}},
    "required": ["city"],
    "additionalProperties": False,
}
CITIES = [{"type": "function", "function": {"name": "get_weather", "parameters": PLACES}}]
SCHEMA = {
    "type": "object",
    "properties": {"job": {"type": "string"}, "name": {"enum": ["Kevin", "Anna"]}},
    "required": ["job", "name"],
    "additionalProperties": False,
}


def test_an_answer_fits_the_schema_that_was_given(client: openai.OpenAI) -> None:
    form = {"type": "json_schema", "json_schema": {"name": "person", "schema": SCHEMA}}
    answer = ask(client, PERSON, response_format=form).choices[0].message.content
    found = json.loads(answer)
    assert list(found) == ["job", "name"]
    assert found["name"] == "Kevin"
    free = ask(client, PERSON, response_format={"type": "json_object"})
    assert json.loads(free.choices[0].message.content) == {"name": "Kevin", "job": "driver"}


def test_with_a_format_and_tools_an_answer_is_one_or_the_other(client: openai.OpenAI) -> None:
    form = {"type": "json_schema", "json_schema": {"name": "person", "schema": SCHEMA}}
    for question in (SUM, PERSON):
        answer = ask(
            client,
            question,
            tools=CITIES,
            response_format=form,
            parallel_tool_calls=False,
            max_tokens=200,
        ).choices[0]
        if answer.finish_reason == "tool_calls":
            assert answer.message.tool_calls[0].function.name == "get_weather"
        else:
            assert list(json.loads(answer.message.content)) == ["job", "name"]


def test_image_reaches_the_model(client: openai.OpenAI) -> None:
    url = "data:image/png;base64," + base64.b64encode(picture()).decode()
    text = {"type": "text", "text": "What colour is it?"}
    content = [text, {"type": "image_url", "image_url": {"url": url}}]
    answer = ask(client, [{"role": "user", "content": content}])
    assert answer.choices[0].message.content == "Red."
    items = [{"type": "input_text", "text": "What shape is it?"}]
    items.append({"type": "input_image", "image_url": url})
    asked: list[Any] = [{"role": "user", "content": items}]
    response = client.responses.create(model="demo", input=asked, temperature=0)
    assert response.output_text == "A circle."


def test_a_picture_is_asked_about(server: Server, native: Server, client: openai.OpenAI) -> None:
    content: list[Any] = [
        {"type": "input_image", "image_url": f"data:image/png;base64,{PICTURE}"},
        {"type": "input_text", "text": "Look."},
    ]
    ask: dict[str, Any] = {
        "model": "demo",
        "input": [{"role": "user", "content": content}],
        "questions": [{"type": "predicate", "instructions": "It is red."}],
    }
    if server is not native:
        with pytest.raises(openai.BadRequestError, match=r"llama\.cpp engine"):
            client.decisions.create(**ask)
        return
    found = client.decisions.create(**ask)
    assert 0 <= cast("Any", found.answers[0]).probability <= 1
