"""`/v1/decisions` and `/v1/systemone`, statement by statement."""

from __future__ import annotations

from typing import Any

import httpx
import pytest
from openai.types import Decision

pytestmark = pytest.mark.server

TEXT = "I was charged twice."
PREDICATE = {"type": "predicate", "instructions": "The customer is angry."}
CHOICE = {
    "type": "choice",
    "instructions": "Which?",
    "choices": [{"value": "Hello"}, {"value": "Bye"}],
}
SCORE = {"type": "score", "instructions": "How?", "levels": [{"label": "low"}, {"label": "high"}]}
NOUL = {"type": "noul", "instructions": "Is it so?"}
TEAM = {
    "type": "choice",
    "instructions": "Who?",
    "criteria": {"billing": "Payments", "other": None},
}
URGENCY = {"type": "score", "instructions": "Urgent?", "criteria": ["no", "soon", "now"]}


def decide(client: httpx.Client, *questions: Any, status: int = 200, **more: Any) -> Any:
    body = {"model": "talker", "input": TEXT, "questions": questions} | more
    answer = client.post("/v1/decisions", json=body)
    assert answer.status_code == status, answer.text
    return answer.json()


def refused(client: httpx.Client, *questions: Any, status: int = 400, **more: Any) -> str:
    error = decide(client, *questions, status=status, **more)["error"]
    assert error["type"] == "invalid_request_error"
    return str(error["message"])


def system_one(client: httpx.Client, status: int = 200, **more: Any) -> Any:
    body = {"model": "talker", "state": TEXT, "questions": {"q": NOUL}} | more
    answer = client.post("/v1/systemone", json=body)
    assert answer.status_code == status, answer.text
    return answer.json()


def test_answers_come_in_the_order_of_the_questions_with_their_names(client: httpx.Client) -> None:
    found = decide(client, SCORE | {"name": "s"}, PREDICATE, CHOICE | {"name": "c"})
    Decision.model_validate(found, strict=True)
    assert found["model"] == "talker"
    kinds = [(answer["type"], answer["name"]) for answer in found["answers"]]
    assert kinds == [("score", "s"), ("predicate", None), ("choice", "c")]


def test_probabilities_add_to_one(client: httpx.Client) -> None:
    predicate, choice, score = decide(client, PREDICATE, CHOICE, SCORE)["answers"]
    assert 0 <= predicate["probability"] <= 1
    for answer in (choice, score):
        shares = [each["probability"] for each in answer["probabilities"]]
        assert sum(shares) == pytest.approx(1)
        assert answer["confidence"] == pytest.approx(2 * max(shares) - 1)
    assert score["score"] == pytest.approx(score["probabilities"][1]["probability"])
    levels = [(each["value"], each["label"]) for each in score["probabilities"]]
    assert levels == [(0, "low"), (1, "high")]


def test_the_most_probable_value_is_chosen(client: httpx.Client) -> None:
    [answer] = decide(client, CHOICE)["answers"]
    shares = {each["value"]: each["probability"] for each in answer["probabilities"]}
    assert answer["choice"] == max(shares, key=lambda value: shares[value])


def test_values_keep_their_types(client: httpx.Client) -> None:
    values: list[Any] = [True, "true", "Hello"]
    [answer] = decide(client, CHOICE | {"choices": [{"value": v} for v in values]})["answers"]
    assert [each["value"] for each in answer["probabilities"]] == values


def test_questions_may_have_the_same_name_or_none(client: httpx.Client) -> None:
    found = decide(client, PREDICATE | {"name": "a"}, CHOICE | {"name": "a"}, PREDICATE)["answers"]
    kinds = [(each["type"], each["name"]) for each in found]
    assert kinds == [("predicate", "a"), ("choice", "a"), ("predicate", None)]


def test_usage_counts_the_input_once(client: httpx.Client) -> None:
    text = "The shop is shut and the light is out. " * 5
    one = decide(client, PREDICATE, input=text)["usage"]
    two = decide(client, PREDICATE, PREDICATE, input=text)["usage"]
    assert two["input_tokens"] < 2 * one["input_tokens"] - 50
    assert two["total_tokens"] == two["input_tokens"]
    assert two["output_tokens"] == 0
    assert two["input_tokens_details"]["cached_tokens"] > 50


ITEMS: dict[str, list[dict[str, Any]]] = {
    "messages": [
        {"role": "system", "content": "Be kind."},
        {"role": "user", "content": [{"type": "input_text", "text": "I was charged twice."}]},
    ],
    "an answer": [
        {"role": "user", "content": "Hi"},
        {"role": "assistant", "content": [{"type": "output_text", "text": "Hello"}]},
    ],
    "JSON": [{"role": "user", "content": [{"type": "input_json", "data": {"a": [1, None]}}]}],
    "a function": [
        {"type": "function_call", "call_id": "1", "name": "find", "arguments": "{}"},
        {"type": "function_call_output", "call_id": "1", "output": "nothing"},
    ],
    "a custom tool": [
        {"type": "custom_tool_call", "call_id": "1", "name": "shell", "input": "ls"},
        {"type": "custom_tool_call_output", "call_id": "1", "output": "a b"},
    ],
}  # fmt: skip


@pytest.mark.parametrize("items", ITEMS.values(), ids=ITEMS)
def test_an_input_may_have_items_of_responses(client: httpx.Client, items: list[Any]) -> None:
    assert len(decide(client, PREDICATE, input=items)["answers"]) == 1


def test_labels_of_requests_change_nothing(client: httpx.Client) -> None:
    more: dict[str, Any] = {"prompt_cache_key": "a", "prompt_cache_options": {"ttl": "30m"}}
    found = decide(client, CHOICE, safety_identifier="x", **more)
    assert found["answers"] == decide(client, CHOICE)["answers"]


@pytest.mark.parametrize(
    ("question", "message"),
    [
        (CHOICE | {"choices": []}, "questions[0].choices must be 2 to 255, not 0"),
        (CHOICE | {"choices": [{"value": "a"}] * 2}, "questions[0].choices: 'a' is there twice"),
        (SCORE | {"levels": [{"label": "a"}]}, "questions[0].levels must be 2 to 255, not 1"),
        (PREDICATE | {"instructions": " "}, "questions[0].instructions is empty"),
        (PREDICATE | {"instructions": [{"type": "input_file"}]}, "questions[0].instructions[0]"),
        (PREDICATE | {"instructions": 5}, "questions[0].instructions"),
        ({"type": "text", "instructions": "x"}, "questions[0].type"),
        ({"instructions": "x"}, "questions[0]"),
    ],
)
def test_a_wrong_question_is_named(client: httpx.Client, question: Any, message: str) -> None:
    assert message in refused(client, question)


def test_an_image_belongs_to_the_input(client: httpx.Client) -> None:
    parts = [{"type": "input_image", "image_url": "data:image/png;base64,aGk="}]
    assert "images belong to the input" in refused(client, PREDICATE | {"instructions": parts})
    message = refused(client, PREDICATE, input=[{"role": "user", "content": parts}])
    assert message == '"talker" does not support images'


def test_too_many_questions_and_too_long_ones_are_refused(client: httpx.Client) -> None:
    assert "1 to 400 can be asked at once, not 401" in refused(client, *[PREDICATE] * 401)
    assert "not 0" in refused(client)
    message = refused(client, PREDICATE, PREDICATE | {"instructions": "why " * 3000})
    assert message.startswith("questions[1]")


def test_an_embedding_model_decides_nothing(client: httpx.Client) -> None:
    assert "does not support generate" in refused(client, PREDICATE, model="embedder")


def test_system_one_answers_by_name(client: httpx.Client) -> None:
    questions = {"so": NOUL, "team": TEAM, "urgency": URGENCY}
    found = system_one(client, questions=questions)
    assert [*found] == ["model", "answers", "usage"]
    so, team, urgency = (found["answers"][name] for name in questions)
    assert 0 <= so["noul"] <= 1
    assert [*team["probabilities"]] == ["billing", "other"]
    assert team["choice"] in team["probabilities"]
    assert urgency["legend"] == {"0": "no", "1": "soon", "2": "now"}
    expected = sum(int(level) * share for level, share in urgency["probabilities"].items())
    assert urgency["score"] == pytest.approx(expected)
    assert found["usage"] == {"input_tokens": found["usage"]["input_tokens"], "output_tokens": 0}


def test_a_state_may_be_json(client: httpx.Client) -> None:
    found = system_one(client, state={"ticket": ["a", 1]}, questions={"q": NOUL})
    assert found["usage"]["input_tokens"] > 10


def test_a_state_may_be_nothing(client: httpx.Client) -> None:
    found = system_one(client, state=None)
    with_text = system_one(client)
    assert found["answers"].keys() == {"q"}
    assert 0 < found["usage"]["input_tokens"] < with_text["usage"]["input_tokens"]


@pytest.mark.parametrize(
    ("more", "message"),
    [
        ({"questions": {}}, "questions: 1 to 400 can be asked at once, not 0"),
        ({"questions": {"x": TEAM | {"criteria": {"a": None}}}}, "questions.x.criteria must be"),
        ({"questions": {"x": URGENCY | {"criteria": ["a", "a"]}}}, "questions.x.criteria: 'a'"),
        ({"questions": {"x": NOUL | {"criteria": {"maybe": "?"}}}}, "true and false, nothing else"),
        ({"questions": {"q": NOUL, "x": NOUL | {"criteria": []}}}, "questions.x.criteria must be"),
        ({"questions": {"q": NOUL, "x": {"type": "noul"}}}, "questions.x.instructions is missing"),
        ({"questions": {"q": NOUL, "x": NOUL | {"type": "maybe"}}}, "questions.x.type: Invalid"),
        ({"questions": {"q": NOUL, "x": "Is it so?"}}, "questions.x must be an object"),
        ({"state": " "}, "state is empty"),
        ({"stream": True}, "stream: decisions are not streamed"),
        ({"assets": {"a": {}}}, "assets are not supported"),
    ],
)
def test_system_one_errors_have_ollama_s_form(
    client: httpx.Client, more: dict[str, Any], message: str
) -> None:
    assert message in system_one(client, status=400, **more)["error"]
