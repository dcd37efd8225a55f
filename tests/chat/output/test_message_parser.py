"""Answers of each family come apart the same way however the text is split, and nothing raises."""

from __future__ import annotations

import json
from collections.abc import Iterator
from itertools import pairwise
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tampu.chat.output import PARSERS, Content, Reasoning, ToolCall, chat_format
from tampu.chat.output.parser_registry import FORMATS
from tampu.chat.output.stream_parser import Reader

TOOLS = [
    {"type": "function", "function": {"name": name, "parameters": {"properties": {
        "a": {"type": "integer"}, "s": {"type": "string"}, "o": {"type": "object"},
        "b": {"type": "boolean"}, "n": {"type": ["null", "string"]},
        "u": {"anyOf": [{"type": "number"}, {"type": "array"}]}, "e": {"enum": [1, 2]}}}}}
    for name in ("f", "g")
]  # fmt: skip
SIGNS = {style.name: " ".join(signs) for signs, style in FORMATS}
THINK = " <think></think>"
F = ToolCall("f", {"a": 1, "s": "x y"})
G = ToolCall("g", {})
CALL = '{"name": "f", "arguments": {"a": 1, "s": "x y"}}'
PARAMETERS = '{"name": "f", "parameters": {"a": 1, "s": "x y"}}'
SEP = "<｜tool▁sep｜>"


def parse(
    template: str,
    pieces: list[Any] | str,
    *,
    tools: tuple[()] | list[dict[str, Any]] = TOOLS,
    thinks: bool = False,
) -> list[Reasoning | Content | ToolCall]:
    parser = chat_format(template).parser(tools, in_reasoning=thinks)
    merged: list[Any] = []
    for part in [*(part for piece in pieces for part in parser.feed(piece)), *parser.finish()]:
        if merged and type(merged[-1]) is type(part) and isinstance(part, Content | Reasoning):
            merged[-1] = type(part)(merged[-1].text + part.text)
        else:
            merged.append(part)
    return merged


def deepseek(*calls: str) -> str:
    begin, end = "<｜tool▁call▁begin｜>", "<｜tool▁call▁end｜>"
    inner = "".join(f"{begin}{call}{end}" for call in calls)
    return f"<｜tool▁calls▁begin｜>{inner}<｜tool▁calls▁end｜>"


def kimi(id: str, arguments: str) -> str:
    call = f"<|tool_call_begin|>{id}<|tool_call_argument_begin|>{arguments}<|tool_call_end|>"
    return f"<|tool_calls_section_begin|>{call}<|tool_calls_section_end|>"


def dsml(inner: str) -> str:
    return f"<｜DSML｜function_calls>\n{inner}\n</｜DSML｜function_calls>"


EXAMPLES = [
    # Hermes and Qwen
    ("hermes", "", []),
    ("hermes", "hello\n", [Content("hello\n")]),
    ("hermes", f"<tool_call>\n{CALL}\n</tool_call>", [F]),
    ("hermes", f"I look.\n\n<tool_call>{CALL}</tool_call>\n"
               "<tool_call>{\"name\": \"g\"}</tool_call>\nOk ", [Content("I look."), F, G,
                                                               Content("\n\n\n\nOk ")]),
    ("hermes", f"Sure! <tool_call>{CALL}</tool_call> and bye",
     [Content("Sure!"), F, Content("  and bye")]),
    ("hermes", f" Sure!\n<tool_call>{CALL}</tool_call>\n", [Content(" Sure!"), F]),
    ("hermes", f"\n<tool_call>{CALL}</tool_call>\nAfter ", [F, Content("After ")]),
    ("hermes" + THINK, f"<think>\nHm. \n</think>\n\n<tool_call>{CALL}</tool_call>",
     [Reasoning("Hm."), F]),
    ("hermes" + THINK, "<think>a</think>\n\nb", [Reasoning("a"), Content("b")]),
    ("hermes" + THINK, "<think>cut off", [Reasoning("cut off")]),
    ("hermes", "<think>a</think>b", [Content("<think>a</think>b")]),
    ("hermes" + THINK, "say <think>x</think>", [Content("say <think>x</think>")]),
    ("hermes" + THINK, f"<think><tool_call>{CALL}</tool_call></think>ok",
     [Reasoning(f"<tool_call>{CALL}</tool_call>"), Content("ok")]),
    ("hermes", f"<tool_call>{CALL}", [F]),
    ("hermes", "a <tool_call>{\"name\": \"f\", \"argu", [
        Content("a <tool_call>{\"name\": \"f\", \"argu")]),
    ("hermes", "a <tool_call>no</tool_call> b", [Content("a <tool_call>no</tool_call> b")]),
    ("hermes", "<tool_call>{\"name\": \"f\", \"arguments\": \"{\\\"a\\\": 1}\"}</tool_call>",
     [ToolCall("f", {"a": 1})]),
    ("hermes", "<tool_call>{\"name\": \"f\", \"arguments\": {\"a\": \"\\ud800\"}}</tool_call>",
     [Content("<tool_call>{\"name\": \"f\", \"arguments\": {\"a\": \"\\ud800\"}}</tool_call>")]),
    ("hermes", "<tool_call>" + "[" * 50_000, [Content("<tool_call>" + "[" * 50_000)]),
    # Qwen 3 Coder
    ("qwen3-coder", "<tool_call>\n<function=f>\n<parameter=a>\n1\n</parameter>\n<parameter=s>\nx y"
                    "\n</parameter>\n</function>\n</tool_call>", [F]),
    ("qwen3-coder", "<tool_call>\n<function=g>\n</function>\n</tool_call>", [G]),
    ("qwen3-coder", "<tool_call><function=f><parameter=s>\n\n  1\n\n</parameter>"
                    "<parameter=b>True</parameter><parameter=n>null</parameter>"
                    "<parameter=o>\n{\"k\": [1]}\n</parameter><parameter=u>[2]</parameter>"
                    "<parameter=e>2</parameter><parameter=z>3</parameter></function></tool_call>",
     [ToolCall("f", {"s": "\n  1\n", "b": True, "n": None, "o": {"k": [1]}, "u": [2], "e": 2,
                     "z": "3"})]),
    ("qwen3-coder", "<tool_call><function=f><parameter=a>1<parameter=s>x y</parameter>",
     [F]),
    ("qwen3-coder", "<tool_call><function=f><parameter=a>many</parameter></function></tool_call>",
     [ToolCall("f", {"a": "many"})]),
    ("qwen3-coder", "<tool_call>f(1)</tool_call>", [Content("<tool_call>f(1)</tool_call>")]),
    ("seed-oss", "<seed:think>Hm</seed:think>\n<seed:tool_call>\n<function=f>\n<parameter=a>1"
                 "</parameter>\n<parameter=s>x y</parameter>\n</function>\n</seed:tool_call>",
     [Reasoning("Hm"), F]),
    # GLM
    ("glm", "<think></think>\n<tool_call>f\n<arg_key>a</arg_key>\n<arg_value>1</arg_value>\n"
            "<arg_key>s</arg_key>\n<arg_value>x y</arg_value>\n</tool_call>", [F]),
    ("glm", "<tool_call>g</tool_call>\n", [G]),
    ("glm", "<tool_call>a b c</tool_call>", [Content("<tool_call>a b c</tool_call>")]),
    # Llama 3
    ("llama3", PARAMETERS, [F]),
    ("llama3", f"<|python_tag|>{PARAMETERS}; {{\"name\": \"g\", \"parameters\": {{}}}}", [F, G]),
    ("llama3", '  {"type": "function", "name": "g", "parameters": {}}', [G]),
    ("llama3", '{"type": "function", "function": {"name": "g"}}', [G]),
    ("llama3", '{"answer": 1} ', [Content('{"answer": 1} ')]),
    ("llama3", '{"name": "f", ', [Content('{"name": "f", ')]),
    ("llama3", "{", [Content("{")]),
    ("llama3", f"Call {PARAMETERS}", [Content(f"Call {PARAMETERS}")]),
    ("pythonic", "[f(a=1, s='x y'), g()]", [F, G]),
    ("pythonic", "[1, 2]", [Content("[1, 2]")]),
    # Mistral
    ("mistral", f"[TOOL_CALLS] [{CALL}]", [F]),
    ("mistral", '[TOOL_CALLS][{"name": "g", "arguments": {}, "id": "abc"}]',
     [ToolCall("g", {}, "abc")]),
    ("mistral", 'Hm[TOOL_CALLS]f[ARGS]{"a": 1, "s": "x y"}[TOOL_CALLS]g{}', [Content("Hm"), F, G]),
    ("mistral", "[TOOL_CALLS]g[CALL_ID]id9[ARGS]{}", [ToolCall("g", {}, "id9")]),
    ("mistral [THINK][/THINK]", "[THINK]so[/THINK]yes", [Reasoning("so"), Content("yes")]),
    ("mistral", "[TOOL_CALLS]what?", [Content("[TOOL_CALLS]what?")]),
    # Harmony
    ("harmony", "<|channel|>analysis<|message|>Hm.<|end|><|start|>assistant<|channel|>final"
                "<|message|>Yes.", [Reasoning("Hm."), Content("Yes.")]),
    ("harmony", "<|channel|>commentary to=functions.f <|constrain|>json<|message|>"
                '{"a": 1, "s": "x y"}<|call|>', [F]),
    ("harmony", "<|channel|>analysis<|message|>Hm<|end|><|start|>assistant to=functions.g"
                "<|channel|>commentary json<|message|>{}", [Reasoning("Hm"), G]),
    ("harmony", " to=functions.g<|channel|>commentary json<|message|>{}", [G]),
    ("harmony", "<|channel|>commentary<|message|>I plan.<|end|><|start|>assistant<|channel|>"
                "commentary to=functions.f<|message|>{\"a\": 1, \"s\": \"x y\"}",
     [Content("I plan."), F]),
    ("harmony", "<|channel|>commentary to=functions.f<|message|>oops", [Content("oops")]),
    ("harmony", "plain", [Content("plain")]),
    ("harmony", "<|channel|>final", []),
    ("harmony", "<|channel|>commentary to=functions.f <|constrain|>js", []),
    ("harmony", "<|channel|>analysis<|message|>Hm<|end|><|start|>assis", [Reasoning("Hm")]),
    ("harmony", "<|channel|>The answer is 4", [Content("<|channel|>The answer is 4")]),
    ("harmony", "<|channel|>analysis<|message|>Hm<|end|>It is 4", [Reasoning("Hm"),
                                                                   Content("It is 4")]),
    ("harmony", "<|start|>Yes, 4!<|message|>four", [Content("<|start|>Yes, 4!four")]),
    # Gemma
    ("gemma4", '<|channel>thought\nHm\n<channel|><|tool_call>call:f{a:1,s:<|"|>x y<|"|>}'
               "<tool_call|>", [Reasoning("Hm"), F]),
    ("gemma4", '<|tool_call>call:f{o:{k:[1,true,null,<|"|>{,}<|"|>]}}<tool_call|>',
     [ToolCall("f", {"o": {"k": [1, True, None, "{,}"]}})]),
    ("gemma4", "<|tool_call>call:g{}<tool_call|>ok", [G, Content("ok")]),
    ("gemma4", "<|tool_call>call:g{x<tool_call|>", [Content("<|tool_call>call:g{x<tool_call|>")]),
    ("functiongemma", "<start_function_call>call:f{a:1,s:<escape>x y<escape>}<end_function_call>",
     [F]),
    ("gemma3", "```tool_code\nf(a=1, s='x y')\n```", [F]),
    ("gemma3", "```python\nf(a=1)\n```", [Content("```python\nf(a=1)\n```")]),
    # DeepSeek
    ("deepseek", deepseek(f"function{SEP}f\n```json\n" '{"a": 1, "s": "x y"}\n```'), [F]),
    ("deepseek", "Ok" + deepseek(f'f{SEP}{{"a": 1, "s": "x y"}}', f"g{SEP}{{}}"),
     [Content("Ok"), F, G]),
    ("deepseek", "<think>Hm</think>" + deepseek(f"g{SEP}{{}}"), [Reasoning("Hm"), G]),
    ("deepseek", deepseek("x"), [Content(deepseek("x"))]),
    ("deepseek-dsml", dsml('<｜DSML｜invoke name="f">\n<｜DSML｜parameter name="a" string="false">1'
                           '</｜DSML｜parameter>\n<｜DSML｜parameter name="s" string="true">x y'
                           "</｜DSML｜parameter>\n</｜DSML｜invoke>"), [F]),
    ("minimax", '<think>Hm</think>Ok<minimax:tool_call>\n<invoke name="f">\n<parameter name="a">1'
                '</parameter>\n<parameter name="s">x y</parameter>\n</invoke>\n<invoke name="g">\n'
                "</invoke>\n</minimax:tool_call>", [Reasoning("Hm"), Content("Ok"), F, G]),
    # Kimi
    ("kimi", "Ok" + kimi('functions.f:0', '{"a": 1, "s": "x y"}') + "!",
     [Content("Ok"), ToolCall("f", {"a": 1, "s": "x y"}, "functions.f:0"), Content("!")]),
    ("kimi", kimi("f", '{"a": 1, "s": "x y"}'), [ToolCall("f", {"a": 1, "s": "x y"}, "f")]),
    ("kimi", kimi("functions.f:0", "x"), [Content(kimi("functions.f:0", "x"))]),
    # LFM2
    ("lfm2", "<|tool_call_start|>[f(a=1, s=\"x y\"), g()]<|tool_call_end|>Ok",
     [F, G, Content("Ok")]),
    ("lfm2", "<|tool_call_start|>[f(a=-1.5e3, o={'k': (1, None)}, s='it\\'s \\u00e9')]",
     [ToolCall("f", {"a": -1500.0, "o": {"k": [1, None]}, "s": "it's é"})]),
    ("lfm2", "<|tool_call_start|>[f(1)]<|tool_call_end|>",
     [Content("<|tool_call_start|>[f(1)]<|tool_call_end|>")]),
    ("lfm2", "<|tool_call_start|>[f(a=__import__('os'))]<|tool_call_end|>",
     [Content("<|tool_call_start|>[f(a=__import__('os'))]<|tool_call_end|>")]),
    # Command R
    ("command-r", 'Action: ```json\n[{"tool_name": "f", "parameters": {"a": 1, "s": "x y"}}]\n```',
     [F]),
    ("command-r7b", "<|START_THINKING|>Hm<|END_THINKING|><|START_ACTION|>\n[{\"tool_call_id\": "
                    "\"0\", \"tool_name\": \"g\", \"parameters\": {}}]\n<|END_ACTION|>",
     [Reasoning("Hm"), ToolCall("g", {}, "0")]),
    ("command-r7b", "<|START_RESPONSE|>Yes<|END_RESPONSE|>", [Content("Yes")]),
    ("granite", f"<|tool_call|>[{CALL}]", [F]),
    ("hunyuan", f"<think>Hm</think><answer>Ok</answer><tool_calls>[{CALL}]</tool_calls>",
     [Reasoning("Hm"), Content("Ok"), F]),
    ("ernie", f"<think>Hm</think><response>Ok</response><tool_call>\n{CALL}\n</tool_call>",
     [Reasoning("Hm"), Content("Ok"), F]),
]  # fmt: skip


def template(name: str) -> str:
    style, *more = name.split(" ", 1)
    return " ".join([SIGNS[style], *more])


@pytest.mark.parametrize(("name", "text", "expected"), EXAMPLES)
def test_an_answer_is_parsed_the_same_whole_or_one_character_at_a_time(
    name: str, text: str, expected: object
) -> None:
    assert parse(template(name), [text]) == expected
    assert parse(template(name), text) == expected


@pytest.mark.parametrize("name", SIGNS)
def test_without_tools_nothing_is_a_call(name: str) -> None:
    for other, text, _ in EXAMPLES:
        if template(other) == template(name):
            parts = parse(template(name), [text], tools=())
            assert not [part for part in parts if isinstance(part, ToolCall)]


def test_the_format_is_detected_from_the_template() -> None:
    for signs, style in FORMATS:
        assert chat_format(" ".join(signs)).name == style.name
    assert chat_format("").name == "hermes"
    assert chat_format("<think>\n</think>").reasoning is not None
    assert chat_format("").reasoning is None


@pytest.mark.parametrize(
    ("architecture", "name"), [("gpt-oss", "harmony"), ("lfm2", "lfm2"), ("lfm2moe", "lfm2")]
)
def test_a_template_that_does_not_show_the_format_leaves_it_to_the_architecture(
    architecture: str, name: str
) -> None:
    assert chat_format("List of tools: [", architecture).name == name
    assert chat_format("[TOOL_CALLS]", architecture).name == "mistral"


def test_reasoning_may_begin_in_the_prompt() -> None:
    style = chat_format("<think></think>")
    assert style.ends_in_reasoning("<|assistant|><think>\n")
    assert not style.ends_in_reasoning("<|assistant|><think>\n\n</think>\n\n")
    assert parse(THINK, "so</think>yes", thinks=True) == [Reasoning("so"), Content("yes")]


def test_content_is_not_held_back_longer_than_needed() -> None:
    parser = chat_format(SIGNS["hermes"]).parser(TOOLS)
    assert parser.feed("a <b") == [Content("a <b")]
    assert parser.feed(" <tool") == []
    assert parser.feed("s>") == [Content(" <tools>")]


def test_a_call_of_an_unknown_tool_is_read_as_written() -> None:
    """Whoever asked sees it and can say so to the model."""
    [call] = parse(SIGNS["hermes"], ['<tool_call>{"name":"other","arguments":{}}</tool_call>'])
    assert call == ToolCall("other", {})


@pytest.mark.parametrize("name", sorted(SIGNS))
def test_arguments_of_a_megabyte_are_a_call_or_text(name: str) -> None:
    style = {style.name: style for _, style in FORMATS}[name]
    begin = style.call.tags.begin if style.call else ""
    begin += "f<|message|>" if name == "harmony" else ""
    text = begin + '{"name": "f", "arguments": {"s": "' + "x" * 1_000_000 + '"}}'
    parts = parse(SIGNS[name], [text[i : i + 4096] for i in range(0, len(text), 4096)])
    assert sum(len(str(part)) for part in parts) > 1_000_000


@pytest.mark.parametrize("name", sorted(SIGNS))
def test_incomplete_and_nested_calls_are_not_errors(name: str) -> None:
    style = {style.name: style for _, style in FORMATS}[name]
    begin = style.call.tags.begin if style.call else ""
    for text in (
        begin,
        begin * 50,
        f"{begin}{CALL[:20]}",
        f"{begin}{begin}{CALL}",
        f"{CALL}{begin}",
    ):
        whole = parse(SIGNS[name], [text])
        assert parse(SIGNS[name], text) == whole


def test_the_order_of_arguments_is_kept() -> None:
    [call] = parse(SIGNS["hermes"], ['<tool_call>{"name":"f","arguments":{"b":1,"a":2}}'])
    assert list(call.arguments) == ["b", "a"]


PIECES = {
    name: sorted({piece for other, text, _ in EXAMPLES
                  if other.split(" ")[0] == name and len(text) < 1000
                  for piece in (text, text[: len(text) // 2], text[len(text) // 3 :])}
                 | {*style.markers, "<", "<think>", "</think>", " ", "\n", "é", "{", '"', "[f(",
                    "```", *((style.call.tags.begin, style.call.tags.end) if style.call else ())})
    for name, style in {style.name: style for _, style in FORMATS}.items()
}  # fmt: skip


@given(st.sampled_from(sorted(SIGNS)), st.booleans(), st.data())
def test_any_split_gives_the_same_parts_and_never_raises(
    name: str, thinks: bool, data: st.DataObject
) -> None:
    pieces = data.draw(st.lists(st.sampled_from(PIECES[name]) | st.text(max_size=5), max_size=8))
    text = "".join(pieces)
    source = SIGNS[name] + THINK * thinks
    cuts = sorted(data.draw(st.lists(st.integers(0, len(text)), max_size=8)))
    split = [text[a:b] for a, b in pairwise([0, *cuts, len(text)])]
    whole = parse(source, [text], thinks=thinks)
    assert parse(source, split, thinks=thinks) == whole
    assert parse(source, text, thinks=thinks) == whole
    for part in whole:
        if isinstance(part, ToolCall):
            json.dumps(part.arguments).encode()


@given(st.sampled_from(sorted(SIGNS)), st.booleans(), st.booleans(), st.data())
def test_every_word_of_an_answer_is_in_some_part(
    name: str, thinks: bool, has_tools: bool, data: st.DataObject
) -> None:
    """Tags may go; what a model wrote between them is a thought, content or part of a call."""
    style = chat_format(SIGNS[name] + THINK * thinks)
    tags = [*style.markers, *style.dropped, "<think>", "</think>", " ", "\n", "{", "[", '"']
    if style.call:
        tags += [style.call.tags.begin, style.call.tags.end]
    words = [f"λ{letter}" for letter in "αβγδεζηθ"]
    drawn = data.draw(st.lists(st.sampled_from(tags), max_size=8))
    places = [data.draw(st.integers(0, len(drawn))) for _ in words]
    for word, place in zip(words, places, strict=True):
        drawn.insert(place, word)
    text = "".join(drawn)
    parts = parse(SIGNS[name] + THINK * thinks, [text], tools=TOOLS * has_tools, thinks=thinks)
    told = "".join(part.text if not isinstance(part, ToolCall) else str(part) for part in parts)
    assert [word for word in words if word not in told] == [], text


@given(st.text())
def test_text_without_tags_comes_out_unchanged(text: str) -> None:
    if "<tool_call>" not in text:
        assert "".join(part.text for part in parse("", [text])) == text


@pytest.mark.parametrize("name", sorted(SIGNS))
def test_long_answers_take_time_in_proportion(name: str) -> None:
    style = {style.name: style for _, style in FORMATS}[name]
    parser = style.parser(TOOLS)
    begin = style.call.tags.begin if style.call else ""
    for piece in [begin, *['{"a": [1, 2, "<x>"]} <arg_key>' * 100] * 100]:
        parser.feed(piece)
    parser.finish()


@given(st.lists(st.sampled_from(["<a>", "<a><b>c", "<b>", "<", "a>", "b", "x"]), max_size=9),
       st.data())  # fmt: skip
def test_of_overlapping_tags_the_first_and_longest_is_found_in_any_split(
    pieces: list[Any], data: st.DataObject
) -> None:
    tags = ("<a>", "<a><b>c", "<b>")
    text = "".join(pieces)

    def read(chunks: list[Any] | str) -> list[tuple[str, str | None]]:
        reader, found = Reader(), []
        out: list[Any] = []

        def script() -> Iterator[None]:
            while True:
                tag = yield from reader.until(tags, out.append)
                found.append(("".join(out), tag))
                out.clear()
                if tag is None:
                    return

        running = script()
        next(running, None)
        for chunk in chunks:
            reader.give(chunk)
            next(running, None)
        reader.end()
        next(running, None)
        return found

    cut = data.draw(st.integers(0, len(text)))
    assert read([text[:cut], text[cut:]]) == read([text]) == read(text)


@pytest.mark.parametrize("parser", PARSERS)
def test_a_named_parser_comes_before_the_template(parser: str) -> None:
    name, thought = PARSERS[parser]
    style = chat_format("[TOOL_CALLS]", "gpt-oss", parser)
    assert style.name == name
    assert thought is None or style.reasoning == thought
    assert (style.call is None) == (parser == "passthrough")


def test_a_named_parser_reads_the_templates_reasoning_and_an_unknown_one_is_ignored() -> None:
    assert chat_format("<think>\n</think>", parser="qwen3-coder").reasoning is not None
    assert chat_format("", parser="qwen3").reasoning is None
    assert chat_format("[TOOL_CALLS]", parser="nobody") == chat_format("[TOOL_CALLS]")


def test_passthrough_returns_all_text_as_content() -> None:
    parser = chat_format("<tool_call><think></think>", parser="passthrough").parser(TOOLS)
    text = '<think>a</think><tool_call>{"name": "f", "arguments": {}}</tool_call>'
    assert [*parser.feed(text), *parser.finish()] == [Content(text)]
