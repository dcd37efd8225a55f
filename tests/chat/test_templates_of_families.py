"""Templates in the families' styles render to the very text that transformers makes of them."""

from __future__ import annotations

import functools
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from support.chat_templates import CONVERSATIONS, TEMPLATES, TOOLS
from transformers.utils.chat_template_utils import render_jinja_template

from tampu.chat.segments import text_of
from tampu.chat.template import ChatTemplate
from tampu.errors import RequestError

pytestmark = pytest.mark.parity

SPECIALS = {"bos_token": "<s>", "eos_token": "</s>"}
REFUSED = "refused"


def original(source: str, messages: Any, **options: Any) -> str:
    try:
        [text], _ = render_jinja_template([messages], chat_template=source, **SPECIALS, **options)
    except Exception:  # noqa: BLE001  # whatever a template does wrong
        return REFUSED
    return text


@functools.cache
def template(source: str) -> ChatTemplate:
    return ChatTemplate(source)


def ours(
    source: str,
    messages: Any,
    *,
    tools: list[dict[str, Any]] | None = None,
    add_generation_prompt: bool = True,
    **variables: Any,
) -> str:
    try:
        prompt = template(source).render(
            messages,
            tools=tools,
            add_generation_prompt=add_generation_prompt,
            variables=variables,
            **SPECIALS,
        )
    except RequestError:
        return REFUSED
    return text_of(prompt)


@pytest.mark.parametrize("conversation", CONVERSATIONS)
@pytest.mark.parametrize("family", TEMPLATES)
def test_the_rendered_text_equals_that_of_transformers(family: str, conversation: str) -> None:
    messages = CONVERSATIONS[conversation]
    rendered = 0
    for tools in (None, TOOLS):
        for more in (
            {"add_generation_prompt": True},
            {"add_generation_prompt": False},
            {"add_generation_prompt": True, "enable_thinking": False, "reasoning_effort": "high"},
        ):
            expected = original(TEMPLATES[family], messages, tools=tools, **more)
            assert ours(TEMPLATES[family], messages, tools=tools, **more) == expected
            rendered += expected != REFUSED
    assert rendered or (family, conversation) in {
        ("gemma", "strange"), ("llama", "two calls"), ("mistral", "parts"), ("mistral", "strange"),
        ("deepseek", "parts"), ("command", "parts"), ("command", "strange"), ("llama", "parts"),
    }  # fmt: skip


EXPRESSIONS = [
    "c", "c | trim", "c | upper", "c | title", "c | capitalize", "c | tojson", "c | length",
    "c | replace('a', 'bc')", "c | replace('a', 'b', 1)", "c.replace('', 'x')", "c.split()",
    "c.split('a')", "c.rsplit(None, 1)", "c.splitlines()", "c.partition('a')", "c[1:3]", "c[-1]",
    "c | first", "c | last", "c | list", "c | reverse", "c | sort | join", "c | unique | list",
    "c | string", "c | safe", "c | e", "c | indent", "c | indent(1, true)", "c | center(9)",
    "c | truncate(3)", "c | wordwrap(3)", "c | wordcount", "c | striptags", "c | int", "c | float",
    "[c, 1, none, c] | join('-')", "{'k': c} | tojson(indent=1)", "{c: 1}", "[c] * 2", "c * 2",
    "c ~ 1 ~ c", "c + 'x'", "'x' + c", "'%s|%r' % (c, c)", "'%5s' % c", "'{}{!r:>9}'.format(c, c)",
    "'%s' | format(c)", "c.title()", "c.swapcase()", "c.center(7, '*')", "c.zfill(5)",
    "c.isdigit()",
    "c.startswith('a')", "c in 'abc'", "'a' in c", "c == 'a'", "c is lower", "c is string",
    "c is iterable", "c | default('x', true)", "c if c else 'none'", "[[c]] | sum(start=[])",
    "[c, 'a'] | max", "[{'k': c}] | map(attribute='k') | list", "[c] | map('upper') | list",
    "[{'k': c}, {'k': 'a'}] | selectattr('k', 'equalto', c) | list", "dict(k=c)",
    "dict(k=c).items()",
    "[c, 'b'] | batch(1) | list", "[c, 'b'] | slice(2) | list", "{c: c} | dictsort", "c | d",
    "c.strip('a').lstrip().rstrip('\n')", "c.removeprefix('a')", "c.expandtabs(2)", "c.find('a')",
    "c.join(['x', 'y'])", "[c, 'x'] | groupby(0) | list | length", "(c, 1)", "c.casefold()",
    "namespace(k=c).k", "c.count('a')", "c.encode is defined", "'a%%' % ()", "'%d%s' % (3, c)",
]  # fmt: skip


@settings(max_examples=25)
@given(st.text("aB \n\t<&1\u00df\u0130\u00e9", max_size=9))
@pytest.mark.parametrize("expression", EXPRESSIONS)
def test_expressions_on_untrusted_text_have_jinjas_values(expression: str, text: str) -> None:
    source = "{% set c = messages[0].content %}{{ " + expression + " }}"
    messages = [{"role": "user", "content": text}]
    assert ours(source, messages) == original(source, messages)
