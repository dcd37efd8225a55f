"""What templates write: the constructs that published ones use, and every limit."""

from __future__ import annotations

import re
from typing import Any

import pytest

from tampu.chat import budget
from tampu.chat.gotemplate import JsonMap, Record, execute, parse
from tampu.chat.taint import marked, pieces
from tampu.errors import RequestError

VALUES: dict[str, Any] = {
    "Name": "Ada",
    "Empty": "",
    "Count": 3,
    "Ratio": 0.5,
    "Yes": True,
    "No": False,
    "List": ["a", "b", "c"],
    "None": [],
    "Map": {"b": 2, "a": 1},
    "Nested": {"Inner": {"Deep": "found"}},
    "Record": Record({"Role": "user", "Content": "hi"}),
    "Tool": Record({"Name": "f"}, {"name": "f", "n": [1, 2.5, None, True]}, is_json=True),
    "Json": JsonMap({"k": "v<"}),
}


def written(source: str, **values: Any) -> str:
    return "".join(execute(parse(source), VALUES | values))


# The results are those of Go 1.19's text/template, with what came later: ranges over numbers,
# `else with`, and maps of tools in their own order.
CASES = [
    ("plain", "plain"),
    ("{{ .Name }}!", "Ada!"),
    ("a {{- .Name -}} b", "aAdab"),
    ("a\n\t{{- .Name }} b", "aAda b"),
    ("a {{/* no */}} b", "a  b"),
    ("a {{- /* no */ -}} b", "ab"),
    ("{{ -3 }}{{- 3 }}", "-33"),
    ('{{ "q\\"\\u00e9\\n" }}', 'q"é\n'),
    ("{{ `raw\\n` }}", "raw\\n"),
    ("{{ 'a' }}", "97"),
    ("{{ 0x10 }} {{ 1.50 }} {{ 1e3 }} {{ 1e21 }} {{ 0.00001 }}", "16 1.5 1000 1e+21 1e-05"),
    ("{{ .Count }} {{ .Ratio }} {{ .Yes }} {{ .Missing }}", "3 0.5 true <no value>"),
    ("{{ .List }} {{ .Map }} {{ .None }}", "[a b c] map[a:1 b:2] []"),
    ("{{ .Nested.Inner.Deep }} {{ (.Nested.Inner).Deep }}", "found found"),
    ("{{ .Record }} {{ .Record.Role }}", "{user hi} user"),
    ("{{ .Tool }} {{ json .Tool.Name }}", '{"name":"f","n":[1,2.5,null,true]} "f"'),
    ("{{ .Json }}", '{"k":"v\\u003c"}'),
    ("{{ if .Name }}yes{{ else }}no{{ end }}", "yes"),
    ("{{ if .Empty }}yes{{ else if .Count }}three{{ else }}no{{ end }}", "three"),
    ("{{ if .None }}1{{ end }}{{ if .Record }}2{{ end }}{{ if .Missing }}3{{ end }}", "2"),
    ("{{ with .Name }}<{{ . }}>{{ else }}none{{ end }}", "<Ada>"),
    ("{{ with $x := .Count }}{{ $x }}{{ . }}{{ end }}", "33"),
    ("{{ with .Empty }}a{{ else with .Name }}{{ . }}{{ end }}", "Ada"),
    ("{{ range .List }}[{{ . }}]{{ end }}", "[a][b][c]"),
    ("{{ range .None }}x{{ else }}none{{ end }}", "none"),
    ("{{ range $i, $v := .List }}{{ $i }}{{ $v }}{{ end }}", "0a1b2c"),
    ("{{ range $v := .List }}{{ $v }}{{ end }}", "abc"),
    ("{{ range $k, $v := .Map }}{{ $k }}={{ $v }} {{ end }}", "a=1 b=2 "),
    ("{{ range .List }}{{ if eq . `b` }}{{ continue }}{{ end }}{{ . }}{{ end }}", "ac"),
    ("{{ range .List }}{{ if eq . `b` }}{{ break }}{{ end }}{{ . }}{{ end }}", "a"),
    ("{{ range .List }}{{ $.Name }}{{ end }}", "AdaAdaAda"),
    ("{{ $x := 1 }}{{ range .List }}{{ $x = . }}{{ end }}{{ $x }}", "c"),
    ("{{ $x := 1 }}{{ if .Yes }}{{ $x := 2 }}{{ $x }}{{ end }}{{ $x }}", "21"),
    ("{{ $x := 1 }}{{ with .Yes }}{{ $x = 2 }}{{ end }}{{ $x }}", "2"),
    ("{{ $r := .Record }}{{ $r.Content }}", "hi"),
    ("{{ .Name | len }} {{ len `é` }} {{ len .List }} {{ len .Map }}", "3 2 3 2"),
    ("{{ index .List 1 }} {{ index .Map `a` }} {{ (index .List 0) }}", "b 1 a"),
    ("{{ index .Nested `Inner` `Deep` }}", "found"),
    ("{{ slice .List 1 }} {{ slice .List 1 2 }} {{ slice .Name 1 2 }}", "[b c] [b] d"),
    ("{{ eq (len (slice .List 2)) 1 }}", "true"),
    ("{{ eq .Count 1 2 3 }} {{ ne .Name `Bob` }} {{ eq .Missing nil }}", "true true true"),
    ("{{ lt 1 2 }} {{ le 2 2 }} {{ gt 1 2 }} {{ ge `b` `a` }}", "true true false true"),
    ("{{ and .Yes .Count }} {{ and .No .Count }} {{ or .Empty .Name }}", "3 false Ada"),
    ("{{ or .Yes (index .List 9) }} {{ and .No (index .List 9) }}", "true false"),
    ("{{ not .Yes }} {{ not .Empty }}", "false true"),
    ('{{ printf "%s-%d-%v-%q-%5.2f-%t%%" .Name .Count .List `x"` .Ratio .Yes }}',
     'Ada-3-[a b c]-"x\\""- 0.50-true%'),
    ('{{ printf "%-4s|%4s|%04d" "ab" "cd" 7 }}', "ab  |  cd|0007"),
    ("{{ print 1 2 `a` 3 4 }} {{ println 1 `a` }}", "1 2a3 4 1 a\n"),
    ("{{ .Name | printf `%s %s` `Hi` }}", "Hi Ada"),
    ("{{ json .Map }} {{ json .List }} {{ json `<&>` }}",
     '{"b":2,"a":1} ["a","b","c"] "\\u003c\\u0026\\u003e"'),
    ("{{ define `t` }}({{ . }}){{ end }}{{ template `t` .Name }}", "(Ada)"),
    ("{{ define `t` }}({{ . }}){{ end }}{{ template `t` }}", "(<no value>)"),
    ("{{ block `b` .Name }}<{{ . }}>{{ end }}", "<Ada>"),
    ("{{ range $i, $_ := .List }}{{ if $i }},{{ end }}{{ $i }}{{ end }}", "0,1,2"),
    ("{{ range 3 }}{{ . }}{{ end }}", "012"),
]  # fmt: skip


@pytest.mark.parametrize(("source", "expected"), CASES, ids=[source for source, _ in CASES])
def test_expressions_and_actions_are_rendered(source: str, expected: str) -> None:
    assert written(source) == expected


def test_current_and_yesterdays_dates_are_formatted() -> None:
    assert re.fullmatch(
        r"\d{4}-\d\d-\d\d \d{4}-\d\d-\d\d", written("{{ currentDate }} {{ yesterdayDate }}")
    )
    assert written('{{ currentDate "2006" }}') == written("{{ currentDate }}")


FAULTS = [
    ("{{ .Name.First }}", "a text has no field First"),
    ("\n\n{{ .Missing.First }}", "3: nil has no field First"),
    ("{{ .Record.Nothing }}", "a record has no field Nothing"),
    ("{{ len .Count }}", "len of a number"),
    ("{{ nil }}", "nil is not a command"),
    ("{{ index .List 3 }}", "index 3 is out of range"),
    ("{{ index .List `a` }}", "a text is not a valid index"),
    ("{{ slice .List 2 1 }}", "slice from 2 to 1"),
    ("{{ slice `é` 1 }}", "cuts a character"),
    ("{{ eq 1 `a` }}", "a number and a text cannot be compared"),
    ("{{ eq .List .List }}", "a list cannot be compared"),
    ("{{ lt .Yes .No }}", "have no order"),
    ("{{ not }}", "not takes 1 arguments, not 0"),
    ("{{ .Name 3 }}", "arguments are given to something that is not a function"),
    ("{{ template `t` }}", "'t' is not defined"),
    ("{{ range .Name }}{{ end }}", "a range over a text"),
    ('{{ printf "%d" `a` }}', "cannot write a text as %d"),
    ('{{ printf "%s" }}', "too few values"),
    ('{{ printf "" 1 }}', "too many values"),
    ('{{ printf "%1001d" 1 }}', "width of more than 1000"),
    ("{{ json .Inf }}", "has no JSON"),
]


@pytest.mark.parametrize(("source", "message"), FAULTS)
def test_errors_name_the_cause_and_the_place(source: str, message: str) -> None:
    with pytest.raises(RequestError, match=f"the model's template: line .*{re.escape(message)}"):
        written(source, Inf=float("inf"))


HOSTILE = [
    ("{{ define `t` }}{{ template `t` }}{{ end }}{{ template `t` }}", "100 templates inside"),
    ("{{ range 3000000 }}{{ range 3000000 }}{{ end }}{{ end }}", "more than"),
    ("{{ range 3000000 }}aaaaaaaaaaaaaaaaaaaa{{ end }}", "more than"),
    (
        '{{ $x := "0123456789" }}{{ range 99 }}{{ $x = print $x $x }}{{ end }}',
        "strings",
    ),
    ("{{ range 99999999 }}{{ end }}", "a range over 99999999"),
]


@pytest.mark.parametrize(("source", "message"), HOSTILE)
def test_endless_templates_are_stopped(
    source: str, message: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    # Only what has no other end is ended by the clock.
    monkeypatch.setattr(budget, "MAX_SECONDS", 0.05 if message == "more than" else 10**6)
    with pytest.raises(RequestError, match=message):
        written(source)


def test_deeply_nested_data_is_an_error() -> None:
    deep: Any = []
    for _ in range(500):
        deep = [deep]
    for source in ("{{ .Deep }}", "{{ json .Deep }}"):
        with pytest.raises(RequestError, match="levels of nesting"):
            written(source, Deep=deep)


MARKED = [
    ("<{{ .X }}>", (("<", True), ("a<b", False), (">", True))),
    ('{{ printf "[%s]" .X }}', (("[", True), ("a<b", False), ("]", True))),
    ("{{ print `x` .X }}", (("x", True), ("a<b", False))),
    ("{{ slice .X 1 }}", (("<b", False),)),
    ("{{ json .X }}", (('"a\\u003cb"', False),)),
    (
        "{{ json .M }}",
        (("{", True), ('"k\\u003c"', False), (":", True), ('"v"', False), ("}", True)),
    ),
    ("{{ .M }}", (("map[", True), ("k<", False), (":", True), ("v", False), ("]", True))),
    ('{{ printf "%q" .X }}', (('"', True), ("a<b", False), ('"', True))),
    ("{{ $x := .X }}{{ range .L }}{{ $x }}{{ . }}{{ end }}", (("a<b1", False),)),
]


@pytest.mark.parametrize(("source", "expected"), MARKED)
def test_untrusted_text_stays_marked(source: str, expected: Any) -> None:
    values = marked({"X": "a<b", "M": {"k<": "v"}, "L": ["1"]})
    values = {str.__str__(key): value for key, value in values.items()}
    assert pieces(execute(parse(source), values)) == expected
