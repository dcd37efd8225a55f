"""What is a template, what is not, and that nothing else than these two happens."""

from __future__ import annotations

from contextlib import suppress

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tampu.chat.gotemplate import execute, fields_used, parse, until_field
from tampu.chat.gotemplate.lexing import MAX_CHARACTERS
from tampu.errors import ModelFileError, RequestError

BAD = [
    ("{{", 1, "an action is not closed: }} is missing"),
    ("a\nb{{ .x", 2, "an action is not closed: }} is missing"),
    ("a\nb{{ .x\n\n", 2, "an action is not closed: }} is missing"),
    ("{{ .x\nb {{ .y }}", 1, "an action is not closed: }} is missing"),
    ("{{ .x }", 1, "unexpected '}' in an action: actions end with }}"),
    ("{{ .x % 2 }}", 1, "unexpected '% 2 }}' in an action"),
    ("{{/* a }}", 1, "a comment is not closed: */}} is missing"),
    ("{{ /* a }}", 1, "a comment is not closed: */}} is missing"),
    ("{{ }}", 1, "a value is missing"),
    ("{{ if }}{{ end }}", 1, "a value is missing in if"),
    ("{{ end }}", 1, "unexpected {{end}}"),
    ("{{ else }}", 1, "unexpected {{else}}"),
    ("\n{{ if .x }}", 2, "{{if}} has no {{end}}"),
    ("{{ if .x }}{{ else }}{{ else }}{{ end }}", 1, "has no {{end}} after its {{else}}"),
    ("{{ if .x }}{{ else with .y }}{{ end }}", 1, "{{else with}} in {{if}}"),
    ("{{ range .x }}{{ else if .y }}{{ end }}", 1, "{{else if}} in {{range}}"),
    ("{{ $x }}", 1, "undefined variable $x"),
    ("{{ $x = 1 }}", 1, "undefined variable $x"),
    ("{{ if $x := 1 }}{{ end }}{{ $x }}", 1, "undefined variable $x"),
    ("{{ $ = 1 }}", 1, "$ cannot be set"),
    ("{{ $a, $b := .x }}", 1, "undefined variable $a"),
    ("{{ range $a, $b, $c := .x }}{{ end }}", 1, "undefined variable $a"),
    ("{{ evil .x }}", 1, "function 'evil' is not known"),
    ("{{ .x | 3 }}", 1, "behind a | must be a function"),
    ("{{ (.x }}", 1, "parenthesis is not closed"),
    ("{{ .x) }}", 1, "unexpected ')'"),
    ("{{ .x..y }}", 1, "unexpected '.'"),
    ("{{ 3.x }}", 1, "unexpected"),
    ("{{ nil.x }}", 1, "unexpected .x"),
    ('{{ "a }}', 1, 'the quote " is not closed'),
    ('{{ .x }}\n{{ "a\nb" }}', 2, 'the quote " is not closed'),
    ("{{ `a }}", 1, "the quote ` is not closed"),
    ("{{ 'a }}", 1, "the quote ' is not closed"),
    ('{{ "\\z" }}', 1, "unknown escape"),
    ("{{ 'ab' }}", 1, "is not one character"),
    ("{{ 99999999999999999999 }}", 1, "too large"),
    ("{{ break }}", 1, "{{break}} outside of a range"),
    ("{{ if .x }}{{ define `t` }}{{ end }}{{ end }}", 1, "defined inside"),
    ("{{ define t }}{{ end }}", 1, "needs a name in quotes"),
    ("{{ template .x }}", 1, "needs a name in quotes"),
    ("{{ define `t` }}", 1, "{{define}} has no {{end}}"),
    ("{{/* a */ .x }}", 1, "a comment must fill its action"),
    ("{{ if .x }}" * 200, 1, "levels of nesting"),
    ("{{ " + "(" * 500 + ".x" + ")" * 500 + " }}", 1, "levels of nesting"),
    ("{{ if .x }}{{ else if .y }}" + "{{ else if .y }}" * 300 + "{{ end }}", 1, "nesting"),
    ("x" * (MAX_CHARACTERS + 1), 1, "more than"),
]


@pytest.mark.parametrize(("source", "line", "message"), BAD, ids=[b[0][:40] for b in BAD])
def test_syntax_errors_name_the_line(source: str, line: int, message: str) -> None:
    with pytest.raises(ModelFileError) as caught:
        parse(source)
    assert str(caught.value).startswith(f"template: line {line}: ")
    assert message in str(caught.value)


WORDS = st.sampled_from([
    "{{", "}}", "{{-", "-}}", "if", "else", "end", "range", "with", "define", "template", "block",
    "break", "continue", ".", ".x", ".Role", "$", "$x", "$i", ":=", "=", ",", "|", "(", ")", "and",
    "or", "not", "eq", "ne", "lt", "len", "index", "slice", "print", "printf", "json", "nil",
    "true", "1", "-3", "1.5", '"a"', "`b`", "'c'", "/*", "*/", "text", "\n",
])  # fmt: skip
ATOMS = st.none() | st.booleans() | st.integers(-5, 5) | st.floats() | st.text(max_size=5)
DATA = st.recursive(
    ATOMS,
    lambda inner: (
        st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=3), inner, max_size=3)
    ),
    max_leaves=10,
)


@given(st.lists(WORDS, max_size=30).map(" ".join), DATA)
@settings(max_examples=400, deadline=None)
def test_any_words_are_a_template_or_a_typed_error(source: str, data: object) -> None:
    with suppress(ModelFileError, RequestError):
        template = parse(source)
        fields_used(template)
        "".join(execute(template, {"x": data, "Role": "user"}))


@given(st.text(alphabet="{}-./*$`\"'abc 01\\|(=:\n", max_size=60))
@settings(max_examples=400, deadline=None)
def test_any_text_is_a_template_or_a_typed_error(source: str) -> None:
    with suppress(ModelFileError, RequestError):
        "".join(execute(parse(source), {"a": "b"}))


@given(st.text(alphabet=st.characters(exclude_characters="{"), max_size=60))
def test_text_without_actions_is_written_as_it_is(text: str) -> None:
    assert "".join(execute(parse(text), {})) == text


def test_the_fields_that_a_template_uses() -> None:
    source = (
        "{{ if .A.B }}{{ range $x := (.C).D }}{{ $x.E }}{{ end }}{{ end }}{{ template `t` .F }}"
    )
    source += "{{ define `t` }}{{ eq .G 1 }}{{ end }}"
    assert fields_used(parse(source)) == set("ABCDEFG")


UNTIL = [
    ("a{{ .R }}b", "a1"),
    ("a{{ if .X }}b{{ .R }}c{{ else }}d{{ end }}e", "ab1"),
    ("a{{ if .N }}b{{ else }}c{{ .R }}d{{ end }}e", "ac1"),
    ("a{{ range .L }}{{ .R }}{{ end }}b", "a1"),
    ("a{{ if .R }}b{{ end }}c", "abc"),
]


@pytest.mark.parametrize(("source", "expected"), UNTIL)
def test_a_template_is_cut_at_a_field(source: str, expected: str) -> None:
    values = {"R": 1, "X": True, "N": False, "L": [{"R": 1}]}
    assert "".join(execute(until_field(parse(source), "R"), values)) == expected
