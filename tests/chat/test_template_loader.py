"""Which template a model has; one that does not compile hurts conversations only."""

from __future__ import annotations

from typing import Any

import pytest

from tampu.chat.template import ChatTemplate
from tampu.chat.template_loader import model_template, usable
from tampu.chat.unusable_template import UnusableTemplate
from tampu.errors import RequestError
from tampu.ml.metadata import Metadata

KEY = "tokenizer.chat_template"
USER = [{"role": "user", "content": "hello"}]
TEMPLATE = "{{ messages[0].content }}"


def of_file(template: Any = None, tool_use: Any = None) -> Any:
    given = {KEY: template, f"{KEY}.tool_use": tool_use}
    values = {key: value for key, value in given.items() if value is not None}
    return model_template(Metadata({"general.architecture": "llama", **values}))


def test_the_template_is_found_in_the_metadata() -> None:
    assert of_file(TEMPLATE).source == TEMPLATE
    assert of_file() is None


def test_the_template_of_a_file_is_compiled_once_for_all_that_ask() -> None:
    assert of_file(TEMPLATE) is of_file(TEMPLATE)
    assert of_file(TEMPLATE, "{{ tools }}") is not of_file(TEMPLATE)


def test_the_models_own_template_for_tools_is_used_with_tools() -> None:
    template = of_file("plain", "with {{ tools | length }}")
    assert template.render(USER, bos_token="", eos_token="") == (("plain", True),)
    assert template.render(USER, tools=[{}], bos_token="", eos_token="") == (("with 1", True),)
    assert template.supports_tools


@pytest.mark.parametrize(
    ("source", "told"),
    [
        ("ok\n{% if %}", "line 2: "),
        ("{{ messages | fromjson }}", "line 1: No filter named 'fromjson'"),
        ("{{ m.content }", "line 1: "),
        ("{% include 'x' %}" * 100_000, "more than 524288"),
        (7, "must be a text, not int"),
        ([1], "must be a text, not list"),
        (True, "must be a text, not bool"),
    ],
)
def test_a_template_that_cannot_be_used_refuses_conversations_and_says_what_to_do(
    source: Any, told: str
) -> None:
    template = of_file(source)
    assert isinstance(template, UnusableTemplate)
    with pytest.raises(RequestError) as caught:
        template.render(USER)
    assert told in str(caught.value)
    assert "TEMPLATE" in str(caught.value)
    assert "\n" not in str(caught.value)


def test_a_template_for_tools_that_does_not_compile_hurts_conversations_with_tools_only() -> None:
    template = of_file("plain", "{{ tools")
    assert template.render(USER, bos_token="", eos_token="") == (("plain", True),)
    with pytest.raises(RequestError, match="for tools: line 1"):
        template.render(USER, tools=[{}], bos_token="", eos_token="")
    assert template.variables == frozenset()
    assert of_file("plain", 7).problem.startswith(f"key '{KEY}.tool_use'")


def test_bytes_that_are_not_utf_8_become_replacement_characters() -> None:
    template = of_file("caf\udce9 {{ messages[0].content }}")
    assert isinstance(template, ChatTemplate)
    assert template.render(USER, bos_token="", eos_token="")[0] == ("caf\ufffd ", True)


def test_a_go_template_that_does_not_parse_keeps_its_capabilities() -> None:
    template = usable("{{ .Prompt }}{{ range .Tools }}\n{{ nothing .X }}{{ end }}")
    assert isinstance(template, UnusableTemplate)
    assert template.supports_tools
    assert "line 2" in template.problem
