r"""Grammars of outputs that must call a tool, in each format.

    start:   reasoning? call (between call)*
    call:    "<tool_call>\n{name: f, arguments: " JSON "}\n</tool_call>" | ...

The format's parser reads back what these grammars allow. Arguments in JSON follow the tool's whole
schema. Arguments that are written one by one as text follow their types, choices and inner schemas;
lengths and patterns of plain texts are not enforced.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal, TypeAlias

from tampu.chat.output.arguments import (
    ArgumentRules,
    WriteArguments,
    argument_tags,
    dsml,
    function_tags,
    gemma,
    invocation,
    pythonic,
)
from tampu.chat.output.message_parser import ChatFormat
from tampu.chat.output.signatures import mapping_or_empty
from tampu.errors import RequestError
from tampu.sampling.grammar import ANSWER, Grammar, lark_json, lark_text

ReasoningMode: TypeAlias = Literal["no", "may", "begun"]
"""Whether an output may begin with reasoning, or begins inside it."""

_SPACE = r"/[ \n]{0,3}/"
_NUMBER = "/[0-9]{1,3}/"


@dataclass(frozen=True, slots=True)
class Wire:
    """The text around all calls, and around each with `%s` for the tool's name.

    `%d` stands for any number, which the model chooses.

    Attributes:
        before: all calls.
        begin: of each call, up to its arguments.
        end: of each call.
        between: two calls; None where an output has one call only.
        after: all calls.
        arguments: writes them; None: JSON.
    """

    before: str
    begin: str
    end: str
    between: str | None
    after: str
    arguments: WriteArguments | None = None


_WIRES = {  # by the names of formats
    "hermes": Wire("", '<tool_call>\n{"name": "%s", "arguments": ', "}\n</tool_call>", "\n", ""),
    "ernie": Wire("", '<tool_call>\n{"name": "%s", "arguments": ', "}\n</tool_call>", "\n", ""),
    "hunyuan": Wire("<tool_calls>[", '{"name": "%s", "arguments": ', "}", ", ", "]</tool_calls>"),
    "granite": Wire("<|tool_call|>[", '{"name": "%s", "arguments": ', "}", ", ", "]"),
    "llama3": Wire("", '{"name": "%s", "parameters": ', "}", "; ", ""),
    "mistral": Wire("[TOOL_CALLS][", '{"name": "%s", "arguments": ', "}", ", ", "]"),
    "mistral-named": Wire("", "[TOOL_CALLS]%s[ARGS]", "", "", ""),
    "harmony": Wire("", "<|channel|>commentary to=functions.%s <|constrain|>json<|message|>", "",
                    None, ""),
    "deepseek": Wire("<｜tool▁calls▁begin｜>",
                     "<｜tool▁call▁begin｜>%s<｜tool▁sep｜>", "<｜tool▁call▁end｜>", "",
                     "<｜tool▁calls▁end｜>"),
    "kimi": Wire("<|tool_calls_section_begin|>",
                 "<|tool_call_begin|>functions.%s:%d<|tool_call_argument_begin|>",
                 "<|tool_call_end|>", "", "<|tool_calls_section_end|>"),
    "command-r": Wire("Action: ```json\n[", '{"tool_name": "%s", "parameters": ', "}", ", ",
                      "]\n```"),
    "command-r7b": Wire("<|START_ACTION|>[",
                        '{"tool_call_id": "0", "tool_name": "%s", "parameters": ', "}", ", ",
                        "]<|END_ACTION|>"),
    "lfm2": Wire("<|tool_call_start|>[", "%s(", ")", ", ", "]<|tool_call_end|>", pythonic),
    "pythonic": Wire("[", "%s(", ")", ", ", "]", pythonic),
    "gemma3": Wire("```tool_code\n", "%s(", ")", "\n", "\n```", pythonic),
    "qwen3-coder": Wire("", "<tool_call>\n<function=%s>\n", "</function>\n</tool_call>", "\n", "",
                        function_tags),
    "seed-oss": Wire("", "<seed:tool_call>\n<function=%s>\n", "</function>\n</seed:tool_call>",
                     "\n", "", function_tags),
    "glm": Wire("", "<tool_call>%s\n", "</tool_call>", "\n", "", argument_tags),
    "deepseek-dsml": Wire("<｜DSML｜function_calls>\n", '<｜DSML｜invoke name="%s">\n',
                          "</｜DSML｜invoke>\n", "", "</｜DSML｜function_calls>", dsml),
    "minimax": Wire("<minimax:tool_call>\n", '<invoke name="%s">\n', "</invoke>\n", "",
                    "</minimax:tool_call>", invocation),
    "gemma4": Wire("", "<|tool_call>call:%s{", "}<tool_call|>", "", "", gemma('<|"|>')),
    "functiongemma": Wire("", "<start_function_call>call:%s{", "}<end_function_call>", "", "",
                          gemma("<escape>")),
}  # fmt: skip


def tool_call_grammar(
    style: ChatFormat,
    tools: Sequence[Mapping[str, Any]],
    tokens: Mapping[str, int],
    *,
    name: str | None = None,
    parallel: bool = True,
    reasoning: ReasoningMode = "may",
) -> Grammar:
    """Return the grammar of an output that calls a tool.

    Args:
        style: of the model.
        tools: each `{"type": "function", "function": {"name", "parameters"}}`.
        tokens: the ids of the format's markers that are control tokens, by their texts.
        name: the only tool that may be called; None: any.
        parallel: whether more than one may be called.
        reasoning: whether the output may begin with it.

    Raises:
        RequestError: if there is no such tool, or the model's format has no calls.
        GrammarError: for a tool's schema that is wrong or not supported.
    """
    wire = _wire(style, tokens)
    functions = [mapping_or_empty(tool.get("function", tool)) for tool in tools]
    chosen = [function for function in functions if name in {None, function.get("name")}]
    if not chosen:
        raise RequestError(f"tool_choice: unknown tool {name!r}" if name else "tools: none given")
    rules = ArgumentRules(tokens)
    start = _start(style, tokens, reasoning, "calls", rules)
    lines = _calls(wire, chosen, tokens, rules, parallel=parallel)
    return Grammar.lark("\n".join([start, *lines, *rules.lines]))


def tool_calls_or_content(
    grammar: Grammar,
    style: ChatFormat,
    tools: Sequence[Mapping[str, Any]],
    tokens: Mapping[str, int],
    *,
    parallel: bool = True,
    reasoning: ReasoningMode = "may",
) -> Grammar:
    """Return the grammar of an output that calls tools, or has content that follows a grammar.

    Args:
        grammar: of the content.
        style: of the model.
        tools: as `tool_call_grammar` takes them.
        tokens: as above.
        parallel: as above.
        reasoning: as above.

    Raises:
        As `tool_call_grammar`.
    """
    wire = _wire(style, tokens)
    rules = ArgumentRules(tokens)
    functions = [mapping_or_empty(tool.get("function", tool)) for tool in tools]
    lines = _calls(wire, functions, tokens, rules, parallel=parallel)
    start = _start(style, tokens, reasoning, f"(calls | {_content(style, tokens)})", rules)
    return grammar.within("\n".join([start, *lines, *rules.lines]))


def after_reasoning(
    grammar: Grammar, style: ChatFormat, tokens: Mapping[str, int], reasoning: ReasoningMode
) -> Grammar:
    """Return a grammar for the content of an output that may begin with reasoning."""
    if style.name != "harmony" and (reasoning == "no" or style.reasoning is None):
        return grammar
    rules = ArgumentRules(tokens)
    start = _start(style, tokens, reasoning, _content(style, tokens), rules)
    return grammar.within("\n".join([start, *rules.lines]))


def _calls(
    wire: Wire,
    functions: Sequence[Mapping[str, Any]],
    tokens: Mapping[str, int],
    rules: ArgumentRules,
    *,
    parallel: bool,
) -> list[str]:
    """Return the rules `calls`, one or more calls with the text around them, and `one`."""
    one = " | ".join(f"({_call(wire, function, rules)})" for function in functions)
    calls = [lark_text(wire.before, tokens), "one"]
    if parallel and wire.between is not None:
        calls.append(f"({lark_text(wire.between, tokens)} one)*")
    calls.append(lark_text(wire.after, tokens))
    return [f"calls: {' '.join(calls)}", f"one: {one}"]


def _content(style: ChatFormat, tokens: Mapping[str, int]) -> str:
    if style.name != "harmony":
        return ANSWER
    return f"{lark_text('<|channel|>final<|message|>', tokens)} {ANSWER}"


def _start(
    style: ChatFormat,
    tokens: Mapping[str, int],
    reasoning: ReasoningMode,
    rest: str,
    rules: ArgumentRules,
) -> str:
    """Return the rule `start`, reasoning before the rest."""
    if style.reasoning is None or reasoning == "no":
        return f"start: {rest}"
    inside = rules.text_until(style.reasoning.end)
    if style.name == "harmony":
        inside += f" {rules.literal('<|start|>assistant')}"
    if reasoning == "begun":
        return f"start: {inside} {_SPACE} {rest}"
    begin = lark_text(style.reasoning.begin, tokens)
    return f"start: ({begin} {inside} {_SPACE})? {rest}"


def _wire(style: ChatFormat, tokens: Mapping[str, int]) -> Wire:
    if style.call is None:
        raise RequestError("tool_choice: the model's output format has no tool calls")
    has_names = style.name == "mistral" and "[ARGS]" in tokens
    return _WIRES["mistral-named" if has_names else style.name]


def _call(wire: Wire, function: Mapping[str, Any], rules: ArgumentRules) -> str:
    name = function.get("name")
    if not isinstance(name, str) or not name:
        raise RequestError("tools: each needs a name")
    quoted = json.dumps(name, ensure_ascii=False)[1:-1] if '"name": "%s"' in wire.begin else name
    schema = _parameters(function)
    arguments = wire.arguments(schema, rules) if wire.arguments else lark_json(schema)
    texts = [rules.literal(text.replace("%s", quoted)) for text in wire.begin.split("%d")]
    return f"{f' {_NUMBER} '.join(texts)} {arguments} {rules.literal(wire.end)}"


def _parameters(function: Mapping[str, Any]) -> dict[str, Any]:
    """Return the schema of a tool's arguments; without parameters there are none."""
    schema = dict(mapping_or_empty(function.get("parameters")))
    stated = {"properties", "$ref", "anyOf", "allOf", "oneOf", "additionalProperties"}
    if not stated & schema.keys():
        schema["additionalProperties"] = False
    return {"type": "object", **schema}
