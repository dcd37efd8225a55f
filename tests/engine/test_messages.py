"""Results of chats in the next call: the model's message, ids of calls, objects of a class."""

from __future__ import annotations

import asyncio
import json
import re
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from pydantic import BaseModel, Field, field_validator
from support.scripted import write_scripted

from tampu import Done, Engine, TextDelta, Usage
from tampu.chat.output import chat_format
from tampu.engine.events import ToolCallStarted
from tampu.engine.output import OutputParser
from tampu.errors import GrammarError, OutputFormatError

SHOWN = (
    "{% for m in messages %}{{ m.role }}:{{ m.reasoning_content }}|{{ m.content }}"
    "{% for c in m.tool_calls or [] %}{{ c.id }} {{ c.function.name }} "
    "{{ c.function.arguments | tojson }}{% endfor %}{{ m.tool_call_id }};{% endfor %}"
)
OPENS_CALL = "{% if tools and messages[-1].role != 'tool' %}<tool_call>{% endif %}"
HERMES = ["<tool_call>", '{"name": "f", ', '"arguments": {"x": 1}}', "</tool_call>"]
MISTRAL = ["[TOOL_CALLS]", '[{"name": "f", ', '"arguments": {"x": 1}}]']
STRICT = "{% if false %}[TOOL_CALLS]{% endif %}" + (
    "{% for m in messages %}{% for c in m.tool_calls or [] %}{% if c.id | length != 9 %}"
    "{{ raise_exception('Tool call IDs should be alphanumeric strings with length 9!') }}"
    "{% endif %}{% endfor %}{% endfor %}"
)
THINKS = "{% if false %}</think>{% endif %}<think>"
PERSON = ['{"name": "Ann", "age": 31}', "."]
REASONS = ["Let", " me", "</think>", "Yes"]
TOOLS = [{"type": "function", "function": {"name": "f", "parameters": {"type": "object"}}}]
USER = [{"role": "user", "content": "x"}]
GREEDY: dict[str, Any] = {"temperature": 0.0, "max_tokens": 60}

Load = Callable[..., AbstractContextManager[Engine]]


@pytest.fixture
def load(tmp_path: Path) -> Load:
    def loaded(script: Sequence[str], template: str) -> AbstractContextManager[Engine]:
        path = write_scripted(tmp_path / "m.gguf", script, template=template, context=1024)
        return Engine.load(path, context=1024, threads=1)

    return loaded


def shown(engine: Engine, messages: Sequence[dict[str, Any]]) -> str:
    """Return the prompt of a conversation as the template writes it."""
    ids = engine.chat_prompt(messages)
    return engine.detokenize([one for one in ids if isinstance(one, int)])


def test_the_models_message_is_one_of_the_next_call(load: Load) -> None:
    with load(REASONS, SHOWN + THINKS) as engine:
        done = engine.chat(USER, **GREEDY)
        assert done.message == {
            "role": "assistant", "content": "Yes", "reasoning_content": "Let me",
        }  # fmt: skip
        saved = json.loads(json.dumps(done.message))
        for message in (done.message, saved):
            assert "assistant:Let me|Yes;" in shown(engine, [*USER, message, *USER])


def test_a_message_with_calls_and_their_results_are_in_the_next_prompt(load: Load) -> None:
    with load(HERMES, SHOWN + OPENS_CALL) as engine:
        done = engine.chat(USER, tools=TOOLS, **GREEDY)
        [call] = done.tool_calls
        assert done.reason == "tool_calls"
        assert call.id
        result = {"role": "tool", "content": "5", "tool_call_id": call.id}
        expected = f'assistant:|{call.id} f {{"x": 1}};tool:|5{call.id};'
        saved = json.loads(json.dumps(done.message))
        for message in (done.message, saved):
            assert expected in shown(engine, [*USER, message, result])


def test_calls_have_ids_of_their_own(load: Load) -> None:
    twice = [*HERMES, "\n<tool_call>", '{"arguments": {}, ', '"name": "f"}', "</tool_call> "]
    with load(twice, SHOWN + OPENS_CALL) as engine:
        calls = engine.chat(USER, tools=TOOLS, **GREEDY).tool_calls
        assert len({call.id for call in calls}) == len(calls) == 2
        assert all(re.fullmatch("call_[0-9a-f]{8}", call.id or "") for call in calls)


def test_arguments_may_be_json_as_openai_sends_them(load: Load) -> None:
    calls = [{"id": "a", "function": {"name": "f", "arguments": '{"x": 1}'}}]
    with load(HERMES, SHOWN) as engine:
        message = {"role": "assistant", "content": None, "tool_calls": calls}
        assert 'a f {"x": 1};' in shown(engine, [*USER, message])
    assert calls[0]["function"] == {"name": "f", "arguments": '{"x": 1}'}


def test_models_of_mistral_get_ids_of_nine_characters(load: Load) -> None:
    with load(MISTRAL, STRICT + SHOWN) as engine:
        done = engine.chat(USER, tools=TOOLS, **GREEDY)
        [call] = done.tool_calls
        assert re.fullmatch("[0-9a-zA-Z]{9}", call.id or "")
        result = {"role": "tool", "content": "5", "tool_call_id": call.id}
        assert f"tool:|5{call.id};" in shown(engine, [*USER, done.message, result])


def test_calls_that_are_streamed_have_such_ids_too() -> None:
    output = OutputParser(chat_format(STRICT).parser(TOOLS, streams_calls=True))
    events = [event for piece in MISTRAL for event in output.feed(TextDelta(piece, (1,)))] + [
        *output.feed(Done("stop", Usage()))
    ]
    [started] = [event for event in events if isinstance(event, ToolCallStarted)]
    assert re.fullmatch("[0-9a-zA-Z]{9}", started.id)


class Person(BaseModel):
    """What the schema below says of a person."""

    name: str = Field(pattern="^[AB]nn$")
    age: int = Field(ge=30, le=39)


class Refused(Person):
    """A person whom its own code refuses, which no schema says."""

    @field_validator("age")
    @classmethod
    def check(cls, age: int) -> int:
        """Refuse every age."""
        raise ValueError(f"{age} is never right")


def ways(engine: Engine) -> list[Callable[..., Any]]:
    """Return the methods that write a whole output, as functions of options."""
    return [
        partial(engine.chat, USER),
        partial(engine.generate, "x"),
        lambda **options: asyncio.run(engine.achat(USER, **options)),
        lambda **options: asyncio.run(engine.agenerate("x", **options)),
    ]


def test_the_output_of_a_class_is_an_object_of_it(load: Load) -> None:
    with load(PERSON, SHOWN) as engine:
        for ask in ways(engine):
            done = ask(format=Person, **GREEDY)
            assert done.parsed == Person(name="Ann", age=31)
        assert engine.chat(USER, format=Person.model_json_schema(), **GREEDY).parsed is None
        assert engine.chat(USER, **GREEDY).parsed is None


def test_an_output_that_is_cut_is_there_as_text(load: Load) -> None:
    with load(REASONS, SHOWN) as engine:  # the grammar leaves it only white space
        done = engine.chat(USER, format=Person, **GREEDY)
        assert done.text.startswith("{")
        with pytest.raises(OutputFormatError, match=r"ended \(length\) inside Person: raise max_t"):
            _ = done.parsed


def test_an_output_that_the_class_refuses_is_there_as_text(load: Load) -> None:
    with load(PERSON, SHOWN) as engine:
        done = engine.chat(USER, format=Refused, **GREEDY)
        assert done.text == PERSON[0]
        with pytest.raises(OutputFormatError, match=r"not a Refused: .* is never right"):
            _ = done.parsed


def test_calls_in_place_of_an_output_leave_nothing_to_parse(load: Load) -> None:
    with load(HERMES, SHOWN + OPENS_CALL) as engine:
        done = engine.chat(USER, tools=TOOLS, **GREEDY)
        assert done.reason == "tool_calls"
        assert done.parsed is None


def test_a_class_without_a_schema_is_an_error_of_the_format(load: Load) -> None:
    class Opaque(BaseModel):
        model_config = {"arbitrary_types_allowed": True}
        held: Engine

    with load(REASONS, SHOWN) as engine, pytest.raises(GrammarError, match="Opaque has no JSON"):
        engine.chat(USER, format=Opaque, **GREEDY)
