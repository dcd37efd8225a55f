"""Ids of tool calls for models of Mistral, whatever ids the clients have."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tampu.chat.call_ids import nine_characters, with_nine_characters
from tampu.chat.messages import tool_call
from tampu.chat.segments import text_of
from tampu.chat.template import ChatTemplate

NAMES = "{% if false %}[TOOL_CALLS]{% endif %}"
IDS = (
    "{% for m in messages %}{% for c in m.tool_calls or [] %}{{ c.id }} {% endfor %}"
    "{{ m.tool_call_id }},{% endfor %}"
)
QUESTION = {"role": "user", "content": "q"}


def conversation(calls: Sequence[str | None], results: Sequence[str | None]) -> list[Any]:
    written = [tool_call(id, "f", {}) for id in calls]
    answers = [{"role": "tool", "content": "r", "tool_call_id": id} for id in results]
    return [QUESTION, {"role": "assistant", "content": "", "tool_calls": written}, *answers]


@given(st.text())
def test_any_id_becomes_one_of_nine_letters_and_digits(id: str) -> None:
    found = nine_characters(id)
    assert re.fullmatch("[a-zA-Z0-9]{9}", found)
    assert nine_characters(found) == found


@pytest.mark.parametrize(
    ("calls", "results"),
    [
        (["abcDEF123"], ["abcDEF123"]),
        (["call_0123456789", "b"], ["b", "call_0123456789"]),
        ([None, None], [None, None]),
        (["call_1", None], ["call_1", None]),
        (["call_1", "call_2"], ["call_2", None]),
    ],
)
def test_results_have_the_ids_of_their_calls(
    calls: list[str | None], results: list[str | None]
) -> None:
    given = conversation(calls, results)
    _, answer, *answers = with_nine_characters(given)
    called = [call["id"] for call in answer["tool_calls"]]
    told = [message["tool_call_id"] for message in answers]
    assert len(set(called)) == len(calls)
    assert sorted(told) == sorted(called)
    named = {id: new for id, new in zip(calls, called, strict=True) if id}
    assert all(new == named[id] for id, new in zip(results, told, strict=True) if id)
    assert given == conversation(calls, results)  # as it was


def test_only_templates_of_mistral_get_other_ids() -> None:
    messages = conversation(["call_1"], ["call_1"])
    plain, nine = (
        text_of(ChatTemplate(source).render(messages, bos_token="", eos_token=""))
        for source in (IDS, NAMES + IDS)
    )
    assert plain == ",call_1 ,call_1,"
    assert re.fullmatch(r",(\w{9}) ,\1,", nine)


def test_a_result_of_no_call_has_no_id() -> None:
    [message] = with_nine_characters([{"role": "tool", "content": "r"}])
    assert "tool_call_id" not in message
