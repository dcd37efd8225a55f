"""The formats, and which of them a model has, by its PARSER or else its template's text."""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import replace

from tampu.chat.output.harmony import MARKERS, read_harmony
from tampu.chat.output.message_parser import CallSyntax, ChatFormat, ReadCalls, ReadOutput, Tags
from tampu.chat.output.streamed_calls import (
    DEEPSEEK_HEADER,
    FENCED_HEADER,
    JSON_HEADER,
    KIMI_HEADER,
    MISTRAL_HEADER,
)
from tampu.chat.output.tool_calls import (
    argument_tags,
    deepseek_calls,
    dsml_calls,
    fenced_actions,
    function_tags,
    gemma_calls,
    invoke_calls,
    json_calls,
    kimi_calls,
    mistral_calls,
    pythonic_calls,
)

THINK = Tags("<think>", "</think>")
# What comes before the arguments of a call, for the readers whose arguments are JSON.
_HEADERS: dict[ReadCalls, re.Pattern[str]] = {
    json_calls: JSON_HEADER, fenced_actions: FENCED_HEADER, mistral_calls: MISTRAL_HEADER,
    deepseek_calls: DEEPSEEK_HEADER, kimi_calls: KIMI_HEADER,
}  # fmt: skip


def _is_json_call(text: str) -> bool | None:
    """Return whether a text begins as a call in bare JSON, as Llama 3 writes it."""
    start = "".join(text[:200].split())
    keys = ('{"name"', '{"type":"function"', '{"function"', '{"parameters"')
    if any(start.startswith(key) for key in keys):
        return True
    return None if len(text) < 200 and any(key.startswith(start) for key in keys) else False


def _is_pythonic_call(text: str) -> bool | None:
    """Return whether a text begins as a list of calls, as Llama 3.2 and 4 may write them."""
    start = text.lstrip()
    if not start.startswith("["):
        return False if start else None
    name, bracket, _ = start[1:].lstrip().partition("(")
    if name and not name.replace(".", "_").replace("-", "_").isidentifier():
        return False
    return True if bracket and name else None


def _format(
    name: str,
    begin: str,
    end: str,
    read_calls: ReadCalls,
    *inner: str,
    reasoning: Tags | None = None,
    dropped: tuple[str, ...] = (),
    bare: Callable[[str], bool | None] | None = None,
    read: ReadOutput | None = None,
) -> ChatFormat:
    header = _HEADERS.get(read_calls)
    call = CallSyntax(tags=Tags(begin, end), read=read_calls, header=header, bare=bare)
    return ChatFormat(
        name=name, reasoning=reasoning, call=call, dropped=dropped, inner=inner, read=read
    )


_HERMES = _format("hermes", "<tool_call>", "</tool_call>", json_calls)
_LLAMA3 = _format("llama3", "<|python_tag|>", "", json_calls, bare=_is_json_call)
# Texts that only the templates of a format have, and the format. The first row that matches
# counts, so the most specific ones come first.
FORMATS: tuple[tuple[tuple[str, ...], ChatFormat], ...] = (
    (("<|channel|>", "<|message|>"),
     _format("harmony", "<|channel|>commentary to=functions.", "<|call|>", json_calls, *MARKERS,
             reasoning=Tags("<|channel|>analysis<|message|>", "<|end|>"), read=read_harmony)),
    (("<|tool_call>",),
     _format("gemma4", "<|tool_call>", "<tool_call|>", gemma_calls('<|"|>'), "<|channel>", '<|"|>',
             reasoning=Tags("<|channel>thought\n", "<channel|>"))),
    (("<start_function_call>",),
     _format("functiongemma", "<start_function_call>", "<end_function_call>",
             gemma_calls("<escape>"), "<escape>")),
    (("[TOOL_CALLS]",),
     _format("mistral", "[TOOL_CALLS]", "", mistral_calls, "[ARGS]", "[CALL_ID]", "[THINK]",
             "[/THINK]")),
    (("｜DSML｜",),
     _format("deepseek-dsml", "<｜DSML｜function_calls>", "</｜DSML｜function_calls>", dsml_calls,
             "｜DSML｜", reasoning=THINK)),
    (("<minimax:tool_call>",),
     _format("minimax", "<minimax:tool_call>", "</minimax:tool_call>", invoke_calls,
             reasoning=THINK)),
    (("<｜tool▁calls▁begin｜>",),
     _format("deepseek", "<｜tool▁calls▁begin｜>", "<｜tool▁calls▁end｜>", deepseek_calls,
             "<｜tool▁call▁begin｜>", "<｜tool▁call▁end｜>", "<｜tool▁sep｜>", reasoning=THINK)),
    (("<|tool_calls_section_begin|>",),
     _format("kimi", "<|tool_calls_section_begin|>", "<|tool_calls_section_end|>", kimi_calls,
             "<|tool_call_begin|>", "<|tool_call_argument_begin|>", "<|tool_call_end|>")),
    (("<|START_ACTION|>",),
     _format("command-r7b", "<|START_ACTION|>", "<|END_ACTION|>", fenced_actions,
             reasoning=Tags("<|START_THINKING|>", "<|END_THINKING|>"),
             dropped=("<|START_RESPONSE|>", "<|END_RESPONSE|>", "<|START_TEXT|>",
                      "<|END_TEXT|>"))),
    (("Action:", "```json", "tool_name"),
     _format("command-r", "Action: ```json", "```", fenced_actions)),
    (("<|tool_call_start|>",),
     _format("lfm2", "<|tool_call_start|>", "<|tool_call_end|>", pythonic_calls)),
    (("<arg_key>",),
     _format("glm", "<tool_call>", "</tool_call>", argument_tags, "<arg_key>", "</arg_key>",
             "<arg_value>", "</arg_value>", reasoning=THINK)),
    (("<seed:tool_call>",),
     _format("seed-oss", "<seed:tool_call>", "</seed:tool_call>", function_tags,
             reasoning=Tags("<seed:think>", "</seed:think>"))),
    (("<function=", "<parameter="),
     _format("qwen3-coder", "<tool_call>", "</tool_call>", function_tags)),
    (("<tool_call>", "<response>"),
     _format("ernie", "<tool_call>", "</tool_call>", json_calls, reasoning=THINK,
             dropped=("<response>", "</response>"))),
    (("<tool_calls>", "<answer>"),
     _format("hunyuan", "<tool_calls>", "</tool_calls>", json_calls, reasoning=THINK,
             dropped=("<answer>", "</answer>"))),
    (("<tool_call>",), _HERMES),
    (("<|tool_call|>",), _format("granite", "<|tool_call|>", "", json_calls)),
    (("<|python_tag|>",), _LLAMA3),
    (("<|start_header_id|>", '"parameters"'), _LLAMA3),
    (("[func_name1(",),
     _format("pythonic", "<|python_start|>", "<|python_end|>", pythonic_calls,
             bare=_is_pythonic_call)),
    (("tool_code",), _format("gemma3", "```tool_code", "```", pythonic_calls)),
)  # fmt: skip
_REASONING = (
    THINK,
    Tags("[THINK]", "[/THINK]"),
    Tags("<|START_THINKING|>", "<|END_THINKING|>"),
    Tags("<seed:think>", "</seed:think>"),
    Tags("<reasoning>", "</reasoning>"),
)
_PLAIN = ChatFormat(name="plain")
# Of architectures whose templates need not show it.
_FORMATS_OF_ARCHITECTURES = {"gpt-oss": "harmony", "kimi-linear": "kimi", "lfm2": "lfm2",
                             "lfm2moe": "lfm2"}  # fmt: skip
# Ollama's names of parsers: the format, and the tags of reasoning that a template need not show.
PARSERS: dict[str, tuple[str, Tags | None]] = {
    "cogito": ("deepseek", THINK),
    "deepseek3": ("deepseek", THINK),
    "functiongemma": ("functiongemma", None),
    "gemma4": ("gemma4", None),
    "gemma4-no-thinking": ("gemma4", None),
    "glm-4.7": ("glm", None),
    "harmony": ("harmony", None),
    "lfm2": ("lfm2", None),
    "lfm2-thinking": ("lfm2", THINK),
    "ministral": ("mistral", None),
    "nemotron-3-nano": ("qwen3-coder", THINK),
    "passthrough": ("plain", None),
    "qwen3": ("hermes", None),
    "qwen3-coder": ("qwen3-coder", None),
    "qwen3-thinking": ("hermes", THINK),
    "qwen3-vl-instruct": ("hermes", None),
    "qwen3-vl-thinking": ("hermes", THINK),
    "qwen3.5": ("qwen3-coder", THINK),
}


def chat_format(template: str, architecture: str = "", parser: str = "") -> ChatFormat:
    """Return the format of a model's output.

    Args:
        template: the text of its chat template, Jinja or Go; "" if it has none.
        architecture: of the model, for templates that do not show the format.
        parser: the Modelfile's PARSER, one of `PARSERS`; "" and others let the template decide.
    """
    name, reasoning = PARSERS.get(parser, ("", None))
    if name == _PLAIN.name:
        return _PLAIN
    shown = (style.name for signs, style in FORMATS if all(sign in template for sign in signs))
    name = name or next(shown, _FORMATS_OF_ARCHITECTURES.get(architecture, _HERMES.name))
    style = next(style for _, style in FORMATS if style.name == name)
    if style.reasoning is not None:
        return style
    reasoning = next((tags for tags in _REASONING if tags.end in template), reasoning)
    return replace(style, reasoning=reasoning)
