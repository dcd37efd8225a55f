"""Prompts of families without their template: the texts, written out by hand."""
# ruff: noqa: E501 - the lines are the prompts'

from __future__ import annotations

import json
from typing import Any

import pytest

from tampu.chat import builtin_templates
from tampu.chat.builtin_templates import RENDERERS
from tampu.chat.output import Content, Reasoning, ToolCall
from tampu.chat.output.parser_registry import chat_format
from tampu.chat.segments import text_of
from tampu.chat.template import ChatTemplate

CITY = {"type": "string", "description": "a city"}
PARAMETERS = {"type": "object", "properties": {"city": CITY}, "required": ["city"]}
FUNCTION = {"name": "weather", "description": "The weather.", "parameters": PARAMETERS}
TOOL = {"type": "function", "function": FUNCTION}
ARGUMENTS = {"city": "Cuzco", "days": 2}
CALL = {"type": "function", "id": "a", "function": {"name": "weather", "arguments": ARGUMENTS}}
TALK: list[dict[str, Any]] = [
    {"role": "system", "content": "Be brief."},
    {"role": "user", "content": "Hi"},
    {"role": "assistant", "content": "Yes?", "reasoning_content": "Old."},
    {"role": "user", "content": "And <think>?"},
    {"role": "assistant", "content": "", "reasoning_content": "Hm.", "tool_calls": [CALL]},
    {"role": "tool", "tool_call_id": "a", "content": "12 °C"},
]
SIMPLE = TALK[:2]

QWEN_TOOLS = f"""\
# Tools

These functions may be called; each line has the signature of one:
<tools>
{json.dumps(TOOL)}
</tools>

"""
HERMES = f"""\
<|im_start|>system
Be brief.

{QWEN_TOOLS}A call is JSON between tags, with its name and its arguments:
<tool_call>
{{"name": <function-name>, "arguments": <args-json-object>}}
</tool_call><|im_end|>
<|im_start|>user
Hi<|im_end|>
<|im_start|>assistant
Yes?<|im_end|>
<|im_start|>user
And <think>?<|im_end|>
<|im_start|>assistant
THOUGHT<tool_call>
{{"name": "weather", "arguments": {{"city": "Cuzco", "days": 2}}}}
</tool_call><|im_end|>
<|im_start|>user
<tool_response>
12 °C
</tool_response><|im_end|>
<|im_start|>assistant
"""
TAGS = f"""\
<|im_start|>system
Be brief.

{QWEN_TOOLS}A call has this form, and nothing comes behind it:
<tool_call>
<function=function_name>
<parameter=parameter_name>
value
</parameter>
</function>
</tool_call><|im_end|>
<|im_start|>user
Hi<|im_end|>
<|im_start|>assistant
Yes?<|im_end|>
<|im_start|>user
And <think>?<|im_end|>
<|im_start|>assistant
THOUGHT<tool_call>
<function=weather>
<parameter=city>
Cuzco
</parameter>
<parameter=days>
2
</parameter>
</function>
</tool_call><|im_end|>
<|im_start|>user
<tool_response>
12 °C
</tool_response><|im_end|>
<|im_start|>assistant
"""
CHATML_THOUGHT = "<think>\nHm.\n</think>\n\n"
LFM2 = f"""\
<s><|im_start|>system
Be brief.
List of tools: <|tool_list_start|>[{json.dumps(FUNCTION)}]<|tool_list_end|><|im_end|>
<|im_start|>user
Hi<|im_end|>
<|im_start|>assistant
Yes?<|im_end|>
<|im_start|>user
And <think>?<|im_end|>
<|im_start|>assistant
<|tool_call_start|>[weather(city="Cuzco",days=2)]<|tool_call_end|><|im_end|>
<|im_start|>tool
<|tool_response_start|>12 °C<|tool_response_end|><|im_end|>
<|im_start|>assistant
"""
GLM = (
    "[gMASK]<sop><|system|>\n# Tools\n\n"
    "These functions may be called; each line has the signature of one:\n"
    f"<tools>\n{json.dumps(TOOL)}\n</tools>\n\n"
    "A call has a key and a value for each of its arguments:\n"
    "<tool_call>{function-name}<arg_key>{arg-key}</arg_key><arg_value>{arg-value}</arg_value>..."
    "</tool_call><|system|>Be brief.<|user|>Hi<|assistant|><think>Old.</think>Yes?"
    "<|user|>And <think>?<|assistant|><think>Hm.</think><tool_call>weather<arg_key>city</arg_key>"
    "<arg_value>Cuzco</arg_value><arg_key>days</arg_key><arg_value>2</arg_value></tool_call>"
    "<|observation|><tool_response>12 °C</tool_response><|assistant|>"
)
DEEPSEEK = f"""\
<s>Be brief.

## Tools
These tools may be called:

### weather
Description: The weather.

Parameters: {json.dumps(PARAMETERS)}

Calls have exactly this form, their arguments as JSON that fits the parameters, one call right \
behind the other:
<｜tool▁calls▁begin｜><｜tool▁call▁begin｜>tool_call_name<｜tool▁sep｜>tool_call_arguments\
<｜tool▁call▁end｜><｜tool▁calls▁end｜>
<｜User｜>Hi<｜Assistant｜></think>Yes?<｜end▁of▁sentence｜><｜User｜>And <think>?<｜Assistant｜></think>\
<｜tool▁calls▁begin｜><｜tool▁call▁begin｜>weather<｜tool▁sep｜>{{"city": "Cuzco", "days": 2}}\
<｜tool▁call▁end｜><｜tool▁calls▁end｜><｜end▁of▁sentence｜>\
<｜tool▁output▁begin｜>12 °C<｜tool▁output▁end｜>"""
COGITO = f"""\
<s>SWITCHBe brief.
These functions may be called:
```json
{json.dumps(TOOL, indent=4)}
```
<｜User｜>Hi<｜Assistant｜>Yes?<｜end▁of▁sentence｜><｜User｜>And <think>?<｜Assistant｜>\
<｜tool▁calls▁begin｜><｜tool▁call▁begin｜>function<｜tool▁sep｜>weather
```json
{{"city": "Cuzco", "days": 2}}
```<｜tool▁call▁end｜><｜tool▁calls▁end｜><｜end▁of▁sentence｜>\
<｜tool▁outputs▁begin｜><｜tool▁output▁begin｜>12 °C<｜tool▁output▁end｜><｜tool▁outputs▁end｜>\
<｜Assistant｜>"""
GEMMA4 = """\
<s><|turn>system
SWITCHBe brief.<|tool>declaration:weather{description:<|"|>The weather.<|"|>,parameters:{properties:\
{city:{description:<|"|>a city<|"|>,type:<|"|>STRING<|"|>}},required:[<|"|>city<|"|>],\
type:<|"|>OBJECT<|"|>}}<tool|><turn|>
<|turn>user
Hi<turn|>
<|turn>model
Yes?<turn|>
<|turn>user
And <think>?<turn|>
<|turn>model
<|channel>thought
Hm.
<channel|><|tool_call>call:weather{city:<|"|>Cuzco<|"|>,days:2}<tool_call|>\
<|tool_response>response:weather{value:<|"|>12 °C<|"|>}<tool_response|>"""
FUNCTIONGEMMA = """\
<s><start_of_turn>developer
Be brief.
You can do function calling with the following functions:<start_function_declaration>\
declaration:weather{description:<escape>The weather.<escape>,parameters:{properties:\
{city:{description:<escape>a city<escape>,type:<escape>STRING<escape>}},required:[<escape>city<escape>],\
type:<escape>OBJECT<escape>}}<end_function_declaration><end_of_turn>
<start_of_turn>user
Hi<end_of_turn>
<start_of_turn>model
Yes?<end_of_turn>
<start_of_turn>user
And <think>?<end_of_turn>
<start_of_turn>model
<start_function_call>call:weather{city:<escape>Cuzco<escape>,days:2}<end_function_call>\
<start_function_response>response:weather{value:<escape>12 °C<escape>}<end_function_response>"""
THOUGHT = "<|channel>thought\n"

# The prompt for TALK with a tool.
WITH_TOOLS = {
    "cogito": COGITO.replace("SWITCH", ""),
    "deepseek3.1": DEEPSEEK,
    "functiongemma": FUNCTIONGEMMA,
    "gemma4": GEMMA4.replace("SWITCH", ""),
    "gemma4-large": GEMMA4.replace("SWITCH", ""),
    "gemma4-small": GEMMA4.replace("SWITCH", ""),
    "glm-4.7": GLM + "<think>",
    "lfm2": LFM2,
    "lfm2-thinking": LFM2,
    "nemotron-3-nano": TAGS.replace("THOUGHT", CHATML_THOUGHT) + "<think>\n",
    "qwen3-coder": TAGS.replace("THOUGHT", ""),
    "qwen3-vl-instruct": HERMES.replace("THOUGHT", ""),
    "qwen3-vl-thinking": HERMES.replace("THOUGHT", CHATML_THOUGHT) + "<think>\n",
    "qwen3.5": TAGS.replace("THOUGHT", CHATML_THOUGHT) + "<think>\n",
}
# The same when the model shall think, where that is not what it does by itself.
THINKS = {
    "cogito": COGITO.replace("SWITCH", "Enable deep thinking subroutine.\n\n") + "<think>\n",
    "gemma4": GEMMA4.replace("SWITCH", "<|think|>\n") + THOUGHT,
    "gemma4-large": GEMMA4.replace("SWITCH", "<|think|>\n") + THOUGHT,
}
CHATML_SIMPLE = """\
<|im_start|>system
Be brief.<|im_end|>
<|im_start|>user
Hi<|im_end|>
<|im_start|>assistant
"""
GEMMA_SIMPLE = "<s><|turn>system\nBe brief.<turn|>\n<|turn>user\nHi<turn|>\n<|turn>model\n"
# The prompt for SIMPLE when the model shall not think, and when it shall ("": as the first).
WITHOUT_TOOLS = {
    "cogito": (
        "<s>Be brief.<｜User｜>Hi<｜Assistant｜>",
        "<s>Enable deep thinking subroutine.\n\nBe brief.<｜User｜>Hi<｜Assistant｜><think>\n",
    ),
    "deepseek3.1": (
        "<s>Be brief.<｜User｜>Hi<｜Assistant｜></think>",
        "<s>Be brief.<｜User｜>Hi<｜Assistant｜><think>",
    ),
    "functiongemma": (
        "<s><start_of_turn>developer\nBe brief.<end_of_turn>\n"
        "<start_of_turn>user\nHi<end_of_turn>\n<start_of_turn>model\n",
        "",
    ),
    "gemma4": (GEMMA_SIMPLE, GEMMA_SIMPLE.replace("Be", "<|think|>\nBe")),
    "gemma4-large": (
        GEMMA_SIMPLE + THOUGHT + "<channel|>",
        GEMMA_SIMPLE.replace("Be", "<|think|>\nBe"),
    ),
    "glm-4.7": (
        "[gMASK]<sop><|system|>Be brief.<|user|>Hi<|assistant|></think>",
        "[gMASK]<sop><|system|>Be brief.<|user|>Hi<|assistant|><think>",
    ),
    "lfm2": ("<s>" + CHATML_SIMPLE, ""),
    "nemotron-3-nano": (CHATML_SIMPLE + "<think></think>", CHATML_SIMPLE + "<think>\n"),
    "olmo3": (CHATML_SIMPLE, ""),
    "qwen3-coder": (CHATML_SIMPLE, ""),
    "qwen3-vl-instruct": (CHATML_SIMPLE, ""),
    "qwen3-vl-thinking": (CHATML_SIMPLE, CHATML_SIMPLE + "<think>\n"),
    "qwen3.5": (CHATML_SIMPLE + "<think>\n\n</think>\n\n", CHATML_SIMPLE + "<think>\n"),
}
# How a model of each form may answer: a thought if it has any, a text, a call.
BARE_CALL = '{"name": "weather", "arguments": {"city": "Cuzco"}}'
TAGGED_CALL = "<function=weather>\n<parameter=city>\nCuzco\n</parameter>\n</function>"
JSON_CALL = '{"city": "Cuzco"}'
ANSWERS = {
    "COGITO": "<think>\nHm.\n</think>\n\nSo.<｜tool▁calls▁begin｜><｜tool▁call▁begin｜>function"
    f"<｜tool▁sep｜>weather\n```json\n{JSON_CALL}\n```<｜tool▁call▁end｜><｜tool▁calls▁end｜>",
    "DEEPSEEK": "<think>Hm.</think>So.<｜tool▁calls▁begin｜><｜tool▁call▁begin｜>weather"
    f"<｜tool▁sep｜>{JSON_CALL}<｜tool▁call▁end｜><｜tool▁calls▁end｜>",
    "FUNCTIONGEMMA": "So.<start_function_call>call:weather{city:<escape>Cuzco<escape>}"
    "<end_function_call>",
    "GEMMA4": '<|channel>thought\nHm.\n<channel|>So.<|tool_call>call:weather{city:<|"|>Cuzco<|"|>}'
    "<tool_call|>",
    "GLM": "<think>Hm.</think>So.<tool_call>weather<arg_key>city</arg_key>"
    "<arg_value>Cuzco</arg_value></tool_call>",
    "LFM2": 'So.<|tool_call_start|>[weather(city="Cuzco")]<|tool_call_end|>',
    "NEMOTRON": f"<think>\nHm.\n</think>\nSo.\n<tool_call>\n{TAGGED_CALL}\n</tool_call>",
    "QWEN35": f"<think>\nHm.\n</think>\n\nSo.\n\n<tool_call>\n{TAGGED_CALL}\n</tool_call>",
    "QWEN3_CODER": f"So.\n\n<tool_call>\n{TAGGED_CALL}\n</tool_call>",
    "QWEN3_VL": f"So.\n<tool_call>\n{BARE_CALL}\n</tool_call>",
    "QWEN3_VL_THINKING": f"<think>\nHm.\n</think>\n\nSo.\n<tool_call>\n{BARE_CALL}\n</tool_call>",
}


def prompt(
    template: ChatTemplate, messages: list[Any], think: bool | None = None, **more: Any
) -> str:
    pieces = template.render(
        messages,
        bos_token="<s>",
        eos_token="</s>",
        variables=template.think_variables(think),
        **more,
    )
    return text_of(pieces)


def test_each_renderer_has_expected_prompts() -> None:
    aliases = {"gemma4-small": "gemma4", "lfm2-thinking": "lfm2"} | dict.fromkeys(
        ("olmo3-think", "olmo3-32b-think", "olmo3.1"), "olmo3"
    )
    for name, form in RENDERERS.items():
        assert aliases.get(name, name) in WITHOUT_TOOLS
        assert form == RENDERERS[aliases.get(name, name)]
        assert (name in WITH_TOOLS) == (form != builtin_templates.CHATML)


@pytest.mark.parametrize("name", WITHOUT_TOOLS)
def test_a_simple_conversation(name: str) -> None:
    template = ChatTemplate(RENDERERS[name])
    without, thinking = WITHOUT_TOOLS[name]
    assert prompt(template, SIMPLE, think=False) == without
    assert prompt(template, SIMPLE, think=True) == (thinking or without)
    unfinished = prompt(template, SIMPLE, add_generation_prompt=False)
    assert without.startswith(unfinished)
    assert unfinished.endswith(("Hi", "Hi<|im_end|>\n", "Hi<turn|>\n", "Hi<end_of_turn>\n"))


@pytest.mark.parametrize("name", WITH_TOOLS)
def test_tools_calls_results_and_reasoning_are_rendered(name: str) -> None:
    template = ChatTemplate(RENDERERS[name])
    assert prompt(template, TALK, tools=[TOOL]) == WITH_TOOLS[name]
    if name in THINKS:
        assert prompt(template, TALK, tools=[TOOL], think=True) == THINKS[name]
    assert template.supports_tools


@pytest.mark.parametrize("form", dict.fromkeys(RENDERERS.values()))
def test_only_text_of_the_template_is_trusted(form: Any) -> None:
    pieces = ChatTemplate(form).render(
        TALK,
        tools=None if form == builtin_templates.CHATML else [TOOL],
        bos_token="<s>",
        eos_token="</s>",
    )
    theirs = {text for text, is_trusted in pieces if not is_trusted}
    assert {"Be brief.", "Hi", "And <think>?"} <= theirs
    assert all("<|" not in text and "｜" not in text for text in theirs)


@pytest.mark.parametrize("name", ANSWERS)
@pytest.mark.parametrize("step", [1, 1_000])
def test_answers_of_the_family_are_read(name: str, step: int) -> None:
    style = chat_format(getattr(builtin_templates, name))
    parser = style.parser([TOOL])
    text = ANSWERS[name]
    parts = [
        part for start in range(0, len(text), step) for part in parser.feed(text[start:][:step])
    ]
    parts += parser.finish()
    thought = "".join(part.text for part in parts if isinstance(part, Reasoning))
    said = "".join(part.text for part in parts if isinstance(part, Content))
    [call] = [part for part in parts if isinstance(part, ToolCall)]
    assert thought.strip() == ("Hm." if "Hm." in text else "")
    assert said.strip() == "So."
    assert (call.name, call.arguments) == ("weather", {"city": "Cuzco"})


@pytest.mark.parametrize("name", ["gemma4", "functiongemma"])
def test_gemma_names_the_tool_of_each_result_and_continues_the_same_turn(name: str) -> None:
    other = {"type": "function", "id": "b", "function": {"name": "stop", "arguments": {}}}
    talk = [
        TALK[1],
        {"role": "assistant", "content": None, "tool_calls": [CALL, other]},
        {"role": "tool", "tool_call_id": "b", "content": "1"},
        {"role": "tool", "name": "clock", "content": "2"},
        {"role": "tool", "content": "3"},
        {"role": "assistant", "content": "Done."},
        {"role": "user", "content": [{"type": "text", "text": "Thanks"}]},
    ]
    text = prompt(ChatTemplate(RENDERERS[name]), talk)
    places = [text.index(f"response:{tool}" + "{value:") for tool in ("stop", "clock", "unknown")]
    assert places == sorted(places)
    assert text.count("model\n") == 2
    assert "Done." in text.rsplit("response:", 1)[1].split("user\nThanks")[0]


def test_gemma_writes_schemas_and_values_of_all_kinds() -> None:
    schema = {
        "type": "object",
        "properties": {
            "list": {"type": "array", "items": {"type": "object", "properties": {"n": CITY}}},
            "kind": {"type": ["string", "null"], "enum": ["a", "b"], "nullable": True},
        },
    }
    tool = {"type": "function", "function": {**FUNCTION, "parameters": schema}}
    values = {"b": True, "n": None, "f": 1.5, "list": [{"n": "x"}, []]}
    call = {"type": "function", "function": {"name": "weather", "arguments": values}}
    talk = [TALK[1], {"role": "assistant", "content": "", "tool_calls": [call]}]
    text = prompt(ChatTemplate(builtin_templates.GEMMA4), talk, tools=[tool]).replace('<|"|>', "'")
    assert (
        "parameters:{properties:{kind:{enum:['a','b'],nullable:true,type:['STRING','NULL']},"
        "list:{items:{properties:{n:{description:'a city',type:'STRING'}},type:'OBJECT'},"
        "type:'ARRAY'}},type:'OBJECT'}}<tool|>"
    ) in text
    assert "call:weather{b:true,f:1.5,list:[{n:'x'},[]],n:null}<tool_call|>" in text
