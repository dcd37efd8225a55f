"""Parsers of tool calls: total, and the same result however the text is split."""

from __future__ import annotations

from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tampu.chat.tools import Content, PlainParser, TagParser, ToolCall

CALL = '<tool_call>{"name": "f", "arguments": {"b": 1, "a": "x"}}</tool_call>'
F = ToolCall("f", {"b": 1, "a": "x"})


def parse(pieces):
    parser = TagParser()
    parts = [part for piece in pieces for part in parser.feed(piece)] + parser.finish()
    merged = []
    for part in parts:
        if merged and isinstance(part, Content) and isinstance(merged[-1], Content):
            merged[-1] = Content(merged[-1].text + part.text)
        else:
            merged.append(part)
    return merged


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("", []),
        ("hello\n", [Content("hello\n")]),
        (CALL, [F]),
        (f"\n{CALL}\n{CALL}\n", [F, F]),
        (f"I look.\n\n{CALL}\n\ndone ", [Content("I look."), F, Content("done ")]),
        ('<tool_call>\n{"name": "g"}\n</tool_call>', [ToolCall("g", {})]),
        ('<tool_call>{"name": "g", "arguments": "{\\"a\\": 1}"}</tool_call>',
         [ToolCall("g", {"a": 1})]),
        ('<tool_call>{"name": "g", "arguments": {}}', [ToolCall("g", {})]),
        ('a <tool_call>{"name": "g", "argu', [Content('a <tool_call>{"name": "g", "argu')]),
        ("a <tool_call>nonsense</tool_call> b", [Content("a <tool_call>nonsense</tool_call> b")]),
        ("<tool_call>[]</tool_call>", [Content("<tool_call>[]</tool_call>")]),
        ('<tool_call>{"name": 1}</tool_call>', [Content('<tool_call>{"name": 1}</tool_call>')]),
        ('<tool_call>{"name": "f", "arguments": 1}', [
            Content('<tool_call>{"name": "f", "arguments": 1}')]),
        ('<tool_call>{"name": "f", "arguments": "["}', [
            Content('<tool_call>{"name": "f", "arguments": "["}')]),
        ("a < b <tool", [Content("a < b <tool")]),
        (f"<tool_<tool_call>{CALL[11:]}", [Content("<tool_"), F]),
        ("<tool_call>" + "[" * 100_000, [Content("<tool_call>" + "[" * 100_000)]),
        ("<tool_call>\ud800</tool_call>", [Content("<tool_call>\ud800</tool_call>")]),
    ],
)  # fmt: skip
def test_the_text_comes_apart_whole_or_one_character_at_a_time(text, expected):
    assert parse([text]) == expected
    assert parse(text) == expected


def test_the_order_of_the_arguments_is_the_models():
    [call] = parse([CALL])
    assert list(call.arguments) == ["b", "a"]


def test_content_is_not_held_back_longer_than_needed():
    parser = TagParser()
    assert parser.feed("a <b") == [Content("a <b")]
    assert parser.feed(" <tool") == []
    assert parser.feed("s>") == [Content(" <tools>")]


PIECES = st.sampled_from([
    "<tool_call>", "</tool_call>", '{"name": "f", "arguments": {"a": 1}}', '{"name"', " ", "\n",
    "<", "tool_call>", "</", "text", "é",
])  # fmt: skip


@given(st.lists(PIECES, max_size=12), st.data())
def test_any_split_gives_the_same_parts_and_never_raises(pieces, data):
    text = "".join(pieces)
    cuts = sorted(data.draw(st.lists(st.integers(0, len(text)), max_size=8)))
    bounds = [0, *cuts, len(text)]
    split = [text[a:b] for a, b in pairwise(bounds)]
    assert parse(split) == parse([text])


@given(st.text())
def test_text_without_tags_comes_out_unchanged(text):
    assert parse([text]) == ([Content(text)] if text else [])


def test_the_plain_parser_passes_everything_on():
    parser = PlainParser()
    assert parser.feed(CALL) == [Content(CALL)]
    assert parser.feed("") == []
    assert parser.finish() == []
