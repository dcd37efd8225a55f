"""The `openai` package against a server, and the built-in model's answers through it."""

from __future__ import annotations

import base64
import json
import math
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


def text_of(chunks: list[Any]) -> str:
    return "".join(chunk.choices[0].delta.content or "" for chunk in chunks if chunk.choices)


def test_a_question_is_answered(client: openai.OpenAI) -> None:
    answer = ask(client)
    [choice] = answer.choices
    assert choice.message.content == "85"
    assert choice.message.role == "assistant"
    assert choice.finish_reason == "stop"
    assert answer.object == "chat.completion"
    assert answer.usage.prompt_tokens > 5
    assert answer.usage.total_tokens == answer.usage.prompt_tokens + answer.usage.completion_tokens


def test_stream_has_the_same_answer_and_its_usage(client: openai.OpenAI) -> None:
    chunks = list(ask(client, stream=True, stream_options={"include_usage": True}))
    assert text_of(chunks) == "85"
    assert len({chunk.id for chunk in chunks}) == 1
    assert chunks[0].choices[0].delta.role == "assistant"
    assert chunks[-2].choices[0].finish_reason == "stop"
    assert chunks[-1].choices == []
    assert chunks[-1].usage == ask(client).usage.model_copy(
        update={"prompt_tokens_details": chunks[-1].usage.prompt_tokens_details}
    )
    assert all(chunk.usage is None for chunk in chunks[:-1])


def test_cached_tokens_are_reported(client: openai.OpenAI) -> None:
    ask(client)
    usage = ask(client).usage
    assert 0 < usage.prompt_tokens_details.cached_tokens < usage.prompt_tokens


def test_a_fact_becomes_json(client: openai.OpenAI) -> None:
    answer = ask(client, PERSON, extra_body={"num_ctx": 1024, "top_k": 1})
    assert json.loads(answer.choices[0].message.content) == {"name": "Kevin", "job": "driver"}


@pytest.mark.parametrize("is_streaming", [False, True])
def test_a_tool_is_called_with_its_arguments(client: openai.OpenAI, is_streaming: bool) -> None:
    answer = ask(client, WARM, tools=TOOLS, stream=is_streaming)
    if is_streaming:
        chunks = list(answer)
        calls = [call for chunk in chunks for call in chunk.choices[0].delta.tool_calls or ()]
        call, *more = calls
        assert call.function.arguments == ""
        assert {other.id for other in more} == {other.function.name for other in more} == {None}
        call.function.arguments = "".join(other.function.arguments for other in calls)
        reason = chunks[-1].choices[0].finish_reason
    else:
        [call] = answer.choices[0].message.tool_calls
        reason = answer.choices[0].finish_reason
        assert answer.choices[0].message.content is None
    assert reason == "tool_calls"
    assert call.function.name == "get_weather"
    assert json.loads(call.function.arguments) == {"city": "Cairo"}
    assert call.id.startswith("call_")


def test_a_conversation_with_a_tools_result_goes_on(client: openai.OpenAI) -> None:
    first = ask(client, WARM, tools=TOOLS).choices[0].message
    result = {"role": "tool", "tool_call_id": first.tool_calls[0].id, "content": "It is sunny."}
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
    chunks = list(ask(client, n=2, stream=True))
    for index in range(2):
        mine = [chunk for chunk in chunks if chunk.choices[0].index == index]
        assert text_of(mine) == "85"
        assert mine[-1].choices[0].finish_reason == "stop"


def test_log_probabilities_are_of_the_tokens(client: openai.OpenAI) -> None:
    answer = ask(client, logprobs=True, top_logprobs=2)
    scores = answer.choices[0].logprobs.content
    assert "".join(score.token for score in scores) == "85"
    for score in scores:
        assert bytes(score.bytes).decode() == score.token
        assert score.top_logprobs[0].token == score.token
        assert score.logprob <= 0


def test_a_bias_changes_the_answer(client: openai.OpenAI) -> None:
    tokens = client.post(
        "/../api/tokenize",
        body={"model": "demo", "text": "8", "add_special": False},
        cast_to=dict[str, Any],
    )["tokens"]
    answer = ask(client, logit_bias={str(token): -100 for token in tokens}, max_tokens=4)
    assert not answer.choices[0].message.content.startswith("8")


def test_a_stop_string_ends_the_answer(client: openai.OpenAI) -> None:
    answer = ask(client, PERSON, stop=["Kevin"])
    assert answer.choices[0].message.content == '{"name": "'
    assert answer.choices[0].finish_reason == "stop"


def test_token_limit_is_reported(client: openai.OpenAI) -> None:
    answer = ask(client, PERSON, max_tokens=openai.omit, max_completion_tokens=2)
    assert answer.choices[0].finish_reason == "length"
    assert answer.usage.completion_tokens == 2


def test_prompts_are_continued_each_and_echoed(client: openai.OpenAI) -> None:
    ids = [1, 2, 3]
    one = client.completions.create(model="demo", prompt="27 + 58 =", max_tokens=3, temperature=0)
    assert one.object == "text_completion"
    assert one.choices[0].finish_reason == "length"
    many = client.completions.create(
        model="demo", prompt=["27 + 58 =", "hello"], max_tokens=3, temperature=0, echo=True, n=2
    )
    assert [choice.index for choice in many.choices] == [0, 1, 2, 3]
    assert many.choices[1].text == "27 + 58 =" + one.choices[0].text
    assert many.choices[2].text.startswith("hello")
    by_tokens = client.completions.create(model="demo", prompt=[ids, ids], max_tokens=2)
    assert by_tokens.usage.prompt_tokens == 6
    stream = client.completions.create(
        model="demo", prompt="27 + 58 =", max_tokens=3, temperature=0, stream=True
    )
    assert "".join(chunk.choices[0].text for chunk in stream) == one.choices[0].text


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


def test_a_completions_scores_stand_at_their_offsets(client: openai.OpenAI) -> None:
    answer = client.completions.create(
        model="demo", prompt="27 + 58 =", max_tokens=3, temperature=0, logprobs=2
    )
    scores = answer.choices[0].logprobs
    text = answer.choices[0].text
    assert len(scores.tokens) == 3
    for token, offset in zip(scores.tokens, scores.text_offset, strict=True):
        assert text[offset : offset + len(token)] == token
    assert all(len(top) == 2 for top in scores.top_logprobs)


def test_embeddings_are_the_same_in_both_encodings(client: openai.OpenAI) -> None:
    texts = ["a cat", "a dog"]
    binary = client.embeddings.create(model="demo", input=texts)
    plain = client.embeddings.create(model="demo", input=texts, encoding_format="float")
    for index in range(2):
        # Another request: how many texts share a step, and so the rounding, may differ.
        same = pytest.approx(plain.data[index].embedding, abs=5e-3)
        assert binary.data[index].embedding == same
        assert math.hypot(*plain.data[index].embedding) == pytest.approx(1, abs=1e-5)
    short = client.embeddings.create(model="demo", input="a cat", dimensions=8).data[0].embedding
    assert len(short) == 8
    assert math.hypot(*short) == pytest.approx(1, abs=1e-5)
    tokens = client.embeddings.create(model="demo", input=[[1, 2, 3], [4]])
    assert tokens.usage.prompt_tokens == 4


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


def test_a_response_is_an_answer_to_items(client: openai.OpenAI) -> None:
    answer = client.responses.create(model="demo", input="What is 27 + 58?", temperature=0)
    assert answer.output_text == "85"
    assert answer.status == "completed"
    assert answer.usage.total_tokens == answer.usage.input_tokens + answer.usage.output_tokens
    items: list[Any] = [
        {"role": "user", "content": [{"type": "input_text", "text": SUM[0]["content"]}]}
    ]
    short = client.responses.create(model="demo", input=items, temperature=0, max_output_tokens=1)
    assert short.status == "incomplete"
    assert short.incomplete_details.reason == "max_output_tokens"


def test_responses_stream_reports_each_item(client: openai.OpenAI) -> None:
    with client.responses.stream(model="demo", input="What is 27 + 58?", temperature=0) as stream:
        events = list(stream)
        final = stream.get_final_response()
    kinds = [event.type for event in events]
    assert kinds[:2] == ["response.created", "response.in_progress"]
    assert kinds[-1] == "response.completed"
    assert [event.sequence_number for event in events] == list(range(len(events)))
    assert final.output_text == "85"


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


@pytest.mark.parametrize(
    ("more", "told"),
    [
        ({"n": 0}, "n must be"), ({"n": 10**9}, "n must be"), ({"temperature": -1}, "temperature"),
        ({"max_tokens": 0}, "max_tokens"), ({"top_logprobs": 21, "logprobs": True}, "top_logprobs"),
        ({"logit_bias": {"-1": 1}}, "not a token id"), ({"logit_bias": {"1": 101}}, "-100 to 100"),
        ({"logit_bias": {"999999": 1}}, "999999"), ({"reasoning_effort": "high"}, "thinking"),
        ({"functions": [{"name": "f"}]}, "functions"), ({"modalities": ["audio"]}, "modalities"),
        ({"stop": ["x"] * 17}, "stop"), ({"tool_choice": "maybe"}, "tool_choice"),
        ({"extra_body": {"options": {"num_ctx": 1}}}, "num_ctx"),
    ],
)  # fmt: skip
def test_unsupported_field_is_refused_by_name(
    client: openai.OpenAI, more: dict[str, Any], told: str
) -> None:
    with pytest.raises(openai.BadRequestError) as caught:
        ask(client, **more)
    body: Any = caught.value.body
    assert told in body["message"]
    assert body["type"] == "invalid_request_error"


def test_image_is_refused_by_a_model_without_vision(client: openai.OpenAI) -> None:
    picture = {"type": "image_url", "image_url": {"url": "data:image/png;base64,aGk="}}
    remote = {"type": "image_url", "image_url": {"url": "https://example.com/cat.png"}}
    for part, told in ((picture, "does not support images"), (remote, "URLs are not fetched")):
        with pytest.raises(openai.BadRequestError, match=told):
            ask(client, [{"role": "user", "content": [part]}], model="tiny")


def test_the_input_of_a_chat_is_counted(client: openai.OpenAI) -> None:
    path = "/chat/completions/input_tokens"
    found = client.post(path, body={"model": "demo", "messages": SUM}, cast_to=dict[str, Any])
    assert found["input_tokens"] == ask(client).usage.prompt_tokens


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


def test_a_call_that_is_required_is_made(client: openai.OpenAI) -> None:
    for choice in ("required", {"type": "function", "function": {"name": "get_weather"}}):
        answer = ask(client, SUM, tools=CITIES, tool_choice=choice, parallel_tool_calls=False)
        assert answer.choices[0].finish_reason == "tool_calls"
        [call] = answer.choices[0].message.tool_calls
        assert call.function.name == "get_weather"
        assert json.loads(call.function.arguments)["city"] in ("Cairo", "Rome")


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


def test_invalid_grammar_is_refused_before_generation(client: openai.OpenAI) -> None:
    form = {"type": "json_schema", "json_schema": {"name": "x", "schema": {"type": "thing"}}}
    with pytest.raises(openai.BadRequestError, match="type"):
        ask(client, response_format=form)
    other = {"type": "function", "function": {"name": "other"}}
    with pytest.raises(openai.BadRequestError, match="unknown tool"):
        ask(client, tools=TOOLS, tool_choice=other)


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


@pytest.mark.parametrize("data", ["data:image/png;base64,aGk=", "data:image/tiff;base64,aGk=", "x"])
def test_invalid_image_is_refused(client: openai.OpenAI, data: str) -> None:
    part = {"type": "image_url", "image_url": {"url": data}}
    with pytest.raises(openai.BadRequestError):
        ask(client, [{"role": "user", "content": [part]}])


def test_questions_are_answered_with_probabilities(client: openai.OpenAI) -> None:
    questions: list[Any] = [
        {"type": "predicate", "name": "so", "instructions": "The sum is 85."},
        {"type": "choice", "instructions": "What is it?",
         "choices": [{"value": "84"}, {"value": True, "description": "it is"}]},
        {"type": "score", "instructions": "How large?",
         "levels": [{"label": "small"}, {"label": "large"}]},
    ]  # fmt: skip
    found = client.decisions.create(model="demo", input=SUM[-1]["content"], questions=questions)
    kinds = [(answer.type, answer.name) for answer in found.answers]
    assert kinds == [("predicate", "so"), ("choice", None), ("score", None)]
    assert found.usage.input_tokens == found.usage.total_tokens > 20


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
