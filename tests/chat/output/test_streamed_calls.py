"""Calls are passed on while they are written: the name, then the arguments, exactly joined."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tampu.chat.output import (
    Content,
    Part,
    Reasoning,
    ToolCall,
    ToolCallArguments,
    ToolCallEnd,
    ToolCallStart,
    chat_format,
)
from tampu.chat.output.parser_registry import FORMATS

TOOLS = [{"type": "function", "function": {"name": name}} for name in ("f", "g")]
SIGNS = {style.name: " ".join(signs) for signs, style in FORMATS}
SEP = "<｜tool▁sep｜>"
CALL_BEGIN, CALL_END = "<｜tool▁call▁begin｜>", "<｜tool▁call▁end｜>"
# Two calls in the formats whose arguments are JSON; %s stands for the arguments.
JSON_CALLS = {
    "hermes": '<tool_call>\n{"name": "f", "arguments": %s}\n</tool_call>\n'
              '<tool_call>{"name": "g", "arguments": %s}</tool_call>',
    "hermes in one": '<tool_call>[{"name":"f","arguments":%s},\n{"name":"g","arguments":%s}]'
                     "</tool_call>",
    "hermes like OpenAI": '<tool_call>{"id": "1", "type": "function", "function": {"name": "f", '
                          '"arguments": %s}}; {"type": "function", "function": {"name": "g", '
                          '"parameters": %s}}</tool_call>',
    "llama3": '{"name": "f", "parameters": %s}; {"name": "g", "parameters": %s}',
    "llama3 tagged": '<|python_tag|>{"type": "function", "name": "f", "parameters": %s}; '
                     '{"name": "g", "parameters": %s}',
    "granite": '<|tool_call|>[{"name": "f", "arguments": %s}, {"name": "g", "arguments": %s}]',
    "hunyuan": '<tool_calls>[{"name": "f", "arguments": %s}, {"name": "g", "arguments": %s}]'
               "</tool_calls>",
    "mistral": '[TOOL_CALLS][{"name": "f", "arguments": %s, "id": "abc"}, '
               '{"name": "g", "arguments": %s}]',
    "mistral named": "[TOOL_CALLS]f[ARGS]%s[TOOL_CALLS]g[CALL_ID]id9[ARGS]%s",
    "deepseek": f"<｜tool▁calls▁begin｜>{CALL_BEGIN}f{SEP}%s{CALL_END}{CALL_BEGIN}g{SEP}%s"
                f"{CALL_END}<｜tool▁calls▁end｜>",
    "deepseek fenced": f"<｜tool▁calls▁begin｜>{CALL_BEGIN}function{SEP}f\n```json\n%s\n```"
                       f"{CALL_END}\n{CALL_BEGIN}function{SEP}g\n```json\n%s\n```{CALL_END}"
                       "<｜tool▁calls▁end｜>",
    "kimi": "<|tool_calls_section_begin|><|tool_call_begin|>functions.f:0"
            "<|tool_call_argument_begin|>%s<|tool_call_end|><|tool_call_begin|>functions.g:1"
            "<|tool_call_argument_begin|>%s<|tool_call_end|><|tool_calls_section_end|>",
    "command-r": 'Action: ```json\n[{"tool_name": "f", "parameters": %s}, '
                 '{"tool_name": "g", "parameters": %s}]\n```',
    "command-r7b": '<|START_ACTION|>[{"tool_call_id": "0", "tool_name": "f", "parameters": %s}, '
                   '{"tool_call_id": "1", "tool_name": "g", "parameters": %s}]<|END_ACTION|>',
    "harmony": "<|channel|>commentary to=functions.f <|constrain|>json<|message|>%s<|call|>"
               "<|start|>assistant<|channel|>commentary to=functions.g<|message|>%s<|call|>",
}  # fmt: skip
# The call f(a=1, s="x y") where arguments are not JSON, so that it is passed on whole.
OTHER_CALLS = {
    "qwen3-coder": "<tool_call>\n<function=f>\n<parameter=s>\nx y\n</parameter>\n</function>\n"
                   "</tool_call>",
    "seed-oss": "<seed:tool_call>\n<function=f>\n<parameter=s>x y</parameter>\n</function>\n"
                "</seed:tool_call>",
    "glm": "<tool_call>f\n<arg_key>s</arg_key>\n<arg_value>x y</arg_value>\n</tool_call>",
    "deepseek-dsml": '<｜DSML｜function_calls>\n<｜DSML｜invoke name="f">\n<｜DSML｜parameter '
                     'name="s" string="true">x y</｜DSML｜parameter>\n</｜DSML｜invoke>\n'
                     "</｜DSML｜function_calls>",
    "minimax": '<minimax:tool_call>\n<invoke name="f">\n<parameter name="s">x y</parameter>\n'
               "</invoke>\n</minimax:tool_call>",
    "lfm2": "<|tool_call_start|>[f(s='x y')]<|tool_call_end|>",
    "pythonic": "[f(s='x y')]",
    "gemma3": "```tool_code\nf(s='x y')\n```",
    "gemma4": '<|tool_call>call:f{s:<|"|>x y<|"|>}<tool_call|>',
    "functiongemma": "<start_function_call>call:f{s:<escape>x y<escape>}<end_function_call>",
}  # fmt: skip
ARGUMENTS = '{"city": "Zürich \\"HB\\" {[<", "days": [1, 2.5e3, true, null], "o": {"k": {}}}'
EMPTY = "{ }"

values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text() | st.floats(allow_nan=False,
                                                                      allow_infinity=False),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(), inner, max_size=3),
    max_leaves=8,
)  # fmt: skip
objects = st.builds(
    lambda value, escapes, indent: json.dumps(value, ensure_ascii=escapes, indent=indent),
    st.dictionaries(st.text(), values, max_size=4),
    st.booleans(),
    st.sampled_from([None, 2]),
)


@dataclass
class Call:
    name: str
    pieces: list[str] = field(default_factory=list)
    end: ToolCallEnd | None = None

    @property
    def arguments(self) -> str:
        return "".join(self.pieces)


def style_of(name: str) -> Any:
    return chat_format(SIGNS[name.split(" ")[0]])


def parts_of(
    name: str, pieces: Sequence[str], *, streams: bool = True, is_cut: bool = False
) -> list[Part]:
    parser = style_of(name).parser(TOOLS, streams_calls=streams)
    parts = [part for piece in pieces for part in parser.feed(piece)]
    return [*parts, *parser.finish(is_cut=is_cut)]


def streamed(name: str, pieces: Sequence[str], *, is_cut: bool = False) -> tuple[list[Call], str]:
    """Return the calls of an output, and its other text; check the order of the parts."""
    calls: list[Call] = []
    text = ""
    for part in parts_of(name, pieces, is_cut=is_cut):
        is_open = bool(calls) and calls[-1].end is None
        match part:
            case ToolCallStart():
                assert not is_open
                calls.append(Call(part.name))
            case ToolCallArguments():
                assert is_open
                assert part.text
                calls[-1].pieces.append(part.text)
            case ToolCallEnd():
                assert is_open
                calls[-1].end = part
            case Content() | Reasoning():
                text += part.text
            case ToolCall():
                raise AssertionError("a whole call")
    assert not calls or calls[-1].end is not None
    return calls, text


def split(text: str, places: Sequence[int]) -> list[str]:
    cuts = sorted(place % (len(text) + 1) for place in places)
    return [text[a:b] for a, b in pairwise([0, *cuts, len(text)])]


@given(st.sampled_from([*JSON_CALLS]), objects, objects, st.lists(st.integers(0), max_size=20))
def test_joined_fragments_are_the_arguments_as_written_for_any_split(
    name: str, first: str, second: str, places: list[int]
) -> None:
    text = JSON_CALLS[name] % (first, second)
    calls, rest = streamed(name, split(text, places))
    assert [(call.name, call.arguments) for call in calls] == [("f", first), ("g", second)]
    assert [call.end for call in calls] == [ToolCallEnd(), ToolCallEnd()]
    assert rest == ""
    characters, rest = streamed(name, text)
    assert [(call.name, call.arguments) for call in characters] == [("f", first), ("g", second)]


@pytest.mark.parametrize("name", [*JSON_CALLS])
def test_streamed_calls_are_the_whole_ones(name: str) -> None:
    text = JSON_CALLS[name] % ('{"s": "x y", "a": [1]}', EMPTY)
    whole = parts_of(name, [text], streams=False)
    calls, _ = streamed(name, text)
    assert [(call.name, json.loads(call.arguments)) for call in calls] == [
        (part.name, part.arguments) for part in whole if isinstance(part, ToolCall)
    ]
    assert len(calls) == 2


@pytest.mark.parametrize("name", [*JSON_CALLS])
def test_every_character_of_the_arguments_comes_when_it_is_written(name: str) -> None:
    parser = style_of(name).parser(TOOLS, streams_calls=True)
    before, after = (JSON_CALLS[name] % (ARGUMENTS, EMPTY)).split(ARGUMENTS)
    names = [part.name for part in parser.feed(before) if isinstance(part, ToolCallStart)]
    for character in ARGUMENTS:
        texts = []
        for part in parser.feed(character):
            if isinstance(part, ToolCallStart):
                names.append(part.name)
            if isinstance(part, ToolCallArguments):
                texts.append(part.text)
        assert (names, texts) == (["f"], [character])
    parser.feed(after)


@pytest.mark.parametrize("name", [*OTHER_CALLS])
def test_calls_in_other_languages_come_whole_when_they_are_complete(name: str) -> None:
    text = OTHER_CALLS[name]
    for pieces in ([text], [*text]):
        calls, rest = streamed(name, pieces)
        assert [(call.name, call.arguments) for call in calls] == [("f", '{"s":"x y"}')]
        assert (calls[0].end, rest) == (ToolCallEnd(), "")


@pytest.mark.parametrize("name", [*JSON_CALLS, *OTHER_CALLS])
def test_a_call_that_is_cut_off_is_never_text(name: str) -> None:
    is_json = name in JSON_CALLS
    whole = JSON_CALLS[name] % (ARGUMENTS, EMPTY) if is_json else OTHER_CALLS[name]
    style = style_of(name)
    begin = style.call.tags.begin
    tags = (*style.markers, style.call.tags.end)
    halves = [tag[:length] for tag in tags for length in range(1, len(tag))]
    if begin not in whole:  # a call without tags
        begin = '{"name"' if is_json else "[f("
    for length in range(whole.index(begin) + len(begin), len(whole) + 1):
        if any(whole[:length].endswith(half) for half in halves):
            continue  # half a tag is still text
        calls, rest = streamed(name, [whole[:length]], is_cut=True)
        assert rest == "", whole[:length]
        assert streamed(name, whole[:length], is_cut=True)[1] == ""
        for call, arguments in zip(calls, (ARGUMENTS, EMPTY), strict=False):
            is_complete = call.end == ToolCallEnd()
            assert is_complete or call.end == ToolCallEnd("cut")
            if is_json:
                assert arguments.startswith(call.arguments)
                assert is_complete == (call.arguments == arguments)
            else:
                assert call.arguments == '{"s":"x y"}'
        whole_calls = parts_of(name, [whole[:length]], streams=False, is_cut=True)
        assert not [part for part in whole_calls if not isinstance(part, ToolCall)]


@pytest.mark.parametrize("name", [*JSON_CALLS, *OTHER_CALLS])
def test_a_forced_call_that_is_cut_off_is_not_text_even_in_its_first_characters(name: str) -> None:
    whole = JSON_CALLS[name] % (ARGUMENTS, EMPTY) if name in JSON_CALLS else OTHER_CALLS[name]
    for length in range(1, len(whole)):
        for streams in (True, False):
            parser = style_of(name).parser(TOOLS, streams_calls=streams, must_call=True)
            parts = [part for character in whole[:length] for part in parser.feed(character)]
            parts += parser.finish(is_cut=True)
            assert not [part for part in parts if isinstance(part, Content)], whole[:length]


BROKEN = [
    ("hermes", '<tool_call>\n{"name": "f", "arguments": {"a": 1,}}\n</tool_call>', '{"a": 1,}'),
    ("hermes", '<tool_call>{"name": "f", "arguments": {"a": 1</tool_call>', '{"a": 1'),
    ("hermes", '<tool_call>{"name": "f", "arguments": {"a": \'x\'}}</tool_call>', "{\"a\": 'x'}"),
    ("hermes", '<tool_call>{"name": "f", "arguments": {a: {b: 1}}}\n</tool_call>', "{a: {b: 1}}"),
    ("mistral", '[TOOL_CALLS]f[ARGS]{"a": #', '{"a": #'),
    ("harmony", '<|channel|>commentary to=functions.f<|message|>{"a": 1, oops}<|call|>',
     '{"a": 1, oops}'),
]  # fmt: skip


@pytest.mark.parametrize(("name", "text", "arguments"), BROKEN)
def test_arguments_that_are_not_json_are_said_to_be_broken_with_all_that_was_written(
    name: str, text: str, arguments: str
) -> None:
    for pieces in ([text], [*text]):
        [call], rest = streamed(name, pieces)
        assert call.arguments == arguments
        assert call.end is not None
        assert call.end.state == "broken"
        assert arguments in call.end.text
        assert call.end.text + rest == text or name == "harmony"


def test_a_tag_in_a_string_does_not_end_a_call() -> None:
    text = '<tool_call>{"name": "f", "arguments": {"a": "</tool_call>"}}</tool_call>'
    [call], rest = streamed("hermes", text)
    assert (call.arguments, rest) == ('{"a": "</tool_call>"}', "")


@pytest.mark.parametrize(
    ("rest", "told"),
    [("}", ""), ("\n", ""), ("}}\n", ""), ("} and more", "and more"), ("</tool", "")],
)
def test_what_follows_a_complete_call_is_no_reason_to_lose_it(rest: str, told: str) -> None:
    [call], text = streamed("hermes", ['<tool_call>{"name": "f", "arguments": {"a": 1}' + rest])
    assert (call.arguments, call.end, text) == ('{"a": 1}', ToolCallEnd(), told)


def test_calls_in_another_order_are_passed_on_whole() -> None:
    text = ('<tool_call>{"arguments": {"a": 1}, "name": "f"}</tool_call>'
            '<tool_call>{"name": "g"}</tool_call>'
            '<tool_call>{"name": "f", "arguments": "{\\"a\\": 1}"}</tool_call>')  # fmt: skip
    for pieces in ([text], [*text]):
        calls, rest = streamed("hermes", pieces)
        assert [(call.name, call.arguments) for call in calls] == [
            ("f", '{"a": 1}'), ("g", "{}"), ("f", '{"a": 1}')
        ]  # fmt: skip
        assert rest == ""


def test_text_that_a_limit_cuts_off_after_a_tag_is_text() -> None:
    text = "<tool_call> is the tag that"
    assert streamed("hermes", [text], is_cut=True) == ([], text)


@given(st.sampled_from([*JSON_CALLS, *OTHER_CALLS]), st.booleans(), st.data())
def test_any_text_in_any_split_gives_the_same_parts(
    name: str, is_cut: bool, data: st.DataObject
) -> None:
    text = JSON_CALLS[name] % (ARGUMENTS, EMPTY) if name in JSON_CALLS else OTHER_CALLS[name]
    style = style_of(name)
    words = [
        *(text, text[: len(text) // 2], text[len(text) // 3 :], style.call.tags.begin),
        *(*style.markers, "{", "}", "[", '"', "\n", "x", ",", '{"name": "f", "arguments": {'),
    ]
    drawn = "".join(data.draw(st.lists(st.sampled_from(words) | st.text(max_size=4), max_size=7)))
    pieces = split(drawn, data.draw(st.lists(st.integers(0), max_size=8)))
    whole, rest = streamed(name, [drawn], is_cut=is_cut)
    for split_up in (pieces, [*drawn]):
        calls, other = streamed(name, split_up, is_cut=is_cut)
        assert other == rest
        assert [(c.name, c.arguments, c.end) for c in calls] == [
            (c.name, c.arguments, c.end) for c in whole
        ]
