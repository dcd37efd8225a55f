r"""Grammars of answers that must call a tool, in each format's way to write calls.

    start:   thought? call (between call)*
    call:    "<tool_call>\n{name: f, arguments: " JSON "}\n</tool_call>" | ...

What these grammars allow, the format's parser reads back. Where arguments are JSON, they follow the
tool's whole schema. Where they are written one by one as text, each follows its type, choices and
inner schema; lengths and patterns of plain texts are not enforced there.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal, TypeAlias

from tampu.chat.output.arguments import BY_NAME, ArgumentRules
from tampu.chat.output.message_parser import ChatFormat
from tampu.errors import RequestError
from tampu.sampling.grammar import ANSWER, Grammar, lark_json, lark_text

Thought: TypeAlias = Literal["no", "may", "begun"]
"""Whether an answer may begin with a thought, or begins inside one."""

_SPACE = r"/[ \n]{0,3}/"


@dataclass(frozen=True, slots=True)
class Wire:
    """How calls are written: around all, and around each with `%s` for the tool's name.

    Attributes:
        before: all calls.
        begin: of each call, up to its arguments.
        end: of each call.
        between: two calls; None where an answer has one call only.
        after: all calls.
        arguments: how they are written (`tampu.chat.output.arguments`), else JSON.
    """

    before: str
    begin: str
    end: str
    between: str | None
    after: str
    arguments: str = "json"


_WIRES = {
    "hermes": Wire("", '<tool_call>\n{"name": "%s", "arguments": ', "}\n</tool_call>", "\n", ""),
    "granite": Wire("<|tool_call|>[", '{"name": "%s", "arguments": ', "}", ", ", "]"),
    "llama3": Wire("", '{"name": "%s", "parameters": ', "}", "; ", ""),
    "mistral": Wire("[TOOL_CALLS][", '{"name": "%s", "arguments": ', "}", ", ", "]"),
    "mistral-named": Wire("", "[TOOL_CALLS]%s[ARGS]", "", "", ""),
    "harmony": Wire("", "<|channel|>commentary to=functions.%s <|constrain|>json<|message|>", "",
                    None, ""),
    "deepseek": Wire("<｜tool▁calls▁begin｜>",
                     "<｜tool▁call▁begin｜>%s<｜tool▁sep｜>", "<｜tool▁call▁end｜>", "",
                     "<｜tool▁calls▁end｜>"),
    "command-r": Wire("Action: ```json\n[", '{"tool_name": "%s", "parameters": ', "}", ", ",
                      "]\n```"),
    "command-r7b": Wire("<|START_ACTION|>[",
                        '{"tool_call_id": "0", "tool_name": "%s", "parameters": ', "}", ", ",
                        "]<|END_ACTION|>"),
    "lfm2": Wire("<|tool_call_start|>[", "%s(", ")", ", ", "]<|tool_call_end|>", "pythonic"),
    "pythonic": Wire("[", "%s(", ")", ", ", "]", "pythonic"),
    "tool-code": Wire("```tool_code\n", "%s(", ")", "\n", "\n```", "pythonic"),
    "function-tags": Wire("", "<tool_call>\n<function=%s>\n", "</function>\n</tool_call>", "\n", "",
                          "function-tags"),
    "glm": Wire("", "<tool_call>%s\n", "</tool_call>", "\n", "", "argument-tags"),
    "dsml": Wire("<｜DSML｜function_calls>\n", '<｜DSML｜invoke name="%s">\n',
                 "</｜DSML｜invoke>\n", "", "</｜DSML｜function_calls>", "dsml"),
    "gemma": Wire("", "<|tool_call>call:%s{", "}<tool_call|>", "", "", "gemma"),
    "functiongemma": Wire("", "<start_function_call>call:%s{", "}<end_function_call>", "", "",
                          "functiongemma"),
}  # fmt: skip


def tool_call_grammar(
    style: ChatFormat,
    tools: Sequence[Mapping[str, Any]],
    tokens: Mapping[str, int],
    *,
    name: str | None = None,
    parallel: bool = True,
    thought: Thought = "may",
) -> Grammar:
    """Return the grammar of an answer that calls a tool.

    Args:
        style: of the model.
        tools: each `{"type": "function", "function": {"name", "parameters"}}`.
        tokens: the ids of the format's markers that are control tokens, by their texts.
        name: the only tool that may be called; None: any.
        parallel: whether more than one may be called.
        thought: whether the answer may think first.

    Raises:
        RequestError: if there is no such tool, or the model's format has no calls.
        GrammarError: for a tool's schema that is wrong or not supported.
    """
    wire = _wire(style, tokens)
    functions = [_mapping(tool.get("function", tool)) for tool in tools]
    chosen = [function for function in functions if name in {None, function.get("name")}]
    if not chosen:
        raise RequestError(
            f"tool_choice: there is no tool {name!r}" if name else "tools: none given"
        )
    rules = ArgumentRules(tokens)
    start = _start(style, tokens, thought, "calls", rules)
    lines = _calls(wire, chosen, tokens, rules, parallel=parallel)
    return Grammar.lark("\n".join([start, *lines, *rules.lines]))


def tool_calls_or_content(
    grammar: Grammar,
    style: ChatFormat,
    tools: Sequence[Mapping[str, Any]],
    tokens: Mapping[str, int],
    *,
    parallel: bool = True,
    thought: Thought = "may",
) -> Grammar:
    """Return the grammar of an answer that calls tools, or has content that follows a grammar.

    Args:
        grammar: of the content.
        style: of the model.
        tools: as `tool_call_grammar` takes them.
        tokens: likewise.
        parallel: likewise.
        thought: likewise.

    Raises:
        As `tool_call_grammar`.
    """
    wire = _wire(style, tokens)
    rules = ArgumentRules(tokens)
    functions = [_mapping(tool.get("function", tool)) for tool in tools]
    lines = _calls(wire, functions, tokens, rules, parallel=parallel)
    start = _start(style, tokens, thought, f"(calls | {_content(style, tokens)})", rules)
    return grammar.within("\n".join([start, *lines, *rules.lines]))


def after_reasoning(
    grammar: Grammar, style: ChatFormat, tokens: Mapping[str, int], thought: Thought
) -> Grammar:
    """Return a grammar for the content of an answer that may begin with a thought."""
    if style.name != "harmony" and (thought == "no" or style.thought is None):
        return grammar
    rules = ArgumentRules(tokens)
    start = _start(style, tokens, thought, _content(style, tokens), rules)
    return grammar.within("\n".join([start, *rules.lines]))


def _calls(
    wire: Wire,
    functions: Sequence[Mapping[str, Any]],
    tokens: Mapping[str, int],
    rules: ArgumentRules,
    *,
    parallel: bool,
) -> list[str]:
    """Return the rules `calls`, one or more calls with what is around them, and `one`."""
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
    thought: Thought,
    rest: str,
    rules: ArgumentRules,
) -> str:
    """Return the rule `start`, the thought before the rest."""
    if style.thought is None or thought == "no":
        return f"start: {rest}"
    inside = rules.text_until(style.thought.end)
    if style.name == "harmony":
        inside += f" {rules.literal('<|start|>assistant')}"
    if thought == "begun":
        return f"start: {inside} {_SPACE} {rest}"
    begin = lark_text(style.thought.begin, tokens)
    return f"start: ({begin} {inside} {_SPACE})? {rest}"


def _wire(style: ChatFormat, tokens: Mapping[str, int]) -> Wire:
    if style.call is None:
        raise RequestError("tool_choice: the model's answers have no form for calls")
    name = style.call.wire
    if name == "mistral" and "[ARGS]" in tokens:
        name = "mistral-named"
    if style.name == "functiongemma":
        name = "functiongemma"
    return _WIRES[name]


def _call(wire: Wire, function: Mapping[str, Any], rules: ArgumentRules) -> str:
    name = function.get("name")
    if not isinstance(name, str) or not name:
        raise RequestError("tools: each needs a name")
    quoted = json.dumps(name, ensure_ascii=False)[1:-1] if '"name": "%s"' in wire.begin else name
    schema = _parameters(function)
    if wire.arguments == "json":
        arguments = lark_json(schema)
    else:
        arguments = BY_NAME[wire.arguments](schema, rules)
    begin, end = rules.literal(wire.begin.replace("%s", quoted)), rules.literal(wire.end)
    return f"{begin} {arguments} {end}"


def _parameters(function: Mapping[str, Any]) -> dict[str, Any]:
    """Return the schema of a tool's arguments; without parameters there are none."""
    schema = dict(_mapping(function.get("parameters")))
    if (
        not {"properties", "$ref", "anyOf", "allOf", "oneOf", "additionalProperties"}
        & schema.keys()
    ):
        schema["additionalProperties"] = False
    return {"type": "object", **schema}


def _mapping(value: object) -> Mapping[str, Any]:
    return value if isinstance(value, Mapping) else {}
