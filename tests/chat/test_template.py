"""Chat templates: what Hugging Face's templates rely on, and what a hostile one must not get."""

from __future__ import annotations

import itertools
import time
from typing import Any

import pytest
from support.cost import cost, yardstick

from tampu.chat import budget
from tampu.chat.segments import text_of
from tampu.chat.template import ChatTemplate
from tampu.errors import ModelFileError, RequestError, TampuError

CHATML = """\
{% for message in messages %}
    {% if message.role == 'system' and not loop.first %}
        {{ raise_exception('system must come first') }}
    {% endif %}
    {{- '<|im_start|>' + message.role + '\\n' + message.content + '<|im_end|>\\n' }}
{%- endfor %}
{% if add_generation_prompt %}{{ '<|im_start|>assistant\\n' }}{% endif %}
"""
USER = [{"role": "user", "content": "hello"}]


def render(
    source: str,
    messages: list[dict[str, str]] = USER,
    *,
    tools: list[Any] | None = None,
    add_generation_prompt: bool = True,
    **variables: bool,
) -> str:
    template = ChatTemplate(source)
    prompt = template.render(
        messages,
        tools=tools,
        add_generation_prompt=add_generation_prompt,
        bos_token="<s>",
        eos_token="</s>",
        variables=variables,
    )
    return text_of(prompt)


def test_a_conversation_is_rendered_with_the_answers_prefix() -> None:
    expected = "<|im_start|>user\nhello<|im_end|>\n<|im_start|>assistant\n"
    assert render(CHATML) == expected
    assert render(CHATML, add_generation_prompt=False) == "<|im_start|>user\nhello<|im_end|>\n"


def test_the_text_of_a_message_is_not_escaped() -> None:
    messages = [{"role": "user", "content": "<b> & \"x\" 'y'"}]
    assert render("{{ messages[0].content }}", messages) == "<b> & \"x\" 'y'"


def test_special_tokens_tools_and_other_variables_reach_the_template() -> None:
    source = "{{ bos_token }}{{ tools[0].function.name }}{{ eos_token }}{{ enable_thinking }}"
    tools = [{"type": "function", "function": {"name": "f"}}]
    assert render(source, tools=tools, enable_thinking=False) == "<s>f</s>False"


def test_tools_are_none_when_there_are_none() -> None:
    assert render("{{ tools is none }}", tools=[]) == "True"


@pytest.mark.parametrize(
    ("source", "expected"),
    [
        ("{{ {'b': '<é>', 'a': 1} | tojson }}", '{"b": "<é>", "a": 1}'),
        ("{{ [1] | tojson(indent=2) }}", "[\n  1\n]"),
        ("{% for i in range(9) %}{% if i == 2 %}{% break %}{% endif %}{{ i }}{% endfor %}", "01"),
        ("{% set n = namespace(x=1) %}{% set n.x = n.x + 1 %}{{ n.x }}", "2"),
        ("{% macro m(a) %}[{{ a }}]{% endmacro %}{{ m('x') ~ m(2) }}", "[x][2]"),
        ("{% generation %}{{ 'as it is' }}{% endgeneration %}", "as it is"),
        ("{{ 'a b'.split() | join('+') }}{{ ' x '.strip() }}", "a+bx"),
        ("{{ messages | map(attribute='role') | join(',') }}", "user"),
        ("{{ 'a\nb' | indent(2) }}", "a\n  b"),
        ("{{ '%s-%02d' | format('a', 3) }}{{ '{}!'.format('b') }}", "a-03b!"),
        ("{{ 'x' * 3 + 'y' }}{{ 7 % 4 }}{{ 2 ** 3 }}", "xxxy38"),
        ("{{ missing is defined }}{{ missing }}", "False"),
        ("{{ 'abab' | replace('a', 'c') }}{{ 'abab'.replace('b', '') }}", "cbcbaa"),
        ("{%- if true %}\n  x\n{%- endif %}", "  x"),
    ],
)
def test_extensions_used_by_hugging_face_templates_work(source: str, expected: str) -> None:
    assert render(source) == expected


def test_todays_date_is_formatted() -> None:
    assert render("{{ strftime_now('%Y') }}") == time.strftime("%Y")


def test_raise_exception_of_a_template_is_a_request_error() -> None:
    messages = [*USER, {"role": "system", "content": "x"}]
    with pytest.raises(RequestError, match="chat template: system must come first"):
        render(CHATML, messages)


def test_the_text_of_raise_exception_is_cut() -> None:
    with pytest.raises(RequestError) as caught:
        render("{{ raise_exception('x' * 5000) }}")
    assert len(str(caught.value)) < 600


@pytest.mark.parametrize("source", ["{% if %}", "{{ 'a' | lipsum }}", "{% for x in %}", "{{ x"])
def test_invalid_jinja_is_refused_when_the_model_is_read(source: str) -> None:
    with pytest.raises(ModelFileError, match=r"tokenizer\.chat_template"):
        ChatTemplate(source)


def test_the_line_of_a_syntax_error_is_named() -> None:
    with pytest.raises(ModelFileError, match="line 2"):
        ChatTemplate("ok\n{% if %}")


@pytest.mark.parametrize(
    "source",
    [
        "{{ messages.append(1) }}",
        "{{ messages.__class__ }}{{ messages.__class__.__mro__ }}",
        "{{ raise_exception.__globals__ }}{{ raise_exception.__globals__['os'] }}",
        "{{ '{0.__class__.__mro__}'.format(messages) }}",
        "{% include 'x' %}",
        "{% import 'x' as x %}",
        "{% extends 'x' %}",
        "{{ lipsum() }}",
        "{{ 1 / 0 }}",
        "{{ messages[0].content + 1 }}",
        "{% macro m() %}{{ m() }}{% endmacro %}{{ m() }}",
        "{{ 'x' * 1000000000 }}",
        "{{ 1000000000 * 'x' }}",
        "{{ [0] * 1000000000 }}",
        "{{ 10 ** 10 ** 10 }}",
        "{{ 'x'.center(1000000000) }}",
        "{{ 'x'.ljust(width=1000000000) }}",
        "{{ 'x' | indent(1000000000) }}",
        "{{ '%1000000000d' % 1 }}",
        "{{ '%*d' % (1000000000, 1) }}",
        "{{ '%1000000000d' | format(1) }}",
        "{{ '{:1000000000}'.format(1) }}",
        "{{ '{:{}}'.format(1, 1000000000) }}",
        "{% set n = namespace(s='xxxxxxxx') %}"
        "{% for i in range(40) %}{% set n.s = n.s ~ n.s %}{% endfor %}",
        "{% set n = namespace(s=['x']) %}"
        "{% for i in range(40) %}{% set n.s = n.s + n.s %}{% endfor %}",
        "{% set s = 'x' * 8000000 %}{{ ([s] * 1000) | join }}",
        "{% set s = 'x' * 8000 %}{{ s | replace('x', s) }}",
        "{% set s = 'x' * 8000 %}{{ s.replace('x', s) }}",
        "{% set s = 'x' * 8000 %}{{ s.join(range(90000) | map('string') | list) }}",
        "{% for i in range(1000000000) %}{% endfor %}",
        "{{ range(90000) | batch(20000000, 'x') | list }}",
        "{{ ''|attr('__class__') }}{{ (''|attr('__class__')).mro() }}",
        "{{ '{x.__class__.__mro__}'.format_map({'x': messages}) }}",
        "{{ joiner(1).__init__.__globals__ }}",
        "{{ namespace.__init__.__globals__['os'] }}",
        "{{ self.__init__.__globals__ }}",
        "{% for m in messages %}{{ loop.__class__.__init__.__globals__ }}{% endfor %}",
        "{{ missing.field.of.nothing }}",
        "{% set x = messages %}{% set _ = x.pop() %}",
        "{% set s = 'x' * 1000000 %}{% for i in range(100) %}{{ s }}{% endfor %}",
    ],
)
def test_a_hostile_template_ends_in_an_error(source: str) -> None:
    with pytest.raises(TampuError):
        render(source)


def test_missing_values_are_empty_and_so_may_be_the_output() -> None:
    assert render("{{ missing }}") == ""
    assert render("{% if missing %}x{% endif %}{{ messages[0].nothing }}") == ""
    assert render("") == ""
    assert render("always the same") == "always the same"


def test_a_loop_over_all_messages_for_each_of_them_ends() -> None:
    messages = [{"role": "user", "content": "x"}] * 10_000
    source = "{% for a in messages %}{% for b in messages %}{{ b.content }}{% endfor %}{% endfor %}"

    def refuse() -> None:
        with pytest.raises(RequestError):
            render(source, messages)

    assert cost(refuse, times=1) < 300 * yardstick()


class Clock:
    """A second of CPU time passes whenever somebody looks at it; others run all day."""

    now_s = -1.0

    def thread_time(self) -> float:
        self.now_s += 1
        return self.now_s


@pytest.mark.slow
def test_a_template_that_does_not_end_is_stopped(monkeypatch: pytest.MonkeyPatch) -> None:
    loops = "{% set r = range(90000) %}{% for a in r %}{% for b in r %}{% endfor %}{% endfor %}"
    clock = Clock()
    monkeypatch.setattr(budget, "time", clock)
    with pytest.raises(RequestError, match="more than 2 s"):
        render(loops)
    assert clock.now_s == 3  # the first look after its time is up ends it


def test_a_rendering_that_waits_for_the_processor_is_not_stopped(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(time, "monotonic", itertools.count(0.0, 3600.0).__next__)
    assert render("{% for a in range(9) %}x{% endfor %}") == "x" * 9


def test_a_deeply_nested_template_is_refused() -> None:
    with pytest.raises(ModelFileError):
        ChatTemplate("{{ " + "(" * 3000 + "1" + ")" * 3000 + " }}")


def test_the_capabilities_of_a_template_are_detected() -> None:
    assert not ChatTemplate(CHATML).supports_tools
    assert ChatTemplate("{% if tools %}x{% endif %}").supports_tools
    assert not ChatTemplate(CHATML).supports_thinking
    assert ChatTemplate("<think>{{ x }}</think>").supports_thinking
    assert ChatTemplate("<|channel|>analysis<|message|>").supports_thinking


def test_the_variables_of_a_template_are_detected() -> None:
    source = "{% if enable_thinking is defined %}{{ thinking }}{% endif %}{% set x = 1 %}{{ x }}"
    assert ChatTemplate(source).variables == {"enable_thinking", "thinking"}


def test_a_variable_cannot_replace_the_messages() -> None:
    for name in ("messages", "bos_token", "add_generation_prompt"):
        with pytest.raises(RequestError, match=name):
            ChatTemplate("x").render(USER, bos_token="", eos_token="", variables={name: 1})
