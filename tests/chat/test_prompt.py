"""Prompts of conversations: special tokens, and what is dropped when they are too long."""

from __future__ import annotations

from collections.abc import Callable
from random import Random
from typing import Any

import pytest

from tampu.chat.prompt import BuiltPrompt, PromptBuilder
from tampu.chat.template import ChatTemplate
from tampu.errors import RequestError

SOURCE = """\
{{ bos_token }}{% for message in messages %}
{{ message.role[0] }}{{ message.content }}{{ eos_token }}{% endfor %}
{% if messages[0].role == 'assistant' %}{{ raise_exception('user first') }}{% endif %}
"""


class Letters:
    """One token per character, and one more in front if specials are asked for."""

    bos = ord("^")
    adds_bos = True

    def encode(
        self, text: str, *, add_special: bool = True, parse_special: bool = True
    ) -> list[int]:
        raise NotImplementedError

    def encode_pieces(self, pieces: Any, **_: bool) -> list[Any]:
        return [ord(character) for text, _ in pieces for character in text]

    def token_text(self, id: Any) -> str:
        return chr(id)


def built(messages: list[Any], source: str = SOURCE, **options: Any) -> BuiltPrompt:
    builder = PromptBuilder(ChatTemplate(source), Letters(), eos=ord("$"))
    return builder.build(messages, **{"limit": 100, **options})


def prompt(messages: list[Any], source: str = SOURCE, **options: Any) -> str:
    return "".join(map(chr, built(messages, source, **options).tokens))


def talk(*texts: str) -> list[Any]:
    roles = {"s": "system", "u": "user", "a": "assistant", "t": "tool"}
    return [{"role": roles[text[0]], "content": text[1:]} for text in texts]


def test_a_begin_token_written_by_the_template_is_not_doubled() -> None:
    assert prompt(talk("uhi")) == "^uhi$"
    assert prompt(talk("uhi"), "{{ messages[0].content }}") == "^hi"


def test_the_oldest_exchanges_are_dropped_until_it_fits() -> None:
    messages = talk("sS", "u1", "a2", "u3", "a4", "u5")
    assert prompt(messages, limit=19) == "^sS$u1$a2$u3$a4$u5$"
    assert prompt(messages, limit=18) == "^sS$u3$a4$u5$"
    assert prompt(messages, limit=12) == "^sS$u5$"


def test_dropped_messages_are_counted() -> None:
    messages = talk("sS", "u1", "a2", "u3", "a4", "u5")
    assert built(messages, limit=19).dropped == 0
    assert built(messages, limit=18).dropped == 6


def test_system_messages_and_the_last_message_are_kept_even_if_they_do_not_fit() -> None:
    assert prompt(talk("sS", "u1", "a2", "u3"), limit=2) == "^sS$u3$"
    assert prompt(talk("u1", "a2", "t3"), limit=2) == "^t3$"


def test_a_prompt_is_made_once_if_no_message_can_be_dropped() -> None:
    made = []

    class CountingLetters(Letters):
        def encode_pieces(self, pieces: Any, **_: bool) -> list[Any]:
            made.append(pieces)
            return super().encode_pieces(pieces)

    builder = PromptBuilder(ChatTemplate(SOURCE), CountingLetters(), eos=ord("$"))
    assert len(builder.build(talk("sS", "u1"), limit=2)) == 7
    assert len(made) == 1


class Renders(ChatTemplate):
    """A template that counts the messages of each rendering."""

    def __init__(self) -> None:
        super().__init__(SOURCE)
        self.sizes: list[int] = []

    def render(self, messages: Any, **_: Any) -> Any:
        self.sizes.append(len(messages))
        text = "".join(f"{each['role'][0]}{each['content']}$" for each in messages)
        return ((text, True),)


@pytest.mark.parametrize("lengths", ["equal", "mixed", "long first", "long last"])
def test_a_long_conversation_is_cut_after_few_renderings_most_of_them_short(lengths: str) -> None:
    random = Random(1)
    sizes: dict[str, Callable[[int], int]] = {
        "equal": lambda _: 20,
        "mixed": lambda _: random.choice((1, 5, 80)),
        "long first": lambda n: 2000 if n < 20 else 5,
        "long last": lambda n: 5 if n < 9000 else 50,
    }
    size = sizes[lengths]
    messages = talk(*(f"{'ua'[n % 2]}{'x' * size(n)}" for n in range(9_999)))
    template = Renders()
    builder = PromptBuilder(template, Letters(), eos=ord("$"))
    found = builder.build(messages, limit=3000)
    kept = found.tokens.count(ord("$"))
    whole = sum(len(each["content"]) + 2 for each in messages) + 1
    assert found.dropped == whole - len(found)
    assert len(found) <= 3000
    longer = sum(len(m["content"]) + 2 for m in messages[-kept - 2 :]) + 1  # one exchange more
    assert longer > 3000
    assert len(template.sizes) <= 16
    assert sum(template.sizes) < 2.5 * len(messages)


def test_millions_of_tokens_are_not_looked_at_one_by_one() -> None:
    """Each pass over them would keep other threads waiting."""

    class Tokens(list[int]):
        def __iter__(self) -> Any:
            raise AssertionError

    class ManyLetters(Letters):
        def encode_pieces(self, pieces: Any, **_: bool) -> list[Any]:
            return Tokens([ord(character) for text, _ in pieces for character in text])

    builder = PromptBuilder(ChatTemplate(SOURCE), ManyLetters(), eos=ord("$"))
    found = builder.build(talk("u1"), limit=2)
    assert len(found) == 4
    assert found.tokens[0] == ord("^")


def test_without_a_limit_no_message_is_dropped() -> None:
    messages = talk("sS", "u1", "a2", "u3", "a4", "u5")
    assert prompt(messages, limit=None) == "^sS$u1$a2$u3$a4$u5$"


def test_a_partial_answer_is_continued() -> None:
    source = "{% for m in messages %}<{{ m.role[0] }}>{{ m.content }}</>{% endfor %}<a>"
    assert prompt(talk("uhi", "aYes, "), source) == "^<u>hi</><a>Yes,"
    assert prompt(talk("uhi", "a"), source) == "^<u>hi</><a></><a>"
    called = [*talk("uhi"), {"role": "assistant", "content": "x", "tool_calls": [{"id": "1"}]}]
    assert prompt(called, source) == "^<u>hi</><a>x</><a>"
    long = talk("u1", "a2", "u3", "a4")
    assert prompt(long, source, limit=20) == "^<u>3</><a>4"
    assert prompt(long, source, limit=2) == "^<u>3</><a>4"


def test_a_partial_answer_has_no_reasoning_before_it() -> None:
    source = "{{ messages[0].content }}<think>{% if x %}</think>{% endif %}"
    builder = PromptBuilder(ChatTemplate(source), Letters())
    built = builder.build(talk("uhi", "aYes"), limit=100)
    assert "".join(map(chr, built.tokens)) == "^hi<think></think>\n\nYes"
    assert not built.ends_in_reasoning


def test_a_prompt_that_ends_in_reasoning_is_recognized() -> None:
    source = (
        "{{ messages[0].content }}{% if enable_thinking %}<think>\n{% else %}</think>{% endif %}"
    )
    builder = PromptBuilder(ChatTemplate(source), Letters())
    messages = talk("u<think>")
    assert builder.style.reasoning is not None
    assert builder.build(messages, limit=99, think=True).ends_in_reasoning
    assert not builder.build(messages, limit=99, think=False).ends_in_reasoning
    assert not builder.build(messages, limit=99).ends_in_reasoning


# Prompts with different ends


def forks(messages: list[Any], source: str, *endings: Any) -> Any:
    builder = PromptBuilder(ChatTemplate(source), Letters(), eos=ord("$"))
    shared, ends = builder.build_forks(messages, endings)
    return "".join(map(chr, shared)), [["".join(map(chr, each)) for each in of] for of in ends]


def test_prompts_differ_at_the_end_of_the_last_message() -> None:
    found = forks(talk("sS", "uhi"), SOURCE + "a", ("one?", ["yes", "no"]), ("two?", ["1"]))
    assert found == ("^sS$uhi\n\n", [["one?$ayes", "one?$ano"], ["two?$a1"]])


def test_a_question_after_an_answer_is_a_message_of_its_own() -> None:
    assert forks(talk("uhi", "ayes"), SOURCE, ("q", ["1"])) == ("^uhi$ayes$u", [["q$1"]])
    assert forks([], SOURCE, ("q", ["1"])) == ("^u", [["q$1"]])


def test_a_template_that_hides_the_message_or_repeats_it_is_refused() -> None:
    for source in ("hidden", "{{ messages[0].content }}{{ messages[0].content }}"):
        with pytest.raises(RequestError, match="does not show the end of the last message"):
            forks(talk("uhi"), source, ("q", ["1"]))


def test_answers_come_after_the_reasoning() -> None:
    source = SOURCE + "<think>\n{# </think> #}"
    assert forks(talk("uhi"), source, ("q", ["1"]))[1] == [["q$<think>\n</think>\n\n1"]]


def test_a_prompt_as_text_has_its_control_tokens_but_not_the_begin_token() -> None:
    builder = PromptBuilder(ChatTemplate(SOURCE), Letters(), eos=ord("$"))
    assert builder.text(talk("uhi", "aYes", "uNo")) == "uhi$aYes$uNo$"
    assert builder.text(talk("uhi", "aYes")) == "uhi$Yes"
