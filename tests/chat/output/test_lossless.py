"""Nothing that a model writes is lost: it is a call, or text in its place, streamed or not."""

from __future__ import annotations

import json
from collections.abc import Sequence
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
from tampu.chat.output.message_parser import ChatFormat
from tampu.chat.output.parser_registry import FORMATS

TOOLS = [{"type": "function", "function": {"name": "f", "parameters": {}}}]
STYLES = {style.name: style for _, style in FORMATS}
BEGIN, END = "<｜tool▁call▁begin｜>", "<｜tool▁call▁end｜>"
# Formats whose calls end with a tag: what is between the tags, %s for the arguments.
JSON_BODIES = {
    "hunyuan": '[{"name": "f", "arguments": %s}]',
    "ernie": '\n{"name": "f", "arguments": %s}\n',
    "hermes": '\n{"name": "f", "arguments": %s}\n',
    "deepseek": f"{BEGIN}f<｜tool▁sep｜>%s{END}",
    "kimi": "<|tool_call_begin|>functions.f:0<|tool_call_argument_begin|>%s<|tool_call_end|>",
    "command-r": '\n[{"tool_name": "f", "parameters": %s}]\n',
    "command-r7b": '[{"tool_call_id": "0", "tool_name": "f", "parameters": %s}]',
}
OTHER_BODIES = {
    "qwen3-coder": ("\n<function=f>\n<parameter=s>\nx\ty\n</parameter>\n</function>\n",
                    "<function=f>x", "f(1)", "<function=>"),
    "seed-oss": ("\n<function=f>\n<parameter=s>x\ty</parameter>\n</function>\n",
                 "<function=f>x", "f(1)"),
    "glm": ("f\n<arg_key>s</arg_key>\n<arg_value>x\ty</arg_value>\n", "f<arg_key>s", "a b"),
    "deepseek-dsml": ('<｜DSML｜invoke name="f"><｜DSML｜parameter name="s" string="true">x\ty'
                      "</｜DSML｜parameter></｜DSML｜invoke>", "nothing",
                      '<｜DSML｜invoke name="f">x'),
    "minimax": ('\n<invoke name="f">\n<parameter name="s">x\ty</parameter>\n</invoke>\n', "nothing",
                '<invoke name="f">x'),
    "lfm2": ("[f(s='x\ty')]", "[f(1)]", "f(s=", "f(s=1) x"),
    "pythonic": ("[f(s='x\ty')]", "[f(1)]", "f(s=", "[]"),
    "gemma3": ("\nf(s='x\ty')\n", "f(1)", "print(f(s=1))"),
    "gemma4": ('call:f{s:<|"|>x\ty<|"|>}', "call:f{s", "call:f{} x", "f{}"),
    "functiongemma": ("call:f{s:<escape>x\ty<escape>}", "call:f{s", "call:f{} x", "f{}"),
}  # fmt: skip
# Arguments of calls, with line breaks and tags in strings too; and what are none.
GOOD = [
    "{}", '{"s": "x y"}', '{"code": "x = 1\ny = [2}\n\tz\r\n"}', '{"id": 12345678901234567890123}',
    '{"s": "</tool_call> \\\\ \\" <｜tool▁calls▁end｜> {"}',
    '{"a": [1, 2.50, null], "o": {"k": {}}}',
]  # fmt: skip
BAD = [
    '{"p": "1",}', '{"p": true1}', '{"p": 01}', "{p: 1}", '{"p": NaN}', '{"p": "\\ud83d"}',
    "{'p': 1}", '"no"', "[1, 2]", "7", "", '{"p" 1}',
    '{"p": 1 /* x */}', '{"p": "\\x"}', '{"p": [1, 2}}',
]  # fmt: skip
texts = st.text("ab .\n\t", max_size=6)


def parts_of(
    style: ChatFormat, pieces: Sequence[str], *, streams: bool, is_cut: bool = False
) -> list[Part]:
    parser = style.parser(TOOLS, streams_calls=streams)
    parts = [part for piece in pieces for part in parser.feed(piece)]
    return [*parts, *parser.finish(is_cut=is_cut)]


def read(parts: Sequence[Part]) -> tuple[list[tuple[str, Any]], str]:
    """Return the calls, and all text with that of broken calls in its place."""
    calls: list[tuple[str, Any]] = []
    text, name, arguments = "", "", ""
    for part in parts:
        match part:
            case Content() | Reasoning():
                text += part.text
            case ToolCall():
                calls.append((part.name, part.arguments))
            case ToolCallStart():
                name, arguments = part.name, ""
            case ToolCallArguments():
                arguments += part.text
            case ToolCallEnd(state="complete"):
                calls.append((name, json.loads(arguments)))
            case ToolCallEnd():
                text += part.text
    return calls, text


def split(text: str, places: Sequence[int]) -> list[str]:
    cuts = sorted(place % (len(text) + 1) for place in places)
    return [text[a:b] for a, b in pairwise([0, *cuts, len(text)])]


@given(st.sampled_from([*JSON_BODIES, *OTHER_BODIES]), st.data())
def test_calls_are_read_and_all_other_text_joined_is_as_it_was_written(
    name: str, data: st.DataObject
) -> None:
    style = STYLES[name]
    assert style.call is not None
    begin, end = style.call.tags.begin, style.call.tags.end
    kinds = data.draw(st.lists(st.sampled_from(["text", "good", "bad"]), max_size=7))
    written = [] if name == "pythonic" else [data.draw(texts)]
    shown, expected = [*written], []
    for kind in kinds:
        if kind == "text":
            written.append(data.draw(texts))
            shown.append(written[-1])
            continue
        if name in JSON_BODIES:
            arguments = data.draw(st.sampled_from(GOOD if kind == "good" else BAD))
            body = JSON_BODIES[name].replace("%s", arguments)
            called = json.loads(arguments, strict=False) if kind == "good" else None
        else:
            good, *bad = OTHER_BODIES[name]
            body, called = (
                (good if kind == "good" else data.draw(st.sampled_from(bad))),
                {"s": "x\ty"},
            )
        written.append(begin + body + end)
        if kind == "good":
            expected.append(("f", called))
        else:
            shown.append(written[-1])
    pieces = split("".join(written), data.draw(st.lists(st.integers(0), max_size=20)))
    for streams in (True, False):
        calls, text = read(parts_of(style, pieces, streams=streams))
        assert calls == expected
        assert text.strip() == "".join(shown).strip()
        assert calls or text == "".join(shown)
        if shown and shown[0].strip():  # white space at the outer ends goes only beside calls
            assert text.startswith(shown[0].rstrip())


@given(st.sampled_from(sorted(STYLES)), st.booleans(), st.data())
def test_streamed_and_whole_answers_have_the_same_calls_and_the_same_text(
    name: str, is_cut: bool, data: st.DataObject
) -> None:
    style = STYLES[name]
    assert style.call is not None
    body = JSON_BODIES.get(name, OTHER_BODIES.get(name, (JSON_BODIES["hermes"],))[0])
    words = [style.call.tags.begin, style.call.tags.end, *style.markers, *GOOD, *BAD, body,
             '{"a": 1}{"b": #}',
             "f[ARGS]", '{"name": "f", "arguments": ', "}", "functions.f<|message|>", " ",
             "a"]  # fmt: skip
    drawn = "".join(data.draw(st.lists(st.sampled_from(words) | texts, max_size=9)))
    pieces = split(drawn, data.draw(st.lists(st.integers(0), max_size=9)))
    streamed = read(parts_of(style, pieces, streams=True, is_cut=is_cut))
    assert read(parts_of(style, pieces, streams=False, is_cut=is_cut)) == streamed
    assert read(parts_of(style, [*drawn], streams=True, is_cut=is_cut)) == streamed


@pytest.mark.parametrize("name", sorted({*STYLES} - {*OTHER_BODIES}))
@pytest.mark.parametrize("arguments", ['{"code": "x = 1\ny\t= 2\r\n"}', '{"a": "\x00\x1f"}'])
def test_line_breaks_in_strings_are_escaped_while_they_stream(name: str, arguments: str) -> None:
    style = STYLES[name]
    assert style.call is not None
    body = JSON_BODIES.get(name, '{"name": "f", "arguments": %s}').replace("%s", arguments)
    begin, end = style.call.tags.begin, style.call.tags.end
    text = f"{begin}f<|message|>{arguments}{end}" if name == "harmony" else begin + body + end
    for pieces in ([text], [*text]):
        parts = parts_of(style, pieces, streams=True)
        written = "".join(part.text for part in parts if isinstance(part, ToolCallArguments))
        assert json.loads(written) == json.loads(arguments, strict=False)
        assert parts[-1] == ToolCallEnd()


def test_arguments_that_are_a_text_but_no_object_are_shown() -> None:
    text = '<tool_call>{"name": "f", "arguments": "no"}</tool_call>'
    assert parts_of(chat_format(""), [text], streams=True) == [Content(text)]
    assert read(parts_of(chat_format(""), [text], streams=False)) == ([], text)


def test_the_id_of_a_call_is_read_before_and_after_its_arguments() -> None:
    calls = (
        '[{"name": "f", "arguments": {}, "id": "one"}, {"id": "two", "name": "f", "arguments": {}}]'
    )
    for pieces in ([calls], [*calls]):
        parts = parts_of(STYLES["mistral"], ["[TOOL_CALLS]", *pieces], streams=False)
        assert parts == [ToolCall("f", {}, "one"), ToolCall("f", {}, "two")]


# Calls whose arguments the streaming reader does not find, with the arguments that are sent.
EXACT = (
    '{"a" : 2.50,  "b":[1E5, 0.1000000000000000055511151231257827], "i": 12345678901234567890123}'
)
WHOLE = {
    "the arguments before the name": ("hermes", '{"arguments": %s, "name": "f"}', EXACT),
    "an id between them": ("hermes", '{"name": "f", "id": "c", "arguments": %s}', EXACT),
    "another field": ("hermes", '{"name": "f", "x": [], "arguments": %s}', EXACT),
    "in a function": ("hermes", '{"function": {"arguments": %s, "name": "f"}}', EXACT),
    "a list": ("hermes", '[{"arguments": %s, "name": "f"}]', EXACT),
    "the second of two": ("hermes", '{"arguments": {}, "name": "f"};{"arguments": %s, "name": "f"}',
                          EXACT),
    "a text": ("hermes", '{"name": "f", "arguments": %s}', json.dumps(EXACT)),
    "a line break": ("hermes", '{"arguments": %s, "name": "f"}', '{"a": "x\ny", "b": 1.0}'),
    "none": ("hermes", '{"arguments": %s, "name": "f"}', "null"),
    "Command R": ("command-r", '[{"parameters": %s, "tool_name": "f"}]', EXACT),
    "Python": ("lfm2", "[f(a=%s)]", "2.50"),
    "Gemma 3": ("gemma3", "f(a=%s)", "1.0"),
    "Gemma 4": ("gemma4", "call:f{a:%s}", "2.50"),
    "DSML": ("deepseek-dsml", '<｜DSML｜invoke name="f"><｜DSML｜parameter name="a" string="false">'
             "%s</｜DSML｜parameter></｜DSML｜invoke>", "2.50"),
    "Qwen": ("qwen3-coder", "<function=f><parameter=n>%s</parameter></function>", "2.50"),
    "GLM": ("glm", "f<arg_key>n</arg_key><arg_value>%s</arg_value>", "0.10"),
}  # fmt: skip
SENT = {
    "a text": EXACT, "a line break": r'{"a": "x\ny", "b": 1.0}', "none": "{}",
    "Python": '{"a":2.50}', "Gemma 3": '{"a":1.0}', "Gemma 4": '{"a":2.50}', "DSML": '{"a":2.50}',
    "Qwen": '{"n":2.50}', "GLM": '{"n":0.10}',
}  # fmt: skip


@pytest.mark.parametrize("kind", WHOLE)
def test_arguments_that_are_read_as_a_whole_keep_their_digits(kind: str) -> None:
    name, body, arguments = WHOLE[kind]
    style = STYLES[name]
    assert style.call is not None
    text = style.call.tags.begin + body.replace("%s", arguments) + style.call.tags.end
    tools = [{"function": {"name": "f", "parameters": {"properties": {"n": {"type": "number"}}}}}]
    written = SENT.get(kind, EXACT)
    for streams in (True, False):
        parser = style.parser(tools, streams_calls=streams)
        parts = [*parser.feed(text), *parser.finish()]
        sent = [part.text for part in parts if isinstance(part, ToolCallArguments)]
        assert not streams or sent[-1] == written
        calls, rest = read(parts)
        assert (calls[-1], rest) == (("f", json.loads(written)), "")
