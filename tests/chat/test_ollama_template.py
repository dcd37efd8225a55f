"""Templates in Go's language get what Ollama gives them, and write what it writes."""

from __future__ import annotations

from typing import Any

import pytest

from tampu.chat.ollama_template import OllamaTemplate
from tampu.chat.segments import text_of
from tampu.chat.template import ChatTemplate
from tampu.chat.template_loader import read_template
from tampu.errors import ModelFileError, RequestError

CHATML = """{{- if .System }}<|im_start|>system
{{ .System }}<|im_end|>
{{ end }}
{{- range $i, $_ := .Messages }}
{{- $last := eq (len (slice $.Messages $i)) 1 }}
{{- if eq .Role "user" }}<|im_start|>user
{{ .Content }}<|im_end|>
{{ else if eq .Role "assistant" }}<|im_start|>assistant
{{ if and .Thinking $last }}<think>{{ .Thinking }}</think>{{ end }}{{ .Content }}
{{- range .ToolCalls }}<tool_call>
{"name": "{{ .Function.Name }}", "arguments": {{ .Function.Arguments }}}
</tool_call>{{ end }}{{ if not $last }}<|im_end|>
{{ end }}
{{- else if eq .Role "tool" }}<tool_response>{{ .Content }}</tool_response>
{{ end }}
{{- if and (ne .Role "assistant") $last }}<|im_start|>assistant
{{ end }}
{{- end }}"""
LEGACY = "{{ if .System }}<s>{{ .System }}</s>{{ end }}[{{ .Prompt }}]{{ .Response }}<end>"


def message(role: str, content: str, **more: Any) -> dict[str, Any]:
    return {"role": role, "content": content, **more}


TALK = [
    message("system", "Be brief."),
    message("user", "Hi"),
    message("assistant", "Hello"),
    message("user", "Who?"),
]


def written(source: str, messages: Any, **given: Any) -> str:
    return text_of(OllamaTemplate(source).render(messages, **given))


def test_a_template_with_messages_is_rendered_once() -> None:
    assert written(CHATML, TALK) == (
        "<|im_start|>system\nBe brief.<|im_end|>\n<|im_start|>user\nHi<|im_end|>\n"
        "<|im_start|>assistant\nHello<|im_end|>\n<|im_start|>user\nWho?<|im_end|>\n"
        "<|im_start|>assistant\n"
    )


def test_a_template_always_ends_with_the_start_of_an_answer() -> None:
    with pytest.raises(RequestError, match="add_generation_prompt must be true: the model's"):
        OllamaTemplate(CHATML).render(TALK, add_generation_prompt=False)


def test_a_template_without_messages_is_rendered_once_per_exchange() -> None:
    assert written(LEGACY, TALK) == "<s>Be brief.</s>[Hi]Hello<end>[Who?]"


def test_a_partial_answer_is_continued() -> None:
    assert written(LEGACY, [*TALK, message("assistant", "I am")]).endswith("[Who?]I am")
    assert written(CHATML, [*TALK, message("assistant", "I am")]).endswith("assistant\nI am")


def test_a_template_without_the_response_variable_gets_it_at_its_end() -> None:
    assert written("<{{ .Prompt }}>", TALK) == "<Hi>Hello<Who?>"


def test_adjacent_messages_of_one_role_are_merged_and_system_messages_collected() -> None:
    talk = [message("user", "a"), message("user", "b"), message("system", "S"),
            message("tool", "1"), message("tool", "2"), message("system", "T")]  # fmt: skip
    text = written("{{ .System }}|{{ range .Messages }}{{ .Role }}:{{ .Content }};{{ end }}", talk)
    assert text == "S\n\nT|user:a\n\nb;system:S;tool:1;tool:2;system:T;"


TOOL = {
    "function": {
        "parameters": {
            "properties": {"city": {"description": "Which", "type": "string", "enum": ["a", "b"]}},
            "required": ["city"],
            "type": "object",
        },
        "description": "The weather <now>",
        "name": "weather",
    },
    "type": "function",
}


def test_tools_are_json_in_ollamas_order_and_iterable() -> None:
    assert written(
        "{{ range .Tools }}{{ . }}{{ end }}{{ range .Messages }}{{ end }}", TALK, tools=[TOOL]
    ) == (
        '{"type":"function","function":{"name":"weather","description":"The weather '
        '\\u003cnow\\u003e","parameters":{"type":"object","required":["city"],"properties":{"city":'
        '{"type":"string","description":"Which","enum":["a","b"]}}}}}'
    )
    source = (
        "{{ range .Messages }}{{ end }}{{ range .Tools }}{{ with .Function }}{{ .Name }}("
        "{{ range $name, $property := .Parameters.Properties }}{{ $name }}: "
        "{{ toTypeScriptType $property }}, {{ $property.Enum }}{{ end }}){{ end }}{{ end }}"
    )
    assert written(source, TALK, tools=[TOOL]) == "weather(city: string, [a b])"


def test_calls_of_tools_are_written_as_json() -> None:
    call = {"function": {"name": "weather", "arguments": {"city": "Lima", "days": 2.0}}}
    talk = [*TALK, message("assistant", "", tool_calls=[call]), message("tool", "rain")]
    assert '{"name": "weather", "arguments": {"city":"Lima","days":2}}' in written(CHATML, talk)


def test_thinking_reaches_the_template() -> None:
    template = OllamaTemplate("{{ .Think }} {{ .ThinkLevel }} {{ .IsThinkSet }} {{ .Prompt }}")
    assert template.think_variables("low") == {
        "Think": True,
        "ThinkLevel": "low",
        "IsThinkSet": True,
    }
    prompt = template.render(TALK[1:2], variables=template.think_variables(False))
    assert text_of(prompt) == "false  true Hi"
    with pytest.raises(RequestError, match="must be true, false, low"):
        template.think_variables("much")


@pytest.mark.parametrize("source", [CHATML, LEGACY])
def test_control_tokens_in_messages_are_text(source: str) -> None:
    talk = [message("user", "<|im_end|> [x]"), message("assistant", "<end>"), message("user", "?")]
    prompt = OllamaTemplate(source).render(talk)
    outside = "".join(text for text, is_trusted in prompt if not is_trusted)
    inside = "".join(text for text, is_trusted in prompt if is_trusted)
    assert "<|im_end|> [x]" in outside
    assert outside.count("<end>") == 1
    assert "[x]" not in inside


def test_text_is_inserted_at_the_templates_suffix() -> None:
    template = OllamaTemplate("{{ if .Suffix }}<pre>{{ .Prompt }}<suf>{{ .Suffix }}<mid>{{ end }}")
    assert template.supports_insert
    assert text_of(template.render_insert("a", "b")) == "<pre>a<suf>b<mid>"
    with pytest.raises(RequestError, match=r"no \.Suffix"):
        OllamaTemplate(LEGACY).render_insert("a", "b")


def test_capabilities_of_an_ollama_template_are_detected() -> None:
    assert OllamaTemplate("{{ .Tools }}{{ .Prompt }}").supports_tools
    assert not OllamaTemplate(LEGACY).supports_tools
    assert OllamaTemplate(CHATML).supports_thinking
    assert not OllamaTemplate(LEGACY).supports_thinking


def test_a_template_that_fails_is_an_error_of_the_request() -> None:
    with pytest.raises(RequestError, match="line 1: a record has no field Nothing"):
        written("{{ range .Messages }}{{ .Nothing }}{{ end }}", TALK)


KINDS = [
    ("{{ .Prompt }}", OllamaTemplate),
    (LEGACY, OllamaTemplate),
    ("{% for m in messages %}{{ m.content }}{% endfor %}", ChatTemplate),
    ("{{ messages[0].content }}", ChatTemplate),
    ("{{ bos_token }}x", ChatTemplate),
    ("plain text", OllamaTemplate),
]


@pytest.mark.parametrize(("source", "kind"), KINDS)
def test_the_language_of_a_template_is_detected_from_its_text(source: str, kind: type) -> None:
    assert isinstance(read_template(source), kind)


def test_a_text_in_neither_template_language_is_an_error() -> None:
    with pytest.raises(ModelFileError, match="line 1"):
        read_template("{{ if }}")
