"""llama.cpp's grammars: what they mean is tested with the constraints, here what is refused."""

from __future__ import annotations

import re
from contextlib import suppress
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tampu.errors import GrammarError
from tampu.sampling.gbnf import lark_of_gbnf


def test_regular_rules_become_lexemes_and_others_rules() -> None:
    lark = lark_of_gbnf('root ::= "(" root ")" | word # a comment\nword ::= [a-z]+ | "\\x41\\n"')
    assert lark.splitlines() == [
        "start: r0",
        'r0: "(" r0 ")" | R1',
        'R1: /[\\u{61}-\\u{7A}]/+ | "A\\n"',
    ]


def test_rules_may_contain_tokens() -> None:
    assert lark_of_gbnf("root ::= <[5]> <think> .") == ("start: r0\nr0: <[5]> <think> /(?s:.)/")


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "no rule named root"),
        ('x ::= "a"', "no rule named root"),
        ("root ::= a", "the rule a, which root uses, is missing"),
        ('root ::= "a"\nroot ::= "b"', "line 2: the rule root is there twice"),
        ('root ::= "a', "line 1: '\"a' is not understood"),
        ('root ::= ("a"', "line 1: a parenthesis is not closed"),
        ('root ::= "a")', "line 1: ')' has no place here"),
        ("root ::= *", "line 1: '*' repeats nothing"),
        ('root ::= "a"**', "line 1: '*' repeats nothing"),
        ('root ::= "a"{2000,}', "line 1: '{2000,}' must count up, to 1000"),
        ('root ::= "a"{3,2}', "line 1: '{3,2}' must count up"),
        ('root ::= "a"{}', "line 1: '{}' must count up"),
        ('root ::= "a"\n\n\nroot ::= [z-a]', "line 4: the rule root is there twice"),
        ("root ::= [z-a]", "line 1: the range z-a goes down"),
        ('root ::= "\\U00FFFFFF"', "is not a valid character"),
        ('root ::= "\\ud800"', "is not a valid character"),
        ('"a"', "line 1: '\"a\"' stands in no rule"),
        ("root ::= " + "(" * 60_000, "line 1: it is nested more than 200 deep"),
    ],
)
def test_errors_name_the_line(text: str, message: str) -> None:
    with pytest.raises(GrammarError, match=re.escape(message)):
        lark_of_gbnf(text)


@given(st.lists(st.sampled_from(["root", "::=", '"a"', "[b-c]", "(", ")", "|", "*", "{2}", "\n",
                                 " ", "x", "<[1]>", "[^]", "[]", "."])))  # fmt: skip
def test_any_text_is_converted_or_refused(parts: list[Any]) -> None:
    with suppress(GrammarError):
        assert lark_of_gbnf(" ".join(parts)).startswith("start: ")
