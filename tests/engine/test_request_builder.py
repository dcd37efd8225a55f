"""Chats through `Engine`: content, reasoning and tool calls apart; a think budget holds."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from support.scripted import write_scripted

from tampu import Done, Engine, ReasoningDelta, TextDelta, ToolCall
from tampu.store import ModelName
from tampu.store.create import CreateSpec, create
from tampu.store.library import Library
from tampu.store.modelfile import parse_modelfile

TEMPLATE = "{% for m in messages %}{{ m.content }}{% endfor %}{% if tools %}<tool_call>{% endif %}"
THINKS = TEMPLATE + (
    "{% if enable_thinking is not defined or enable_thinking %}<think>"
    "{% else %}<think></think>{% endif %}"
)
REASONS = ["Let", " me", " see", ".", "</think>", "Yes"]
CALLS = ["<tool_call>", '{"name": "f", ', '"arguments": {"x": 1}}', "</tool_call>"]
TOOLS = [{"type": "function", "function": {"name": "f", "parameters": {"type": "object"}}}]
USER = [{"role": "user", "content": "x"}]
GREEDY: dict[str, Any] = {"temperature": 0.0, "max_tokens": 40}
SMALL: dict[str, Any] = {"context": 128, "threads": 1}


@contextmanager
def scripted(path: Path, script: Sequence[str], template: str) -> Iterator[Engine]:
    with Engine.load(write_scripted(path, script, template=template), **SMALL) as engine:
        # Its threads are there before the first test begins.
        engine.generate("a", max_tokens=1, format={"enum": ["a"]})
        yield engine


@pytest.fixture(scope="module")
def thinker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Engine]:
    path = tmp_path_factory.mktemp("thinker") / "m.gguf"
    with scripted(path, REASONS, THINKS) as engine:
        yield engine


@pytest.fixture(scope="module")
def caller(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Engine]:
    path = tmp_path_factory.mktemp("caller") / "m.gguf"
    with scripted(path, CALLS, TEMPLATE) as engine:
        yield engine


def test_reasoning_is_separated_from_the_text(thinker: Engine) -> None:
    found = thinker.chat(USER, **GREEDY)
    assert (found.reasoning, found.text, found.tool_calls) == ("Let me see.", "Yes", [])
    assert len(found.tokens) == found.usage.generated_tokens - 1 == len(REASONS)


def test_a_stream_has_deltas_of_each_kind(thinker: Engine, caller: Engine) -> None:
    *deltas, done = thinker.stream_chat(USER, **GREEDY)
    assert isinstance(done, Done)
    assert (
        "".join(each.text for each in deltas if isinstance(each, ReasoningDelta)) == "Let me see."
    )
    assert "".join(each.text for each in deltas if isinstance(each, TextDelta)) == "Yes"
    events = [*caller.stream_chat(USER, tools=TOOLS, **GREEDY)]
    [call] = [each for each in events if isinstance(each, ToolCall)]
    assert call == ToolCall("f", {"x": 1}, call.id)
    assert isinstance(events[-1], Done)
    assert events[-1].reason == "tool_calls"


def test_tool_calls_are_separated_from_the_text(caller: Engine) -> None:
    found = caller.chat(USER, tools=TOOLS, **GREEDY)
    [call] = found.tool_calls
    assert (found.text, call) == ("", ToolCall("f", {"x": 1}, call.id))
    assert caller.chat(USER, **GREEDY).text == "".join(CALLS)


def test_logprobs_are_those_of_every_token(thinker: Engine) -> None:
    found = thinker.chat(USER, logprobs=True, **GREEDY)
    assert [entry.token for entry in found.logprobs] == found.tokens


@pytest.mark.parametrize("budget", [1, 3])
def test_a_think_budget_holds_in_a_chat(thinker: Engine, budget: int) -> None:
    found = thinker.chat(USER, think_budget=budget, **GREEDY)
    assert found.reasoning == "".join(REASONS[:budget])
    assert found.text.endswith("Yes")


def test_a_think_budget_holds_in_an_asynchronous_chat(thinker: Engine) -> None:
    found = asyncio.run(thinker.achat(USER, think_budget=1, **GREEDY))
    assert found.reasoning == "Let"


def test_a_think_budget_holds_in_a_continuation(thinker: Engine) -> None:
    for prompt in ("x<think>", thinker.tokenize("x<think>")):
        assert thinker.generate(prompt, **GREEDY).text == "Let me see.</think>Yes"
        text = thinker.generate(prompt, think_budget=1, **GREEDY).text
        assert text.startswith("Let</think>")
    assert thinker.generate("x", think_budget=1, **GREEDY).text == "Let me see.</think>Yes"


def test_a_chat_without_reasoning_has_none(thinker: Engine) -> None:
    found = thinker.chat(USER, think=False, **GREEDY)
    assert (found.reasoning, found.text) == ("", "Let me see.</think>Yes")


def test_a_format_applies_after_the_reasoning(thinker: Engine) -> None:
    found = thinker.chat(USER, format={"enum": ["Yes"]}, **GREEDY)
    assert (found.reasoning, found.text) == ("Let me see.", '"Yes"')


def test_a_modelfiles_think_budget_holds(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.setenv("TAMPU_MODELS", str(tmp_path / "models"))
    write_scripted(tmp_path / "m.gguf", REASONS, template=THINKS)
    modelfile = parse_modelfile("FROM m.gguf\nPARAMETER think_budget 2")
    spec = CreateSpec(modelfile=modelfile, folder=tmp_path)
    create(Library(tmp_path / "models"), ModelName.parse("mine"), spec)
    with Engine.load("mine", **SMALL) as engine:
        assert engine.chat(USER, **GREEDY).reasoning == "Let me"
        assert engine.chat(USER, think_budget=1, **GREEDY).reasoning == "Let"
