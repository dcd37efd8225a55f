"""`POST /v1/responses`, statement by statement. Each field alone: test_fields_of_openai.py."""

from __future__ import annotations

import json
from itertools import groupby
from typing import Any

import httpx
import pytest
from openai.types.responses import Response, ResponseStreamEvent
from pydantic import TypeAdapter
from support.sse import named_of

from tampu.engine.prompts import ChatPrompt
from tests.server.conftest import Site

pytestmark = pytest.mark.server

PATH = "/v1/responses"
NUMBERS = {"type": "object", "properties": {"a": {"type": "integer"}, "b": {"type": "integer"}}}
TOOLS = [{"type": "function", "name": name, "parameters": NUMBERS} for name in ("add", "sub")]
EVENT = TypeAdapter(ResponseStreamEvent)
BEGINNING = ["response.created", "response.in_progress"]
THOUGHT = [
    "response.output_item.added", "response.reasoning_summary_part.added",
    "response.reasoning_summary_text.delta", "response.reasoning_summary_text.done",
    "response.reasoning_summary_part.done", "response.output_item.done",
]  # fmt: skip
MESSAGE = [
    "response.output_item.added", "response.content_part.added", "response.output_text.delta",
    "response.output_text.done", "response.content_part.done", "response.output_item.done",
]  # fmt: skip
CALL = [
    "response.output_item.added",
    "response.function_call_arguments.delta",
    "response.function_call_arguments.done",
    "response.output_item.done",
]


def ask(client: httpx.Client, status: int = 200, **more: Any) -> httpx.Response:
    body = {"model": "talker", "input": "x", "temperature": 0} | more
    response = client.post(PATH, json=body)
    assert response.status_code == status, response.text
    return response


def whole(client: httpx.Client, **more: Any) -> Any:
    """Return the response; the package's own model finds nothing wrong with it."""
    answer = ask(client, **more).json()
    Response.model_validate(answer)
    return answer


def stream(client: httpx.Client, **more: Any) -> list[Any]:
    """Return the events; the package's own models find nothing wrong with them."""
    events = named_of(ask(client, stream=True, **more))
    for event in events:
        EVENT.validate_python(event)
    return events


def kinds(events: list[Any]) -> list[Any]:
    """Return the types of events in their order; several of one type that follow count once."""
    return [kind for kind, _ in groupby(event["type"] for event in events)]


@pytest.mark.parametrize(
    ("more", "expected"),
    [
        ({}, [*BEGINNING, *MESSAGE, "response.completed"]),
        ({"model": "thinker"}, [*BEGINNING, *THOUGHT, *MESSAGE, "response.completed"]),
        ({"model": "caller", "tools": TOOLS},
         [*BEGINNING, *THOUGHT, *MESSAGE, *CALL, "response.completed"]),
        ({"model": "pair", "tools": TOOLS}, [*BEGINNING, *CALL, *CALL, "response.completed"]),
        ({"max_output_tokens": 2}, [*BEGINNING, *MESSAGE, "response.incomplete"]),
    ],
    ids=["a message", "a thought", "a call after a message", "two calls", "cut by its length"],
)  # fmt: skip
def test_the_events_of_an_answer_come_in_this_order(
    client: httpx.Client, more: dict[str, Any], expected: list[str]
) -> None:
    events = stream(client, **more)
    assert kinds(events) == expected
    assert [event["sequence_number"] for event in events] == [*range(len(events))]


@pytest.mark.parametrize("model", ["talker", "thinker", "caller", "pair"])
def test_the_last_event_holds_the_answer_without_a_stream(client: httpx.Client, model: str) -> None:
    tools = TOOLS if model in ("caller", "pair") else None
    answer = whole(client, model=model, tools=tools)
    events = stream(client, model=model, tools=tools)
    last = events[-1]["response"]
    done = [event["item"] for event in events if event["type"] == "response.output_item.done"]
    assert last["output"] == done
    for streamed, item in zip(done, answer["output"], strict=True):
        assert streamed.keys() == item.keys()
        names = {"id", "call_id"}
        assert {k: v for k, v in streamed.items() if k not in names} == {
            k: v for k, v in item.items() if k not in names
        }


def test_events_belong_to_their_items(client: httpx.Client) -> None:
    events = stream(client, model="caller", tools=TOOLS)
    for place, group in groupby(
        [event for event in events if "output_index" in event], lambda event: event["output_index"]
    ):
        mine = [*group]
        item = mine[0]["item"]
        assert mine[-1]["item"]["id"] == item["id"]
        assert {event["item_id"] for event in mine[1:-1]} == {item["id"]}
        assert events[-1]["response"]["output"][place]["id"] == item["id"]
        text = "".join(event["delta"] for event in mine if event["type"].endswith(".delta"))
        [told] = [event for event in mine if event["type"].endswith(("_text.done", "ts.done"))]
        assert told.get("text", told.get("arguments")) == text


def test_response_repeats_the_request_and_has_usage(client: httpx.Client) -> None:
    answer = whole(client, metadata={"a": "b"}, instructions="be brief", max_output_tokens=50)
    assert answer["id"].startswith("resp_")
    assert (answer["object"], answer["status"], answer["error"]) == ("response", "completed", None)
    assert answer["metadata"] == {"a": "b"}
    assert answer["instructions"] == "be brief"
    assert answer["max_output_tokens"] == 50
    assert (answer["store"], answer["previous_response_id"]) == (True, None)
    [item] = answer["output"]
    assert item["id"].startswith("msg_")
    assert (item["type"], item["role"], item["status"]) == ("message", "assistant", "completed")
    assert item["content"] == [
        {"type": "output_text", "text": "Hello, world.", "annotations": [], "logprobs": []}
    ]
    usage = answer["usage"]
    assert usage["total_tokens"] == usage["input_tokens"] + usage["output_tokens"]
    assert usage["input_tokens_details"]["cached_tokens"] <= usage["input_tokens"]


def test_items_have_ids_of_their_kind(client: httpx.Client) -> None:
    items = whole(client, model="caller", tools=TOOLS)["output"]
    assert [item["id"].split("_")[0] for item in items] == ["rs", "msg", "fc"]
    assert items[2]["call_id"].startswith("call_")
    assert json.loads(items[2]["arguments"]) == {"b": 2, "a": 1}


def test_reasoning_tokens_are_counted(client: httpx.Client) -> None:
    answer = whole(client, model="thinker")
    assert answer["output"][0]["summary"] == [{"type": "summary_text", "text": "Let me see."}]
    details = answer["usage"]["output_tokens_details"]
    assert 2 <= details["reasoning_tokens"] < answer["usage"]["output_tokens"]


def test_an_answer_cut_by_its_length_is_incomplete(client: httpx.Client) -> None:
    answer = whole(client, max_output_tokens=2)
    assert answer["status"] == "incomplete"
    assert answer["incomplete_details"] == {"reason": "max_output_tokens"}


@pytest.mark.parametrize(
    ("form", "texts"),
    [
        ({"type": "text"}, ["Hello, world."]),
        ({"type": "regex", "regex": "a|b"}, ["a", "b"]),
        ({"type": "choices", "choices": ["yes", "no"]}, ["yes", "no"]),
        ({"type": "json_schema", "name": "x", "schema": {"const": 5}}, ["5"]),
    ],
    ids=["text", "regex", "choices", "json_schema"],
)
def test_answer_follows_the_requested_format(
    client: httpx.Client, form: dict[str, Any], texts: list[str]
) -> None:
    [item] = ask(client, text={"format": form}).json()["output"]
    assert item["content"][0]["text"] in texts


@pytest.mark.parametrize(
    "form", [{"type": "json_schema"}, {"type": "regex"}, {"type": 5}, {}, "text", {"type": "xml"}]
)
def test_invalid_format_is_refused_by_its_name(
    client: httpx.Client, form: dict[str, Any] | str
) -> None:
    assert "format" in ask(client, 400, text={"format": form}).json()["error"]["message"]


def test_stream_has_no_done_marker(client: httpx.Client) -> None:
    assert b"[DONE]" not in ask(client, stream=True).content


def test_an_input_too_long_is_refused_unless_it_may_be_cut(client: httpx.Client) -> None:
    turns = [{"role": "user", "content": "long " * 40}] * 9
    for more in ({}, {"stream": True}):
        error = ask(client, 400, input=turns, **more).json()["error"]
        assert "context" in error["message"]
    assert whole(client, input=turns, truncation="auto")["status"] == "completed"


def asked(site: Site, **more: Any) -> list[Any]:
    """Return the messages that reach the template."""
    [response] = site.call(("POST", PATH, {"json": {"model": "thinker"} | more}))
    assert response.status_code == 200, response.text
    prompt, _ = site.start.runners[0][1].requests[-1]
    assert isinstance(prompt, ChatPrompt)
    return [*prompt.messages]


USER = {"role": "user", "content": "x"}
CALLED = {"type": "function_call", "call_id": "c1", "name": "add", "arguments": '{"a": 1}'}
TOLD = {
    "role": "assistant", "content": "",
    "tool_calls": [{"type": "function", "id": "c1", "function": {"name": "add",
                                                                "arguments": {"a": 1}}}],
}  # fmt: skip


@pytest.mark.parametrize(
    ("items", "expected"),
    [
        ("x", [USER]),
        ([USER], [USER]),
        ([{"type": "message"} | USER], [USER]),
        ([{"role": "user", "content": [{"type": "input_text", "text": "x"}]}], [USER]),
        ([{"role": "developer", "content": "rules"}, USER],
         [{"role": "system", "content": "rules"}, USER]),
        ([{"type": "message", "role": "assistant", "id": "msg_1", "status": "completed",
           "content": [{"type": "output_text", "text": "y", "annotations": []}]}, USER],
         [{"role": "assistant", "content": "y"}, USER]),
        ([CALLED, {"type": "function_call_output", "call_id": "c1", "output": "5"}, USER],
         [TOLD, {"role": "tool", "tool_call_id": "c1", "content": "5"}, USER]),
        ([CALLED, {"type": "function_call_output", "call_id": "c1",
                   "output": [{"type": "input_text", "text": "5"}]}, USER],
         [TOLD, {"role": "tool", "tool_call_id": "c1", "content": "5"}, USER]),
        ([{"type": "reasoning", "id": "rs_1", "encrypted_content": None,
           "summary": [{"type": "summary_text", "text": "hm"}]}, CALLED, USER],
         [TOLD | {"reasoning_content": "hm"}, USER]),
    ],
    ids=["a text", "a message", "a message by its type", "parts", "developer", "an answer",
         "a call and its output", "an output of parts", "a thought before a call"],
)  # fmt: skip
def test_an_input_reaches_the_template_as(
    site: Site, items: str | list[Any], expected: list[Any]
) -> None:
    assert asked(site, input=items) == expected


@pytest.mark.parametrize(
    ("item", "told"),
    [
        ({"type": "web_search_call", "id": "x"}, "web_search_call"),
        ({"type": "item_reference"}, "item_reference needs an id"),
        ({"type": "custom_tool_call", "call_id": "x"}, "custom_tool_call"),
        ({"role": "user", "content": [{"type": "input_file", "file_id": "x"}]}, "input_file"),
        ({"role": "user", "content": [{"type": "input_image", "file_id": "x"}]}, "input_image"),
        ({"type": "message"}, "role"),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_an_item_that_cannot_be_read_is_refused_at_its_place(
    client: httpx.Client, item: dict[str, Any], told: str
) -> None:
    error = ask(client, 400, input=[USER, item]).json()["error"]
    assert told in error["message"]
    assert "input[1]" in error["message"]
