"""Modelfiles: what they say, what is wrong with them and where, and that writing is reading."""

from __future__ import annotations

from contextlib import suppress
from typing import Any

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from tampu.errors import RequestError
from tampu.sampling.parameters import check_parameters
from tampu.store.model import StoredMessage
from tampu.store.modelfile import ROLES, Modelfile, format_modelfile, parse_modelfile

WHOLE = '''\ufeff# what this is
FROM ./model.gguf
from projector.gguf

Parameter temperature 0.7
PARAMETER num_ctx 8192
PARAMETER stop "<|end|>"
PARAMETER stop user:
PARAMETER use_mmap false
TEMPLATE """{{ .System }}
# no comment
{{ .Prompt }}"""
SYSTEM You are "Ada".
ADAPTER ./lora
DRAFT ./small.gguf
LICENSE """
MIT
"""
LICENSE Apache
MESSAGE user Hi
MESSAGE assistant "Hello
there"
  # indented
REQUIRES 0.14.0
RENDERER qwen3
PARSER qwen3
'''


def test_all_instructions_are_parsed() -> None:
    assert parse_modelfile(WHOLE) == Modelfile(
        sources=("./model.gguf", "projector.gguf"),
        adapters=("./lora",),
        draft="./small.gguf",
        parameters={
            "temperature": 0.7,
            "num_ctx": 8192,
            "stop": ["<|end|>", "user:"],
            "use_mmap": False,
        },
        template="{{ .System }}\n# no comment\n{{ .Prompt }}",
        system='You are "Ada".',
        licenses=("\nMIT\n", "Apache"),
        messages=(StoredMessage("user", "Hi"), StoredMessage("assistant", "Hello\nthere")),
        renderer="qwen3",
        parser="qwen3",
        requires="0.14.0",
    )


VALUES = [
    ("SYSTEM a  ", "a"),
    ("SYSTEM", ""),
    ('SYSTEM ""', ""),
    ('SYSTEM """"""', ""),
    ('SYSTEM " a "', " a "),
    ('SYSTEM """a"b""" ', 'a"b'),
    ('SYSTEM """a"""b"""', 'a"""b'),
    ('SYSTEM "a"b"', 'a"b'),
    ('SYSTEM """\na\n"""', "\na\n"),
    ("SYSTEM a\r", "a"),
    ("system\ta", "a"),
    ("SYSTEM a # b", "a # b"),
]


@pytest.mark.parametrize(("text", "value"), VALUES)
def test_values_are_parsed(text: str, value: str) -> None:
    assert parse_modelfile(f"FROM x\n{text}\n").system == value


BAD = [
    ("", "the Modelfile has no FROM"),
    ("# only a comment", "the Modelfile has no FROM"),
    ("FROM", "line 1: FROM: a value is missing"),
    ("FROM x\nFRIM y", "line 2: unknown instruction 'FRIM'; known: FROM, PARAMETER"),
    ("FROM x\n!", "line 2: unknown instruction '!'"),
    ('FROM x\n\nTEMPLATE """a\n{{ if }}"""', "line 3: TEMPLATE: line 2: a value is missing"),
    ("FROM x\nTEMPLATE {% if %}", "line 2: TEMPLATE: line 1: "),
    ("FROMx", "line 1: unknown instruction 'FROMx'"),
    ('FROM x\nSYSTEM """a\nb', 'line 2: SYSTEM: the quote """ is not closed'),
    ('FROM x\nSYSTEM "a\nb', 'line 2: SYSTEM: the quote " is not closed'),
    ("FROM x\nPARAMETER temperature", "line 2: PARAMETER: needs a name and a value"),
    ("FROM x\nPARAMETER heat 1", "line 2: PARAMETER: unknown parameter 'heat'"),
    ("FROM x\nPARAMETER temperatur 1", "did you mean temperature?"),
    ("FROM x\nPARAMETER temperature hot", "temperature must be a number from 0 to 100, not 'hot'"),
    ("FROM x\nPARAMETER temperature nan", "temperature must be a number from 0 to 100, not nan"),
    ("FROM x\nPARAMETER temperature -1", "temperature must be a number from 0 to 100, not -1"),
    ("FROM x\nPARAMETER temperature inf", "temperature must be"),
    ("FROM x\nPARAMETER num_ctx 1.5", "num_ctx must be an integer"),
    ("FROM x\nPARAMETER num_ctx 0", "num_ctx must be an integer from 4 to"),
    ("FROM x\nPARAMETER num_ctx 1000000000000", "num_ctx must be an integer from 4 to"),
    ("FROM x\nPARAMETER use_mmap maybe", "use_mmap must be true or false"),
    ("FROM x\nMESSAGE user", "line 2: MESSAGE: needs a role and a text"),
    ("FROM x\nMESSAGE tool x", "line 2: MESSAGE: the role 'tool' is not one of"),
    ("FROM x\nSYSTEM a\0b", "line 2: SYSTEM: contains a NUL"),
    ("FROM x\nSYSTEM " + "a" * (17 << 20), "the Modelfile has more than"),
]


@pytest.mark.parametrize(("text", "message"), BAD, ids=[text[:40] for text, _ in BAD])
def test_errors_name_the_line(text: str, message: str) -> None:
    with pytest.raises(RequestError) as caught:
        parse_modelfile(text)
    assert message in str(caught.value)


TEXTS = st.text(st.sampled_from('a b"\n\r\t#🦙{}.') | st.characters(exclude_characters="\0"))
NAMES = TEXTS.filter(bool)
PARAMETER_VALUES = {
    "temperature": st.floats(0, 100),
    "num_ctx": st.integers(4, 1 << 20),
    "seed": st.integers(-1, (1 << 63) - 1),
    "use_mmap": st.booleans(),
    "stop": st.lists(NAMES, min_size=1, max_size=3),
}
MODELFILES = st.builds(
    Modelfile,
    sources=st.lists(NAMES, min_size=1, max_size=2).map(tuple),
    adapters=st.lists(NAMES, max_size=2).map(tuple),
    parameters=st.fixed_dictionaries({}, optional=PARAMETER_VALUES),
    template=st.none() | TEXTS,
    system=st.none() | TEXTS,
    licenses=st.lists(NAMES, max_size=2).map(tuple),
    messages=st.lists(
        st.builds(StoredMessage, st.sampled_from(ROLES), TEXTS),
        max_size=3,
    ).map(tuple),
    renderer=st.none() | NAMES,
    parser=st.none() | NAMES,
    requires=st.none() | NAMES,
)


@given(MODELFILES)
@example(Modelfile(sources=("x",), system='"'))
@example(Modelfile(sources=("x",), system='""'))
@example(Modelfile(sources=("x",), system='"""'))
@example(Modelfile(sources=("x",), system='a"\n"""b'))
@example(Modelfile(sources=("x",), system="\n"))
def test_formatting_and_parsing_are_inverse(modelfile: Modelfile) -> None:
    try:
        text = format_modelfile(modelfile)
    except RequestError as error:
        assert "a Modelfile cannot contain" in str(error)  # noqa: PT017
        return
    assert parse_modelfile(text) == modelfile


def test_texts_that_cannot_be_quoted_are_refused() -> None:
    for text in ('a"\nb', '"a', '"a\nb"', '"""a"""', '""', "\n\n"):
        assert parse_modelfile(format_modelfile(Modelfile(sources=("x",), system=text)))
    with pytest.raises(RequestError, match="a Modelfile cannot contain"):
        format_modelfile(Modelfile(sources=("x",), system='a"\nb"""\nc'))


def test_line_of_unusual_whitespace_is_an_unknown_instruction() -> None:
    with pytest.raises(RequestError, match="line 1: unknown instruction"):
        parse_modelfile("\x85")


@given(st.text(max_size=200), st.lists(st.sampled_from(WHOLE.split("\n")), max_size=6))
def test_any_text_is_parsed_or_a_typed_error(text: str, lines: list[str]) -> None:
    for one in (text, "\n".join([*lines, text])):
        with suppress(RequestError):
            parse_modelfile(one)


def test_parameters_as_json() -> None:
    given = {"temperature": 1, "num_ctx": 8192.0, "stop": "x", "use_mmap": True}
    assert check_parameters(given) == given | {"stop": ["x"]}


@pytest.mark.parametrize(
    "given",
    [{"temperature": "1"}, {"num_ctx": 1.5}, {"num_ctx": True}, {"stop": [1]}, {"use_mmap": 1},
     {"nothing": 1}, {"seed": float("nan")}, {"top_p": 2}],
)  # fmt: skip
def test_bad_parameters_as_json(given: dict[str, Any]) -> None:
    with pytest.raises(RequestError, match=next(iter(given))):
        check_parameters(given)


@pytest.mark.parametrize(
    ("lines", "expected", "replaced"),
    [
        (["SYSTEM a", "SYSTEM b"], {"system": "b"}, ["SYSTEM of line 2"]),
        (['SYSTEM """a', 'b"""', "SYSTEM"], {"system": ""}, ["SYSTEM of line 2"]),
        (["SYSTEM a", "system b", "SYSTEM c"], {"system": "c"}, ["of line 2", "of line 3"]),
        (["TEMPLATE {{ .A }}", "TEMPLATE {{ .B }}"], {"template": "{{ .B }}"}, ["TEMPLATE of"]),
        (["PARSER a", "PARSER b"], {"parser": "b"}, ["PARSER of line 2 has no effect, that"]),
        (["PARAMETER seed 1", "PARAMETER Seed 2"], {"parameters": {"seed": 2}}, ["seed of line 2"]),
        (["PARAMETER seed 1", "PARAMETER top_k 2"], {"parameters": {"seed": 1, "top_k": 2}}, []),
        (["PARAMETER stop a", "PARAMETER stop b"], {"parameters": {"stop": ["a", "b"]}}, []),
        (["LICENSE a", "LICENSE b"], {"licenses": ("a", "b")}, []),
        (["ADAPTER a", "ADAPTER b"], {"adapters": ("a", "b")}, []),
        (["DRAFT a", "DRAFT b"], {"draft": "b"}, ["DRAFT of line 2 has no effect, that"]),
    ],
)  # fmt: skip
def test_the_last_of_several_counts_and_the_others_are_named(
    lines: list[str], expected: dict[str, Any], replaced: list[str]
) -> None:
    found = parse_modelfile("\n".join(["FROM x", *lines]))
    assert {name: getattr(found, name) for name in expected} == expected
    assert len(found.replaced) == len(replaced)
    assert all(part in told for part, told in zip(replaced, found.replaced, strict=True))
