"""Answers under a grammar: always whole, always valid, whatever the model would rather say.

There is no model here: the logits are random numbers. Near the end the tokens that close things
are made likely, because a random answer would otherwise go on for ever.
"""

from __future__ import annotations

import json
import re
import threading
from collections.abc import Iterator
from typing import Any

import jsonschema
import numpy as np
import pytest
from support import nonsense
from support.fork_server import FORK_SERVER
from support.schemas import IGNORED, REFUSED, SUPPORTED
from support.vocabularies import CONTROL, byte_level, sentence_piece

from tampu.errors import GrammarError
from tampu.ml.metadata import Metadata
from tampu.sampling import Sampler, SamplingOptions
from tampu.sampling.constraint import Constraints
from tampu.sampling.grammar import Grammar
from tampu.tokenizer import load_tokenizer

SPECIALS = {"<|im_end|>": CONTROL, "</s>": CONTROL, "<|mark|>": CONTROL}
WORDS = [
    '{"',
    '":',
    '":Ġ',
    '",Ġ"',
    '"}',
    "Ġ{",
    "true",
    "false",
    "null",
    "[]",
    "},",
    "ĠaĠb",
    "ĊĠ",
    "12",
    "3.",
    "-1",
    "Ġthe",
    "name",
    "ing",
    "ĊĠĠ",
    "\\u",
    "\\n",
    'ab"',
    "Ã©",
    '""',
    '[{"',
    "]}",
    "://",
]

pytestmark = pytest.mark.server


def vocabulary(family: str) -> Metadata:
    if family == "bytes":
        return byte_level(*SPECIALS, *WORDS, types=SPECIALS, eos_token_id=257)
    pieces = [(word, -1.0) for word in ("▁{", '▁"', '":', "▁the", "true", '{"', "é")]
    return sentence_piece(*pieces)


@pytest.fixture(scope="module")
def tokenizers() -> dict[Any, Any]:
    return {family: load_tokenizer(vocabulary(family)) for family in ("bytes", "pieces")}


@pytest.fixture(scope="module")
def all_constraints(tokenizers: dict[Any, Any]) -> Iterator[dict[Any, Constraints]]:
    made = {family: Constraints(tokenizers[family], FORK_SERVER) for family in tokenizers}
    yield made
    for constraints in made.values():
        constraints.close()


@pytest.fixture(scope="module")
def constraints(all_constraints: dict[Any, Constraints]) -> Constraints:
    return all_constraints["bytes"]


@pytest.fixture(autouse=True)
def no_threads_left() -> None:
    """The worker thread is the module's; its end is tested below."""


def answer(
    constraints: Constraints, tokenizer: Any, grammar: Grammar, seed: int = 0, **options: Any
) -> str:
    return nonsense.answer(constraints.compile(grammar), tokenizer, seed, **options)


CASES = [
    pytest.param(schema, id=f"{kind}-{number}")
    for kind, schemas in SUPPORTED.items()
    for number, schema in enumerate(schemas)
]


def test_there_are_two_hundred_schemas() -> None:
    assert len(CASES) >= 200


@pytest.mark.parametrize("schema", CASES)
def test_answers_of_random_logits_match_the_schema(
    constraints: Constraints, tokenizers: dict[Any, Any], schema: pytest.ParameterSet
) -> None:
    grammar = Grammar.schema(schema)
    validator = jsonschema.Draft202012Validator(
        schema, format_checker=jsonschema.Draft202012Validator.FORMAT_CHECKER
    )
    for seed in range(2):
        validator.validate(json.loads(answer(constraints, tokenizers["bytes"], grammar, seed)))


def test_a_model_that_wants_white_space_alone_completes_its_json(
    constraints: Constraints, tokenizers: dict[Any, Any]
) -> None:
    tokenizer = tokenizers["bytes"]
    properties = {"a": {"const": 1}, "b": {"const": [2, 3]}}
    schema = {"properties": properties, "required": ["a", "b"], "additionalProperties": False}
    constraint = constraints.compile(Grammar.schema({"type": "object", **schema}))
    spelled = tokenizer.all_token_bytes()
    wanted = np.array([bool(text) and text.isspace() for text in spelled])
    sampler = Sampler(SamplingOptions(temperature=0), tokenizer.vocabulary_size)
    text = b""
    while not constraint.is_complete and len(text) < 1000:
        constraint.begin()
        token = sampler.sample(np.where(wanted, 9, 0).astype(np.float32), constraint.mask())
        constraint.accept(token)
        text += spelled[token] if token not in tokenizer.eos else b""
    assert json.loads(text) == {"a": 1, "b": [2, 3]}
    assert not re.search(rb"\s{30}", text)  # the server ends answers that repeat a token so often


@pytest.mark.parametrize("options", [{"temperature": 0.0}, {"top_k": 0, "top_p": 1.0}])
@pytest.mark.parametrize("family", ["bytes", "pieces"])
def test_answers_match_for_all_sampling_options_and_tokenizers(
    all_constraints: dict[Any, Constraints],
    tokenizers: dict[Any, Any],
    family: str,
    options: dict[str, float],
) -> None:
    schema = SUPPORTED["as people ask"][0]
    for seed in range(5):
        text = answer(
            all_constraints[family], tokenizers[family], Grammar.schema(schema), seed, **options
        )
        jsonschema.validate(json.loads(text), schema)


@pytest.mark.parametrize(("schema", "place"), IGNORED)
def test_keywords_that_cannot_be_enforced_are_ignored_and_named(
    constraints: Constraints, schema: Any, place: str
) -> None:
    grammar = Grammar.schema(schema)
    assert [line.split(": ")[1] for line in grammar.ignored] == [place]
    constraints.compile(grammar)


@pytest.mark.parametrize(("schema", "reason"), REFUSED)
def test_a_schema_that_is_wrong_or_allows_nothing_is_refused(
    constraints: Constraints, schema: Any, reason: str
) -> None:
    with pytest.raises(GrammarError, match=re.escape(reason)):
        constraints.compile(Grammar.schema(schema))


GRAMMARS = [
    (Grammar.json(), r"\{.*\}"),
    (Grammar.regex(r"[a-c]{3}/\d+\.x?"), r"[a-c]{3}/\d+\.x?"),
    (Grammar.regex("a|(b\n)+"), "a|(b\n)+"),
    (Grammar.choices(["yes", "no", 'may"be\n']), '(yes|no|may"be\n)'),
    (Grammar.lark('start: "a" X+\nX: /[0-9]/'), "a[0-9]+"),
    (Grammar.gbnf('root ::= [a-z]* "z" # greedy, but one lexeme'), "[a-z]*z"),
    (Grammar.gbnf('root ::= "(" root ")" | "x"'), r"\(*x\)*"),
    (Grammar.gbnf('root ::= item (", " item)*\nitem ::= [^",\\n]{1,3} | "\\"" .{0,2} "\\""'), ".+"),
    (
        Grammar.gbnf("root ::= (\n  [0-9] | [\\x41-\\u0046]\n){2} |\n 'q'".replace("'", '"')),
        "[0-9A-F]{2}|q",
    ),
]


@pytest.mark.parametrize(("grammar", "pattern"), GRAMMARS)
def test_answers_match_grammars_other_than_schemas(
    constraints: Constraints, tokenizers: dict[Any, Any], grammar: Grammar, pattern: str
) -> None:
    for seed in range(5):
        text = answer(constraints, tokenizers["bytes"], grammar, seed)
        assert re.fullmatch(pattern, text, re.DOTALL)


@pytest.mark.parametrize(
    "grammar",
    [
        Grammar.lark("start: " + "(" * 60_000 + '"a"' + ")" * 60_000),
        Grammar.regex("(" * 30_000 + "a" + ")" * 30_000),
        Grammar.lark("start: start"),
        Grammar.lark('start: x\nx: x "a"'),
        Grammar.lark("start: missing"),
        Grammar.lark(""),
        Grammar.regex("(?<=x)a"),
        Grammar.regex("(a{1000}){1000}"),
        Grammar.lark("start: " + "|".join(f'("a"{{1000}} "{i}"){{900}}' for i in range(300))),
        Grammar.schema(
            {"type": "array", "items": {"type": "array", "minItems": 5000}, "minItems": 5000}
        ),
        Grammar.schema({"enum": [f"{i:x}" * 8 for i in range(6_000)], "pattern": "(a|b)*c{900}"}),
        Grammar.schema({"type": "string", "pattern": "^(.*a.{900}){9}$"}),
    ],
)
def test_a_hostile_grammar_is_refused_or_stays_within_limits(
    constraints: Constraints, grammar: Grammar
) -> None:
    try:
        constraint = constraints.compile(grammar)
        for _ in range(20):
            constraint.accept(int(np.flatnonzero(constraint.allowed())[0]))
            if constraint.is_complete:
                break
    except GrammarError as error:
        assert len(str(error)) < 500  # noqa: PT017
    assert constraints.compile(Grammar.choices(["a"])).allowed().sum() == 1


def test_a_regex_that_backtracks_elsewhere_takes_linear_time(
    constraints: Constraints, tokenizers: dict[Any, Any]
) -> None:
    text = answer(constraints, tokenizers["bytes"], Grammar.regex("(a+)+b"))
    assert re.fullmatch("a+b", text)


def test_the_end_token_is_allowed_after_a_complete_answer_and_forced_if_nothing_may_follow(
    constraints: Constraints, tokenizers: dict[Any, Any]
) -> None:
    constraint = constraints.compile(Grammar.regex("ab?"))
    eos = sorted(tokenizers["bytes"].eos)
    assert not constraint.may_end
    constraint.accept(ord("a"))
    assert np.flatnonzero(constraint.allowed()).tolist() == [ord("b"), *eos]
    assert constraint.may_end
    assert not constraint.is_complete
    constraint.accept(ord("b"))
    assert constraint.is_complete
    assert np.flatnonzero(constraint.allowed()).tolist() == eos
    constraint.accept(eos[0])
    assert constraint.is_complete


def test_the_end_token_completes_an_answer(
    constraints: Constraints, tokenizers: dict[Any, Any]
) -> None:
    constraint = constraints.compile(Grammar.regex("a*"))
    constraint.accept(ord("a"))
    constraint.accept(min(tokenizers["bytes"].eos))
    assert constraint.is_complete


def test_tokens_can_be_rolled_back(constraints: Constraints) -> None:
    constraint = constraints.compile(Grammar.choices(["yes", "yard"]))
    assert constraint.count_allowed([ord(c) for c in "yarn"]) == 3
    before = constraint.mask().copy()
    for token in b"yar":
        constraint.accept(token)
    constraint.rollback(3)
    assert (constraint.mask() == before).all()
    for token in b"yes":
        constraint.accept(token)
    assert constraint.is_complete
    constraint.rollback(1)
    assert not constraint.is_complete
    with pytest.raises(GrammarError, match="take back 9"):
        constraint.rollback(9)


def test_the_only_text_that_may_follow_is_forced(constraints: Constraints) -> None:
    constraint = constraints.compile(Grammar.choices(["yesterday", "yesteryear"]))
    constraint.begin()
    assert bytes(constraint.forced_tokens()) == b"yester"
    for token in b"yesterd":
        constraint.accept(token)
    assert bytes(constraint.forced_tokens()) == b"ay"
    constraint.accept(ord("a"))
    constraint.accept(ord("y"))
    assert [*constraint.forced_tokens()] == []
    assert constraint.is_complete


def test_after_an_error_nothing_is_forced(constraints: Constraints) -> None:
    constraint = constraints.compile(Grammar.choices(["yes"]))
    with pytest.raises(GrammarError):
        constraint.accept(ord("n"))
    assert [*constraint.forced_tokens()] == []


def test_accepting_a_token_outside_the_grammar_is_an_error(constraints: Constraints) -> None:
    constraint = constraints.compile(Grammar.choices(["yes"]))
    with pytest.raises(GrammarError, match="token 110 does not match the grammar"):
        constraint.accept(ord("n"))


def test_answers_of_one_grammar_are_independent(constraints: Constraints) -> None:
    first = constraints.compile(Grammar.choices(["yes", "no"]))
    first.accept(ord("y"))
    second = constraints.compile(Grammar.choices(["yes", "no"]))
    assert np.flatnonzero(second.allowed()).tolist() == sorted(b"yn")
    assert np.flatnonzero(first.allowed()).tolist() == [ord("e")]


def test_a_vocabulary_without_an_allowed_token_is_an_error() -> None:
    tokenizer = load_tokenizer(byte_level("</s>", types=SPECIALS, eos_token_id=256))
    letters = [token for token in range(256) if token != ord("q")]

    class WithoutQ:
        vocabulary_size, eos = tokenizer.vocabulary_size, tokenizer.eos
        control_texts = tokenizer.control_texts

        def encode_inside(self, text: str) -> list[Any]:
            return [token for token in text.encode() if token in letters]

        def all_token_bytes(self) -> list[Any]:
            return [bytes([t]) if t in letters else b"" for t in range(self.vocabulary_size)]

    constraints = Constraints(WithoutQ(), FORK_SERVER)
    constraint = constraints.compile(Grammar.regex("a[q]|a[q]q"))
    constraint.accept(ord("a"))
    with pytest.raises(GrammarError, match="no token of the model fits"):
        constraint.mask()
    constraints.close()


def test_the_cache_of_compiled_grammars_is_bounded(constraints: Constraints) -> None:
    for number in range(60):
        constraints.compile(Grammar.choices([str(number)]))
    assert len(constraints._remembered) <= 16


def test_a_grammar_around_another_allows_reasoning_first(constraints: Constraints) -> None:
    grammar = Grammar.schema({"const": 5}).within(
        'start: thought answer\nthought[suffix="</t>"]: /(.|\\n)*/'
    )
    constraint = constraints.compile(grammar)
    for token in b"so {</t>":
        assert not constraint.may_end
        constraint.accept(token)
    assert np.flatnonzero(constraint.allowed()).tolist() == [ord("5")]


def test_a_nested_grammar_keeps_its_own_rules(constraints: Constraints) -> None:
    own = Grammar.lark('start: one (/[}]{1,2}/ | "{")  # } no end\none: "a"')
    constraint = constraints.compile(own.within('start: one answer\none: "b"'))
    for token in b"ba}":
        constraint.accept(token)
    assert constraint.may_end
    assert constraint.count_allowed(list(b"}}")) == 1


def test_grammars_may_contain_control_tokens(
    constraints: Constraints, tokenizers: dict[Any, Any]
) -> None:
    [mark] = tokenizers["bytes"].control_tokens(["<|mark|>"]).values()
    constraint = constraints.compile(Grammar.lark(f'start: "a" <[{mark}]>'))
    constraint.accept(ord("a"))
    assert constraint.allowed()[mark]
    constraint = constraints.compile(Grammar.regex(r"(.|\n)*"))
    assert not constraint.allowed()[mark]


def test_closing_ends_the_thread_and_the_process(tokenizers: dict[Any, Any]) -> None:
    before = set(threading.enumerate())
    constraints = Constraints(tokenizers["bytes"], FORK_SERVER)
    constraints.prepare()
    constraints.compile(Grammar.choices(["a"])).mask()
    constraints.close()
    constraints.close()
    assert set(threading.enumerate()) <= before


@pytest.mark.parametrize("alternatives", [2_001, 8_000])
def test_grammar_with_thousands_of_alternatives_allows_the_last_one(
    constraints: Constraints, tokenizers: dict[Any, Any], alternatives: int
) -> None:
    words = " | ".join(f'"w{number}."' for number in range(alternatives))
    constraint = constraints.compile(Grammar.lark(f"start: {words}"))
    for token in tokenizers["bytes"].encode_inside(f"w{alternatives - 1}."):
        assert constraint.allowed()[token]
        constraint.accept(token)
    assert constraint.may_end


def test_grammar_with_too_many_alternatives_is_refused_before_the_answer(
    constraints: Constraints,
) -> None:
    words = " | ".join(f'"w{number}."' for number in range(20_001))
    with pytest.raises(GrammarError, match=r"too complex: .* 20002 items; max is 20000"):
        constraints.compile(Grammar.lark(f"start: {words}"))
