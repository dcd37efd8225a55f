"""What templates can show is found by rendering them."""

from __future__ import annotations

from typing import Any

import pytest
from support.chat_templates import TEMPLATES

from tampu.chat.ollama_template import OllamaTemplate
from tampu.chat.template import ChatTemplate
from tampu.chat.template_caps import template_caps
from tampu.chat.template_loader import read_template

CAPS = {
    "supports_string_content", "supports_typed_content", "supports_tools", "supports_tool_calls",
    "supports_parallel_tool_calls", "supports_system_role", "supports_preserve_reasoning",
}  # fmt: skip
FAMILIES = {
    "chatml": "string_content tools tool_calls parallel_tool_calls system_role",
    "llama": "string_content tools tool_calls system_role",  # it refuses two calls
    "mistral": "string_content tools tool_calls parallel_tool_calls system_role",
    "gemma": "string_content typed_content system_role",
    "harmony": "string_content tools tool_calls system_role",  # it shows the first call alone
    "deepseek": "string_content tool_calls parallel_tool_calls system_role",
    "command": "string_content system_role",
}
PLAIN = "{% for m in messages %}{{ m.role }}: {{ m.content }}\n{% endfor %}"
OLLAMAS = (
    "{{ range .Tools }}{{ .Function.Name }}{{ end }}"
    "{{ range .Messages }}{{ .Role }}: {{ .Content }}"
    "{{ range .ToolCalls }}{{ .Function.Name }}{{ end }}{{ end }}"
)


def caps_of(source: str) -> set[str]:
    found = template_caps(read_template(source))
    assert found.keys() == CAPS
    return {name.removeprefix("supports_") for name, is_there in found.items() if is_there}


@pytest.mark.parametrize("family", TEMPLATES)
def test_the_caps_of_the_families(family: str) -> None:
    assert caps_of(TEMPLATES[family]) == {*FAMILIES[family].split()}


def test_a_template_that_writes_all_messages_shows_the_system_message() -> None:
    assert caps_of(PLAIN) == {"string_content", "system_role"}


def test_reasoning_of_earlier_answers_may_be_shown() -> None:
    source = PLAIN.replace("{{ m.content }}", "{{ m.reasoning_content }}{{ m.content }}")
    assert caps_of(source) == {"string_content", "system_role", "preserve_reasoning"}


def test_a_template_of_ollamas_is_rendered_too() -> None:
    assert isinstance(read_template(OLLAMAS), OllamaTemplate)
    assert {"tools", "tool_calls", "parallel_tool_calls", "typed_content"} <= caps_of(OLLAMAS)


def test_a_template_that_fails_is_rendered_once() -> None:
    asked = []

    class Refusing(ChatTemplate):
        def render(self, *given: Any, **more: Any) -> tuple[tuple[str, bool], ...]:
            asked.append(given)
            return super().render(*given, **more)

    found = template_caps(Refusing("{{ raise_exception('no') }}"))
    assert (len(asked), any(found.values())) == (1, False)
    assert not any(template_caps(None).values())
