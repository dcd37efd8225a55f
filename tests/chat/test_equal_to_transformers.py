"""Whatever a template uses, it renders to the very text that transformers makes of it."""

from __future__ import annotations

from typing import Any

import pytest
from jinja2.filters import FILTERS
from transformers.utils.chat_template_utils import render_jinja_template

from tampu.chat.jinja_sandbox import TemplateEnvironment
from tampu.chat.segments import text_of
from tampu.chat.template import ChatTemplate
from tampu.errors import ModelFileError, RequestError

MESSAGES: list[dict[str, Any]] = [
    {"role": "system", "content": "Be <b>short</b> & \"kind\"."},
    {"role": "user", "content": "  Zürich HB, 2 o'clock?\n\tYes  ", "name": "ann"},
    {"role": "assistant", "content": "", "tool_calls": [
        {"type": "function", "id": "c1", "function": {
            "name": "f", "arguments": {"b": [1, 2.5, None], "a": "é</x>", "z": {"k": True}}}}]},
    {"role": "tool", "content": "{\"t\": 21}", "tool_call_id": "c1"},
]  # fmt: skip
TOOLS = [{"type": "function", "function": {"name": "f", "description": "d <&>", "parameters": {}}}]
SETTING = (
    "{% set s = messages[0].content %}{% set c = messages[1].content %}"
    "{% set a = messages[2].tool_calls[0].function.arguments %}{% set l = [3, 1, 2] %}"
    "{% macro m(x) %}[{{ x }}]{% endmacro %}"
)
TEMPLATES = [
    # each filter of Jinja, with and without arguments
    "{{ -3 | abs }}", "{{ l | batch(2, 0) | list }}", "{{ c | trim | capitalize }}",
    "{{ 'ab' | center(7) }}|", "{{ l | count }}{{ l | length }}", "{{ q | default('x') }}",
    "{{ '' | d('x', true) }}", "{{ a | dictsort }}", "{{ a | dictsort(false, 'key', true) }}",
    "{{ s | e }}", "{{ s | escape }}{{ s | forceescape }}", "{{ 123456789 | filesizeformat }}",
    "{{ 1024 | filesizeformat(true) }}", "{{ l | first }}{{ l | last }}", "{{ '1.5' | float }}",
    "{{ '%s %d' | format('a', 2) }}", "{{ messages | groupby('role') | map('first') | list }}",
    "{{ c | indent(3) }}", "{{ c | indent(3, true, true) }}", "{{ c | indent('>', blank=true) }}",
    "{{ 'a\\r\\nb\\x0bc\\n\\n' | indent(2) }}|", "{{ [a] | join(',', attribute='z.k') }}",
    "{{ '%(x)s' | format(x=s) }}", "{{ s | replace('', '-') }}{{ s | center }}",
    "{{ 7 | center(3) }}",
    "{{ '7' | int + 1 }}{{ 'x' | int(4) }}{{ '0x1f' | int(0, 16) }}",
    "{{ a | items | list }}", "{{ l | join('-') }}{{ messages | join(',', attribute='role') }}",
    "{{ 'abc' | list }}", "{{ s | lower }}{{ s | upper }}", "{{ l | map('string') | join }}",
    "{{ messages | map(attribute='name', default='-') | list }}", "{{ l | max }}{{ l | min }}",
    "{{ messages | max(attribute='role') }}", "{{ a | pprint }}", "{{ [7] | random }}",
    "{{ l | reject('odd') | list }}{{ l | select('gt', 1) | list }}",
    "{{ messages | rejectattr('content') | list | length }}",
    "{{ messages | selectattr('role', 'equalto', 'user') | map(attribute='content') | list }}",
    "{{ s | replace('s', 'S', 1) }}", "{{ l | reverse | list }}{{ 'abc' | reverse }}",
    "{{ 2.567 | round(1) }}{{ 2.1 | round(method='ceil') }}", "{{ s | safe }}",
    "{{ l | slice(2) | list }}", "{{ l | sort(reverse=true) }}", "{{ 7 | string ~ 'x' }}",
    "{{ s | striptags }}", "{{ l | sum }}{{ l | sum(start=10) }}", "{{ 'a bc' | title }}",
    "{{ a | tojson }}", "{{ a | tojson(indent=2) }}", "{{ a | tojson(ensure_ascii=true) }}",
    "{{ a | tojson(separators=(',', ':')) }}", "{{ a | tojson(sort_keys=true) }}",
    "{{ s | tojson }}{{ tools | tojson }}{{ none | tojson }}", "{{ c | trim }}",
    "{{ c | trim('? ') }}",
    "{{ s | truncate(9) }}", "{{ s | truncate(9, true, '~', 0) }}",
    "{{ [1, 1, 2] | unique | list }}",
    "{{ c | urlencode }}{{ {'a b': 'é&'} | urlencode }}", "{{ 'see https://a.bc/d' | urlize }}",
    "{{ s | wordcount }}", "{{ s | wordwrap(5) }}", "{{ {'a': '<', 'b': none} | xmlattr }}",
    "{{ messages[1] | attr('content') }}{{ ('x' | attr('upper'))() }}", "{{ s|upper|lower|title }}",
    # statements and extensions
    "{% for x in l %}{% if x == 1 %}{% continue %}{% endif %}{{ x }}{% endfor %}",
    "{% for x in l %}{% if x == 2 %}{% break %}{% endif %}{{ x }}{% endfor %}",
    "{% generation %}{{ s }}{% endgeneration %}", "{% raw %}{{ x }}{% endraw %}",
    "{% set x %}a{{ s }}{% endset %}{{ x }}", "{% filter upper %}a{{ s }}{% endfilter %}",
    "{% call m(1) %}{% endcall %}{{ m(s) }}", "{% block b %}b{% endblock %}{{ self.b() }}",
    "{% macro w() %}<{{ caller(2) }}>{% endmacro %}{% call(n) w() %}{{ n }}{% endcall %}",
    "{% with y = 5 %}{{ y }}{% endwith %}", "{# nothing #}x", "{%- if true -%}  y  {%- endif -%} z",
    "{% autoescape false %}{{ s }}{% endautoescape %}",
    "{% autoescape true %}<i>{{ s }}{{ c | safe }}{{ s | e }}</i>{% endautoescape %}{{ s }}",
    "{% for x in [1, [2, [3]]] recursive %}{{ loop(x) if x is iterable else x }}{% endfor %}",
    "{% for x in l %}{{ loop.index }}{{ loop.cycle('a', 'b') }}{{ loop.previtem }}"
    "{{ loop.nextitem }}{{ loop.changed(x > 1) }}{{ loop.revindex0 }}{{ loop.last }}{% endfor %}",
    "{% for k, v in a.items() %}{{ k }}={{ v }};{% else %}none{% endfor %}",
    "{% for x in l if x > 1 %}{{ x }}{{ loop.length }}{% endfor %}",
    # globals
    "{% set n = namespace(x=1) %}{% for i in l %}{% set n.x = n.x + i %}{% endfor %}{{ n.x }}",
    "{% set k = cycler('odd', 'even') %}{{ k.next() }}{{ k.next() }}{{ k.current }}{{ k.reset() }}",
    "{% set j = joiner('; ') %}{% for x in l %}{{ j() }}{{ x }}{% endfor %}", "{{ joiner()() }}|",
    "{{ dict(a=1, b=s) }}{{ dict.fromkeys([1], 2) }}",
    "{{ range(5) | list }}{{ range(1, 6, 2)[1] }}",
    "{{ strftime_now('%Y %Z%z') }}", "{{ raise_exception('no ' ~ s) }}",
    # methods, operators and tests
    "{{ 'x'.encode() }}{{ s.encode('utf-8') | length }}", "{{ 'é'.encode().decode('utf-8') }}",
    "{{ 'é'.encode().hex() }}{{ s.encode().count(s[0].encode()) }}", "{{ s.encode()[0] }}",
    "{{ c.split() }}{{ c.strip().split(',', 1) }}{{ c.splitlines() }}", "{{ s.partition(' ') }}",
    "{{ 'a-{}-{x}'.format(1, x=s) }}{{ '%05.2f|%x' % (1.5, 255) }}", "{{ '%c' % 65 }}",
    "{{ s[2:9] }}{{ s[::-1] }}{{ s[-1] }}{{ l[1:] }}", "{{ s * 2 }}{{ [1] * 2 }}{{ l + [s] }}",
    "{{ 7 // 2 }}{{ 7 % 4 }}{{ 2 ** 5 }}{{ 7 / 2 }}{{ -1 }}", "{{ s ~ 1 ~ none ~ l ~ 1.0 }}",
    "{{ 'a' in s }}{{ 'b' not in a }}{{ 1 < 2 <= 2 }}{{ not 1 and 2 or 3 }}", "{{ 1 if 0 }}|",
    "{{ s is string }}{{ a is mapping }}{{ l is sequence }}{{ q is undefined }}{{ 1 is number }}",
    "{{ 'e' is filter }}{{ 'odd' is test }}{{ 4 is divisibleby 2 }}{{ m is callable }}",
    "{{ 1.0 is float }}{{ true is boolean }}{{ 1 is sameas 1 }}",
    "{{ none is none }}", "{{ 'A' is upper }}",
    "{{ true }}{{ none }}{{ 1e3 }}{{ 1_000 }}{{ q }}{{ messages[1].q }}", "{{ 'a' 'b' }}{{ (1,) }}",
    "{{ {'a': 1}['a'] }}{{ a.z.k }}{{ a['b'][1] }}{{ messages[-1]['role'] }}", "{{ s.title() }}",
    "{{ s.startswith(('Be', 'x')) }}{{ s.find('k') }}{{ s.isalpha() }}{{ s.zfill(30) }}",
    "{{ a.get('a') }}{{ a.get('q', 4) }}{{ a.keys() | list }}{{ a.values() | list | length }}",
    "{{ [1, 2].index(2) }}{{ l.count(3) }}{{ 'ab'.join(['x', s]) }}", "{{ '\\n\\t\\x41\\u00e9' }}",
    # what both refuse
    "{{ s | fromjson }}", "{{ l.append(1) }}", "{{ q.x.y }}", "{% include 'x' %}",
    "{{ s.__class__ }}",
    "{{ a.update(a) }}", "{{ 1 / 0 }}", "{{ l | nothing }}", "{% trans %}x{% endtrans %}",
    "{{ 1 is x }}",
    "{{ ''.format.__globals__ }}", "{{ s | attr('__class__') }}x{{ (s | attr('__class__')).x }}",
]  # fmt: skip


def ours(source: str) -> str | None:
    try:
        template = ChatTemplate(source)
        prompt = template.render(MESSAGES, tools=TOOLS, bos_token="<s>", eos_token="</s>")
    except (ModelFileError, RequestError):
        return None
    return text_of(prompt)


def theirs(source: str) -> str | None:
    try:
        texts, _ = render_jinja_template(
            [MESSAGES], TOOLS, chat_template=source, add_generation_prompt=True,
            bos_token="<s>", eos_token="</s>",
        )  # fmt: skip
    except Exception:  # any: it is the template that fails  # noqa: BLE001
        return None
    return str(texts[0])


@pytest.mark.parametrize("source", TEMPLATES)
def test_a_template_renders_as_in_transformers_or_fails_in_both(source: str) -> None:
    assert ours(SETTING + source) == theirs(SETTING + source)


def test_every_filter_of_jinja_is_there_and_in_the_table() -> None:
    assert FILTERS.keys() <= TemplateEnvironment().filters.keys()
    table = " ".join(TEMPLATES)
    assert [name for name in FILTERS if f"| {name}" not in table and f"|{name}" not in table] == []


def test_a_statement_that_writes_nothing_is_accepted_besides() -> None:
    assert ours("{% do strftime_now('%Y') %}x{% do messages | length %}") == "x"
