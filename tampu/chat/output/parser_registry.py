"""The formats, and which of them a model has: told by its PARSER, else from its template's text."""

from __future__ import annotations

from dataclasses import replace

from tampu.chat.output.harmony import MARKERS, read_harmony
from tampu.chat.output.message_parser import CallSyntax, ChatFormat, Tags
from tampu.chat.output.tool_calls import (
    argument_tags,
    deepseek_calls,
    dsml_calls,
    fenced_actions,
    function_tags,
    gemma_calls,
    json_calls,
    mistral_calls,
    pythonic_calls,
)

THINK = Tags("<think>", "</think>")


def _is_json_call(text: str) -> bool | None:
    """Say whether a text begins as a call that is nothing but JSON, as Llama 3 writes it."""
    start = "".join(text[:200].split())
    keys = ('{"name"', '{"type":"function"', '{"function"', '{"parameters"')
    if any(start.startswith(key) for key in keys):
        return True
    return None if len(text) < 200 and any(key.startswith(start) for key in keys) else False


def _is_pythonic_call(text: str) -> bool | None:
    """Say whether a text begins as a list of calls, as Llama 3.2 and 4 may write them."""
    start = text.lstrip()
    if not start.startswith("["):
        return False if start else None
    name, bracket, _ = start[1:].lstrip().partition("(")
    if name and not name.replace(".", "_").replace("-", "_").isidentifier():
        return False
    return True if bracket and name else None


def _tagged(begin: str, end: str, read: object, wire: str) -> CallSyntax:
    return CallSyntax(tags=Tags(begin, end), read=read, wire=wire)  # type: ignore[arg-type]


# What must be in a template's text, and the format of models that have such a template. The first
# that fits counts; the more peculiar ones come first.
FORMATS: tuple[tuple[tuple[str, ...], ChatFormat], ...] = (
    (("<|channel|>", "<|message|>"),
     ChatFormat(name="harmony", thought=Tags("<|channel|>analysis<|message|>", "<|end|>"),
                call=_tagged("<|channel|>commentary to=functions.", "<|call|>", json_calls,
                             "harmony"),
                markers=MARKERS, read=read_harmony)),
    (("<|tool_call>",),
     ChatFormat(name="gemma4", thought=Tags("<|channel>thought\n", "<channel|>"),
                call=_tagged("<|tool_call>", "<tool_call|>", gemma_calls('<|"|>'), "gemma"),
                markers=("<|channel>", "<channel|>", "<|tool_call>", "<tool_call|>", '<|"|>'))),
    (("<start_function_call>",),
     ChatFormat(name="functiongemma",
                call=_tagged("<start_function_call>", "<end_function_call>",
                             gemma_calls("<escape>"), "gemma"),
                markers=("<start_function_call>", "<end_function_call>", "<escape>"))),
    (("[TOOL_CALLS]",),
     ChatFormat(name="mistral", call=_tagged("[TOOL_CALLS]", "", mistral_calls, "mistral"),
                markers=("[TOOL_CALLS]", "[ARGS]", "[CALL_ID]", "[THINK]", "[/THINK]"))),
    (("｜DSML｜",),
     ChatFormat(name="deepseek-dsml", thought=THINK,
                call=_tagged("<｜DSML｜function_calls>", "</｜DSML｜function_calls>", dsml_calls,
                             "dsml"),
                markers=("｜DSML｜", "<think>", "</think>"))),
    (("<｜tool▁calls▁begin｜>",),
     ChatFormat(name="deepseek", thought=THINK,
                call=_tagged("<｜tool▁calls▁begin｜>", "<｜tool▁calls▁end｜>", deepseek_calls,
                             "deepseek"),
                markers=("<｜tool▁calls▁begin｜>", "<｜tool▁calls▁end｜>", "<｜tool▁call▁begin｜>",
                         "<｜tool▁call▁end｜>", "<｜tool▁sep｜>", "<think>", "</think>"))),
    (("<|START_ACTION|>",),
     ChatFormat(name="command-r7b", thought=Tags("<|START_THINKING|>", "<|END_THINKING|>"),
                call=_tagged("<|START_ACTION|>", "<|END_ACTION|>", fenced_actions, "command-r7b"),
                dropped=("<|START_RESPONSE|>", "<|END_RESPONSE|>", "<|START_TEXT|>",
                         "<|END_TEXT|>"),
                markers=("<|START_THINKING|>", "<|END_THINKING|>", "<|START_ACTION|>",
                         "<|END_ACTION|>", "<|START_RESPONSE|>", "<|END_RESPONSE|>",
                         "<|START_TEXT|>", "<|END_TEXT|>"))),
    (("Action:", "```json", "tool_name"),
     ChatFormat(name="command-r",
                call=_tagged("Action: ```json", "```", fenced_actions, "command-r"))),
    (("<|tool_call_start|>",),
     ChatFormat(name="lfm2",
                call=_tagged("<|tool_call_start|>", "<|tool_call_end|>", pythonic_calls, "lfm2"),
                markers=("<|tool_call_start|>", "<|tool_call_end|>"))),
    (("<arg_key>",),
     ChatFormat(name="glm", thought=THINK,
                call=_tagged("<tool_call>", "</tool_call>", argument_tags, "glm"),
                markers=("<think>", "</think>", "<tool_call>", "</tool_call>", "<arg_key>",
                         "</arg_key>", "<arg_value>", "</arg_value>"))),
    (("<function=", "<parameter="),
     ChatFormat(name="qwen3-coder",
                call=_tagged("<tool_call>", "</tool_call>", function_tags, "function-tags"),
                markers=("<tool_call>", "</tool_call>"))),
    (("<tool_call>",),
     ChatFormat(name="hermes", call=_tagged("<tool_call>", "</tool_call>", json_calls, "hermes"),
                markers=("<tool_call>", "</tool_call>"))),
    (("<|tool_call|>",),
     ChatFormat(name="granite", call=_tagged("<|tool_call|>", "", json_calls, "granite"),
                markers=("<|tool_call|>",))),
    (("<|python_tag|>",),
     ChatFormat(name="llama3",
                call=CallSyntax(tags=Tags("<|python_tag|>", ""), read=json_calls, wire="llama3",
                                bare=_is_json_call),
                markers=("<|python_tag|>",))),
    (("<|start_header_id|>", '"parameters"'),
     ChatFormat(name="llama3",
                call=CallSyntax(tags=Tags("<|python_tag|>", ""), read=json_calls, wire="llama3",
                                bare=_is_json_call),
                markers=("<|python_tag|>",))),
    (("[func_name1(",),
     ChatFormat(name="pythonic",
                call=CallSyntax(tags=Tags("<|python_start|>", "<|python_end|>"),
                                read=pythonic_calls, wire="pythonic", bare=_is_pythonic_call),
                markers=("<|python_start|>", "<|python_end|>"))),
    (("tool_code",),
     ChatFormat(name="gemma3",
                call=_tagged("```tool_code", "```", pythonic_calls, "tool-code"))),
)  # fmt: skip
_ANY_TOOLS = ChatFormat(
    name="hermes", call=_tagged("<tool_call>", "</tool_call>", json_calls, "hermes")
)
_THOUGHTS = (
    THINK,
    Tags("[THINK]", "[/THINK]"),
    Tags("<|START_THINKING|>", "<|END_THINKING|>"),
    Tags("<seed:think>", "</seed:think>"),
    Tags("<reasoning>", "</reasoning>"),
)


_PLAIN = ChatFormat(name="plain")
# Ollama's names of parsers: the format, and the tags of a thought that a template need not show.
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
    """Return the format in which a model answers.

    Args:
        template: the text of its chat template, Jinja or Go; "" if it has none.
        architecture: of the model, for templates that do not show how it answers.
        parser: the name that its Modelfile gives to what reads answers, one of `PARSERS`; "" and
            others let the template decide.
    """
    name, thought = PARSERS.get(parser, ("", None))
    if name == _PLAIN.name:
        return _PLAIN
    named = next((style for _, style in FORMATS if style.name == name), None)
    return _with_thought(named or _told_by(template, architecture), template, thought)


def _told_by(template: str, architecture: str) -> ChatFormat:
    found = next(
        (style for signs, style in FORMATS if all(sign in template for sign in signs)), None
    )
    if found is None and architecture == "gpt-oss":
        found = FORMATS[0][1]
    return found or _ANY_TOOLS


def _with_thought(style: ChatFormat, template: str, thought: Tags | None) -> ChatFormat:
    """Return a format with the tags of thoughts: its own, those in the template, or the given."""
    if style.thought is None:
        thought = next((tags for tags in _THOUGHTS if tags.end in template), thought)
        markers = (thought.begin, thought.end) if thought else ()
        style = replace(style, thought=thought, markers=(*style.markers, *markers))
    return style
