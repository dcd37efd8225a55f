"""Answers that must call a tool do so in every format, whatever the model would rather say."""

from __future__ import annotations

import functools
import re
from collections.abc import Iterator
from itertools import product
from typing import Any

import jsonschema
import pytest
from support import nonsense
from support.fork_server import FORK_SERVER
from support.vocabularies import CONTROL, USER_DEFINED, byte_level

from tampu.chat.output import Content, Reasoning, ToolCall
from tampu.chat.output.message_parser import ChatFormat, Tags
from tampu.chat.output.parser_registry import FORMATS
from tampu.chat.output.tool_grammar import after_reasoning, tool_call_grammar, tool_calls_or_content
from tampu.errors import GrammarError, RequestError
from tampu.sampling.constraint import Constraints
from tampu.sampling.grammar import Grammar
from tampu.tokenizer import Tokenizer, load_tokenizer

pytestmark = pytest.mark.server


def tool(name: str, *required: str, **properties: Any) -> dict[Any, Any]:
    schema = {"type": "object", "properties": properties, "required": list(required),
              "additionalProperties": False}  # fmt: skip
    return {"type": "function", "function": {"name": name, "parameters": schema}}


WORD = {"type": "string", "maxLength": 9}
WEATHER = tool("get_weather", "city", city={"enum": ["Cuzco", "Lima"]}, days={"type": "integer"},
               metric={"type": "boolean"})  # fmt: skip
NESTED = tool("book", "guests", guests={"type": "array", "items": {"type": "integer"}},
              room={"type": "object", "properties": {"floor": {"type": "integer"}, "view": {
                  "enum": ["sea", "street"]}}, "required": ["floor"],
                  "additionalProperties": False})  # fmt: skip
NOTHING = {"type": "function", "function": {"name": "stop"}}
TOOLS = [WEATHER, NESTED, NOTHING, tool("optional", a={"type": "integer"}, b={"type": "null"})]
TEXT_ENDS = {
    "qwen3-coder": "</parameter>",
    "seed-oss": "</parameter>",
    "glm": "</arg_value>",
    "deepseek-dsml": "</｜DSML｜parameter>",
    "minimax": "</parameter>",
    "gemma4": '<|"|>',
    "functiongemma": "<escape>",
}
STYLES = {style.name: style for _, style in FORMATS}
KINDS = {"control": CONTROL, "text": USER_DEFINED}


@functools.cache
def tokenizer(name: str, kind: Any) -> Tokenizer:
    style = STYLES[name]
    tags = (style.reasoning.begin, style.reasoning.end) if style.reasoning else ()
    markers = sorted({marker for marker in (*style.markers, *tags) if marker.startswith(("<", "["))
                      and "\n" not in marker and marker.count("<|") < 2})  # fmt: skip
    types = dict.fromkeys(markers, KINDS[kind])
    types |= dict.fromkeys(("<|return|>", "<|call|>", "<eos>"), CONTROL)
    return load_tokenizer(byte_level(*types, types=types, eos_token_id=256 + len(types) - 1))


QUICK = [(name, "control") for name in ("harmony", "gemma4", "qwen3-coder", "hermes", "pythonic")]
SLOW = [
    pytest.param(each, marks=pytest.mark.slow)
    for each in product(STYLES, ("control", "text"))
    if each not in QUICK
]


@pytest.fixture(scope="module", params=[*QUICK, *SLOW])
def model(request: pytest.FixtureRequest) -> Iterator[tuple[ChatFormat, Any, Constraints]]:
    name, kind = request.param
    vocabulary = tokenizer(name, kind)
    constraints = Constraints(vocabulary, FORK_SERVER)
    yield STYLES[name], vocabulary, constraints
    constraints.close()


@pytest.fixture(autouse=True)
def no_threads_left() -> None:
    """The worker thread is the module's."""


def answers(
    model: tuple[ChatFormat, Any, Constraints],
    grammar: Grammar,
    count: int = 4,
    endings: list[Any] | tuple[()] = (),
) -> Iterator[str]:
    style, vocabulary, constraints = model
    for seed in range(count):
        constraint = constraints.compile(grammar)
        yield nonsense.answer(constraint, vocabulary, seed, style.markers, endings)


def parts(style: ChatFormat, text: str, *, thinks: bool = False) -> list[Any]:
    parser = style.parser(TOOLS, in_reasoning=thinks)
    return [*parser.feed(text), *parser.finish()]


def test_every_answer_is_calls_whose_arguments_follow_their_schemas(
    model: tuple[ChatFormat, Any, Constraints],
) -> None:
    style, vocabulary, _ = model
    tokens = vocabulary.control_tokens(style.markers)
    schemas = {item["function"]["name"]: item["function"].get("parameters", {"maxProperties": 0})
               for item in TOOLS}  # fmt: skip
    for text in answers(model, tool_call_grammar(style, TOOLS, tokens, reasoning="no")):
        calls = parts(style, text)
        assert calls, text
        for call in calls:
            assert isinstance(call, ToolCall), text
            jsonschema.validate(call.arguments, schemas[call.name])


def test_parameters_may_be_references_without_types_and_have_large_integers(
    model: tuple[ChatFormat, Any, Constraints],
) -> None:
    style, vocabulary, _ = model
    tokens = vocabulary.control_tokens(style.markers)
    point = {"properties": {"x": {"type": "integer"}}, "required": ["x"],
             "additionalProperties": False}  # fmt: skip
    given = tool("draw", "at", "color", "id", "size", at={"$ref": "#/$defs/Point"},
                 color={"$ref": "#/$defs/Color"}, id={"enum": [2**60 + 1, -(2**70)]},
                 size={"items": {"type": "boolean"}, "maxItems": 1})  # fmt: skip
    parameters = given["function"]["parameters"]
    parameters["$defs"] = {"Point": point, "Color": {"type": "string", "enum": ["red", "blue"]}}
    grammar = tool_call_grammar(style, [given], tokens, parallel=False, reasoning="no")
    for text in answers(model, grammar, 2):
        parser = style.parser([given], in_reasoning=False)
        [call] = [*parser.feed(text), *parser.finish()]
        assert isinstance(call, ToolCall), text
        jsonschema.validate(call.arguments, parameters)
        assert call.arguments["id"] in (2**60 + 1, -(2**70))


def test_one_tool_can_be_asked_for_and_called_once_only(
    model: tuple[ChatFormat, Any, Constraints],
) -> None:
    style, vocabulary, _ = model
    tokens = vocabulary.control_tokens(style.markers)
    grammar = tool_call_grammar(style, TOOLS, tokens, name="book", parallel=False, reasoning="no")
    for text in answers(model, grammar, 2):
        [call] = parts(style, text)
        assert call.name == "book"


def test_reasoning_may_come_first(model: tuple[ChatFormat, Any, Constraints]) -> None:
    style, vocabulary, _ = model
    tokens = vocabulary.control_tokens(style.markers)
    if style.reasoning is None:
        return
    grammar = tool_call_grammar(style, TOOLS, tokens, parallel=False, reasoning="begun")
    for text in answers(model, grammar, endings=[style.reasoning.end]):
        if style.name != "harmony":
            *thoughts, _ = parts(style, text, thinks=True)
            assert all(isinstance(part, Reasoning | ToolCall) for part in thoughts)


def test_content_after_reasoning_follows_its_grammar(
    model: tuple[ChatFormat, Any, Constraints],
) -> None:
    style, vocabulary, _ = model
    tokens = vocabulary.control_tokens(style.markers)
    for thought in ("no", "may"):
        grammar = after_reasoning(Grammar.choices(["yes", "no"]), style, tokens, thought)
        ends = [style.reasoning.end] if style.reasoning else []
        for text in answers(model, grammar, 2, ends):
            *_, last = parts(style, text)
            assert isinstance(last, Content)
            assert last.text in {"yes", "no"}


def test_content_that_follows_a_grammar_or_calls(
    model: tuple[ChatFormat, Any, Constraints],
) -> None:
    style, vocabulary, _ = model
    tokens = vocabulary.control_tokens(style.markers)
    content = Grammar.choices(["yes", "no"])
    grammar = tool_calls_or_content(content, style, TOOLS, tokens, parallel=False, reasoning="no")
    seen = set()
    for text in answers(model, grammar, 6):
        [part] = parts(style, text)
        seen.add(type(part))
        assert isinstance(part, ToolCall) or (
            isinstance(part, Content) and part.text in {"yes", "no"}
        )
    assert seen


def test_texts_may_contain_any_characters(model: tuple[ChatFormat, Any, Constraints]) -> None:
    style, vocabulary, _ = model
    tokens = vocabulary.control_tokens(style.markers)
    tools = [tool("say", "text", text={"type": "string"}, more=WORD)]
    grammar = tool_call_grammar(style, tools, tokens, parallel=False, reasoning="no")
    endings = [TEXT_ENDS[style.name]] if style.name in TEXT_ENDS else []
    for text in answers(model, grammar, endings=endings):
        [call] = parts(style, text)
        assert isinstance(call, ToolCall), text
        assert isinstance(call.arguments["text"], str)


def test_a_format_that_cannot_be_forced_is_an_error() -> None:
    style = STYLES["hermes"]
    with pytest.raises(RequestError, match="unknown tool 'x'"):
        tool_call_grammar(style, TOOLS, {}, name="x")
    with pytest.raises(RequestError, match="tools: none"):
        tool_call_grammar(style, [], {})
    with pytest.raises(RequestError, match="needs a name"):
        tool_call_grammar(style, [{"function": {}}], {})
    with pytest.raises(GrammarError, match=re.escape("/properties/a/type")):
        tool_call_grammar(style, [tool("f", a={"type": "text"})], {})
    with pytest.raises(RequestError, match="output format has no tool calls"):
        tool_call_grammar(type(style)(name="none", reasoning=Tags("a", "b")), TOOLS, {})
