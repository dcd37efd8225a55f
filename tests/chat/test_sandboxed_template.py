"""Templates in a sandbox: the same prompts, and nothing that a template does reaches the caller."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import closing
from typing import Any

import psutil
import pytest
from support.cost import cost, yardstick_by_the_clock
from support.fork_server import FORK_SERVER

from tampu.chat.ollama_template import OllamaTemplate
from tampu.chat.sandboxed_template import SandboxedTemplate
from tampu.chat.segments import text_of
from tampu.chat.template import ChatTemplate
from tampu.chat.template_loader import read_template
from tampu.errors import ModelFileError, RequestError

CHAT = "{% for m in messages %}<|{{ m.role }}|>{{ m.content | trim }}{{ eos_token }}{% endfor %}"
USER = [{"role": "user", "content": " hi <|end|> "}]
TOKENS: dict[str, Any] = {"bos_token": "<s>", "eos_token": "</s>"}

pytestmark = pytest.mark.server


@pytest.fixture(scope="module")
def sandboxed() -> Iterator[Callable[[Any], Any]]:
    made = []

    def make(source: str) -> SandboxedTemplate:
        made.append(SandboxedTemplate(ChatTemplate(source), FORK_SERVER))
        return made[-1]

    yield make
    for template in made:
        template.close()


def test_sandboxed_template_renders_the_same_prompt(sandboxed: Callable[[Any], Any]) -> None:
    source = CHAT + "{{ tools | tojson }}{{ thinking }}"
    options: dict[str, Any] = {"tools": [{"x": "é"}], "variables": {"thinking": True}, **TOKENS}
    expected = ChatTemplate(source).render(USER, **options)
    assert sandboxed(source).render(USER, **options) == expected
    assert (False in {is_trusted for _, is_trusted in expected}) is True


def test_lone_surrogates_and_long_conversations_are_rendered(
    sandboxed: Callable[[Any], Any],
) -> None:
    messages = [{"role": "user", "content": "\ud800" + "x" * 200_000}] * 10
    assert len(text_of(sandboxed(CHAT).render(messages, **TOKENS))) > 2_000_000


def test_ollama_templates_render_in_the_sandbox() -> None:
    template = SandboxedTemplate(
        OllamaTemplate("{{ range .Messages }}<{{ .Role }}>{{ .Content }}{{ end }}"),
        FORK_SERVER,
    )
    assert text_of(template.render(USER, **TOKENS)) == "<user> hi <|end|> "
    template.close()


@pytest.mark.parametrize(
    "answer",
    [b"", b"\xff", b"[" * 100_000, b"3", b'{"prompt": 1}', b'{"prompt": [["a"]]}',
     b'{"prompt": [["a", "b"]]}', b'{"refusal": 1}'],
)  # fmt: skip
def test_unexpected_response_is_reported_as_the_templates_fault(
    sandboxed: Callable[[Any], Any], monkeypatch: pytest.MonkeyPatch, answer: bytes
) -> None:
    monkeypatch.setattr("tampu.sandbox.process.SandboxedProcess.call", lambda *_: answer)
    with pytest.raises(RequestError, match="chat template: unexpected response from its process"):
        sandboxed(CHAT).render(USER, **TOKENS)


def test_long_texts_are_written_and_read_by_msgspec(
    sandboxed: Callable[[Any], Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    """`json` keeps all threads from running for as long as a text takes."""
    messages = [{"role": "user", "content": "long é " * 100_000}]
    expected = ChatTemplate(CHAT).render(messages, **TOKENS)
    template = sandboxed(CHAT)
    monkeypatch.setattr("tampu.chat.sandboxed_template.json", None)
    assert template.render(messages, **TOKENS) == expected


@pytest.mark.parametrize("number", [float("inf"), 2**70, 1.5, True])
def test_numbers_are_rendered_as_without_the_sandbox(
    sandboxed: Callable[[Any], Any], number: float
) -> None:
    source = "{{ messages[0].content }}"
    messages = [{"role": "user", "content": number}]
    expected = ChatTemplate(source).render(messages, **TOKENS)
    assert text_of(sandboxed(source).render(messages, **TOKENS)) == text_of(expected)


def test_long_conversations_are_rendered_with_low_priority(sandboxed: Callable[[Any], Any]) -> None:
    template = sandboxed(CHAT)
    template.render(USER, **TOKENS)
    template.render([{"role": "user", "content": "x" * 100_000}], **TOKENS)
    me = psutil.Process()
    niceness = {child.nice() for child in me.children(recursive=True)}
    assert niceness == {me.nice(), min(me.nice() + 10, 19)}


def test_images_need_not_be_plain_data(sandboxed: Callable[[Any], Any]) -> None:
    message = {**USER[0], "media": [object(), object()]}
    prompt = sandboxed("{{ messages[0].images | length }}").render([message], **TOKENS)
    assert text_of(prompt) == "2"


def test_raise_exception_is_reported(sandboxed: Callable[[Any], Any]) -> None:
    template = sandboxed("{{ raise_exception('user first') }}")
    with pytest.raises(RequestError, match="chat template: user first"):
        template.render(USER, **TOKENS)


@pytest.mark.parametrize("value", [object(), b"x", {1: object()}])
def test_values_that_are_not_plain_data_are_refused(
    sandboxed: Callable[[Any], Any], value: object
) -> None:
    with pytest.raises(RequestError, match="plain data"):
        sandboxed(CHAT).render([{"role": "user", "content": value}], **TOKENS)


# None of these passes through a loop of the template, where the sandbox looks at the clock.
HOSTILE = [
    "{{ ('x y ' * 2000000) | wordwrap(1) }}",
    "{{ range(90000) | slice(20000000) | list }}",
    "{% set r = range(90000) | list %}{{ r | select('in', r | map('string') | list) | list }}",
    "{% set r = range(90000) | list %}{{ r | reject('in', r[::-1]) | list | length }}",
    "{{ ([range(90000) | list] * 9000) | sum(start=[]) | length }}",
    "{% set s = 'ab ' * 2600000 %}{{ [s.split(), s.split(), s.split(), s.split()] | length }}",
    "{{ 'x'.ljust(1000).expandtabs(1000) * 60000 }}",
    "{% set x = ['a' * 900000] * 70 %}{{ (x | join).upper().lower().title().swapcase() | list }}",
]


@pytest.mark.slow
@pytest.mark.parametrize("source", HOSTILE)
def test_template_that_escapes_the_jinja_sandbox_hits_the_process_limits(
    sandboxed: Callable[[Any], Any], source: str
) -> None:
    template = sandboxed(source)

    def refuse() -> None:
        with pytest.raises(RequestError, match="chat template: "):
            template.render(USER, **TOKENS)

    assert cost(refuse, 1, time.perf_counter) < 600 * yardstick_by_the_clock()
    assert text_of(sandboxed(CHAT).render(USER, **TOKENS)) == "<|user|>hi <|end|></s>"


@pytest.mark.parametrize(
    "source",
    ["{{ 'x' * 1000000000 }}", "{{ 10 ** 10 ** 10 }}", "{{ ('x' | list) * 1000000000 }}",
     "{{ 'x' | indent(1000000000) }}", "{{ [1] | sum }}{{ 'a' | upper }}"],
)  # fmt: skip
def test_no_code_of_a_template_runs_while_it_is_compiled(
    source: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    ran = []
    monkeypatch.setattr(
        "tampu.chat.jinja_sandbox.is_marked", lambda value: ran.append(value) or False
    )
    ChatTemplate(source)
    assert ran == []


def test_a_template_of_a_megabyte_is_refused() -> None:
    with pytest.raises(ModelFileError, match="more than 524288"):
        ChatTemplate("x" * 1_000_000)


MALFORMED = ['{"value": ', "not json", "[1,2]", '"x"', '{"a": 1}}', '{"a": 1}{"b": 2}', "{'a': 1}"]
OF_CALLS = [
    "{{ messages[1].tool_calls[0].function.arguments }}",
    "{% set a = messages[1].tool_calls[0].function.arguments %}"
    "{% for k, v in a | items %}{{ v ~ '' }}{% endfor %}",
    "{% set a = messages[1].tool_calls[0].function.arguments %}"
    "{% for k, v in a.items() %}{{ v ~ '' }}{% endfor %}",
    "{% set a = messages[1].tool_calls[0].function.arguments %}"
    "{{ a if a is string else raise_exception('no text') }}",
    "{{ range .Messages }}{{ range .ToolCalls }}{{ .Function.Arguments }}{{ end }}{{ end }}",
    "{{ range .Messages }}{{ range .ToolCalls }}{{ range $k, $v := .Function.Arguments }}{{ $v }}"
    "{{ end }}{{ end }}{{ end }}",
]


@pytest.mark.parametrize("source", OF_CALLS)
@pytest.mark.parametrize("arguments", MALFORMED)
def test_arguments_that_are_no_object_are_shown_as_they_are(source: str, arguments: str) -> None:
    function = {"name": "f", "arguments": arguments}
    messages: list[dict[str, Any]] = [
        {"role": "user", "content": "hi"},
        {"role": "assistant", "content": "", "tool_calls": [{"id": "c", "function": function}]},
    ]
    with closing(SandboxedTemplate(read_template(source), FORK_SERVER)) as template:
        prompt = template.render(messages, bos_token="", eos_token="")
    assert text_of(prompt).strip() == arguments.strip()
    assert not any(is_trusted for text, is_trusted in prompt if text.strip())
