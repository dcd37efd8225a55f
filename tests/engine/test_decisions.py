"""Decisions: how questions are put, and probabilities from scores."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from support.engines import SMALL
from support.scripted import write_scripted

from tampu.engine.decisions import Scorer, decide, rerank, rerank_messages
from tampu.engine.engine import Engine
from tampu.engine.questions import Choice, Decision, Level, Option, Predicate, Question, Score
from tampu.engine.requests import Rerank
from tampu.engine.scoring import Scored, Tokens
from tampu.errors import ContextLengthError, RequestError
from tampu.runner.events import Usage

END = 0
TEMPLATE = "{% for m in messages %}{{ m.role }}: {{ m.content }}\n{% endfor %}assistant:"


def choice(*values: str | bool) -> Choice:
    return Choice("Which?", tuple(map(Option, values)))


def score_of(*labels: str) -> Score:
    return Score("How much?", tuple(map(Level, labels)))


class Asked:
    """Puts questions to a model of letters, each with a fixed probability."""

    def __init__(self, logprobs: dict[int, float] | None = None, context: int = 10**6) -> None:
        self.endings: list[tuple[str, Sequence[str]]] = []
        self.prompts: list[Any] = []
        self._logprobs = logprobs or {}
        self._context = context

    def forks(self, endings: Sequence[tuple[str, Sequence[str]]]) -> Any:
        self.endings += endings
        return [1, 2], [[[*map(ord, f"{q}:{a}")] for a in answers] for q, answers in endings]

    def scores(self, shared: Any, prompts: list[tuple[Any, list[Tokens]]]) -> list[Scored]:
        assert shared == [1, 2]
        self.prompts += prompts
        return [
            Scored([sum(self._logprobs.get(t, -1.0) for t in each) for each in answers], Usage())
            for _, answers in prompts
        ]

    def decide(self, *questions: Question, ends: Sequence[int] = (END,)) -> list[Decision]:
        found = decide(questions, Scorer(self.forks, self.scores, ends, self._context))
        return [*found.answers]


# How questions are put


def test_a_predicate_is_answered_with_yes_or_no() -> None:
    asked = Asked()
    asked.decide(Predicate("It is late.", yes="after ten", no="before ten"))
    [(text, answers)] = asked.endings
    assert text.splitlines() == [
        "Answer with Yes or No only.",
        "It is late.",
        "Yes means: after ten",
        "No means: before ten",
    ]
    assert answers == ["Yes", "No"]


def test_options_are_listed_and_levels_numbered() -> None:
    asked = Asked()
    asked.decide(
        Choice("Which?", (Option("a", "the first"), Option("b"))),
        Score("How?", (Level("low", "little"), Level("high"))),
    )
    [(options, names), (levels, numbers)] = asked.endings
    assert options.endswith("\n- a: the first\n- b")
    assert names == ["a", "b"]
    assert levels.endswith("\n0: low: little\n1: high")
    assert numbers == ["0", "1"]


def test_a_text_that_looks_like_a_boolean_is_another_option() -> None:
    asked = Asked()
    asked.decide(choice(True, "true", "false"), choice("true", "false"))
    assert asked.endings[0][1] == ["true", '"true"', "false"]
    assert asked.endings[1][1] == ["true", "false"]


@pytest.mark.parametrize(
    ("question", "message"),
    [
        (choice("a"), r"questions\[1\].options must be 2 to 255, not 1"),
        (choice(*map(str, range(256))), r"questions\[1\].options must be 2 to 255, not 256"),
        (choice("a", "b", "a"), r"questions\[1\].options: 'a' is there twice"),
        (choice(True, True), "'True' is there twice"),
        (choice("a", " "), "one is empty"),
        (score_of("a"), r"questions\[1\].levels must be 2 to 255, not 1"),
        (score_of("a", "a"), "'a' is there twice"),
        (Predicate(" \n"), r"questions\[1\].instructions is empty"),
    ],
)
def test_a_question_that_has_no_answer_is_refused(question: Question, message: str) -> None:
    with pytest.raises(RequestError, match=message):
        Asked().decide(Predicate("Yes?"), question)


@pytest.mark.parametrize("count", [0, 401])
def test_a_wrong_number_of_questions_is_refused(count: int) -> None:
    with pytest.raises(RequestError, match=f"1 to 400 can be asked at once, not {count}"):
        Asked().decide(*[Predicate("Yes?")] * count)


def test_the_question_that_is_too_long_is_named() -> None:
    with pytest.raises(ContextLengthError, match=r"questions\[1\]"):
        Asked(context=60).decide(Predicate("Yes?"), Predicate("y" * 60))


# Probabilities


def test_what_all_answers_begin_with_belongs_to_the_prompt() -> None:
    asked = Asked()
    asked.decide(choice("very good", "very bad"))
    [(prompt, answers)] = asked.prompts
    assert "".join(map(chr, prompt[2:])).endswith("- very bad:very ")
    assert answers == [tuple(map(ord, "good")), tuple(map(ord, "bad"))]


def test_an_answer_that_begins_another_is_scored_with_the_end() -> None:
    asked = Asked({END: math.log(0.25)})
    [found] = asked.decide(choice("n", "no"), ends=(END,))
    # n is what both begin with: then it ends (1/4), or o follows (1/e).
    assert found.probabilities[0] == pytest.approx(0.25 / (0.25 + math.exp(-1)))
    asked = Asked({END: math.log(0.25), 9: math.log(0.5)})
    [found] = asked.decide(choice("n", "no"), ends=(END, 9))
    assert found.probabilities[0] == pytest.approx(0.75 / (0.75 + math.exp(-1)))
    with pytest.raises(RequestError, match="no token to end it"):
        asked.decide(choice("n", "no"), ends=())


def test_longer_answers_are_not_favoured() -> None:
    [found] = Asked().decide(choice("ab", "c"))
    assert found.probabilities[1] / found.probabilities[0] == pytest.approx(math.e)
    assert found.best == 1


def test_answers_that_the_model_rules_out_are_equal() -> None:
    [found] = Asked({ord("a"): -math.inf, ord("b"): -math.inf}).decide(choice("a", "b"))
    assert found == Decision((0.5, 0.5), 0.0)


def test_very_improbable_answers_still_differ() -> None:
    [found] = Asked({ord("a"): -5000.0, ord("b"): -5001.0}).decide(choice("a", "b"))
    assert found.probabilities[0] == pytest.approx(1 / (1 + math.exp(-1)))
    assert found.mass == 0.0


@given(weights=st.lists(st.floats(-50, 0), min_size=2, max_size=8))
def test_probabilities_add_to_one_and_confidence_is_from_zero_to_one(weights: list[float]) -> None:
    letters = [chr(ord("a") + i) for i in range(len(weights))]
    asked = Asked({ord(c): value for c, value in zip(letters, weights, strict=True)})
    [found] = asked.decide(choice(*letters))
    assert sum(found.probabilities) == pytest.approx(1)
    assert -1e-9 <= found.confidence <= 1 + 1e-9
    assert 0 <= found.expected <= len(weights) - 1 + 1e-9
    assert found.probabilities[found.best] == max(found.probabilities)


# Through an engine


@pytest.fixture(scope="module")
def engine(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Engine]:
    path = tmp_path_factory.mktemp("models") / "m.gguf"
    write_scripted(path, ["Yes", "."], template=TEMPLATE)
    with Engine.load(path, slots=2, **{**SMALL, "context": 512}) as engine:
        engine.generate("a", max_tokens=1)
        yield engine


def test_the_model_s_own_answer_is_the_likeliest(engine: Engine) -> None:
    found = engine.decide("Is it late?", [Predicate("It is late."), choice("No", "Yes")])
    assert found.answers[0].probabilities[0] > 0.5
    assert found.answers[1].best == 1
    assert found.input_tokens > 20


def test_the_input_is_computed_once_and_found_again(engine: Engine) -> None:
    text = "It is late and the shop is shut. " * 3
    first = engine.decide(text, [Predicate("It is late.")])
    again = engine.decide(text, [Predicate("It is early."), Predicate("It is late.")])
    assert again.cached_tokens > 50
    assert again.answers[1].probabilities == pytest.approx(first.answers[0].probabilities)


@settings(max_examples=10, deadline=None)
@given(count=st.integers(1, 12), place=st.integers(0, 11))
def test_an_answer_does_not_depend_on_the_other_questions(
    engine: Engine, count: int, place: int
) -> None:
    questions: list[Question] = [Predicate("It is late.")] * count
    asked = choice("Yes", "No", "Maybe", "Maybe not")
    questions.insert(min(place, count), asked)
    [alone] = engine.decide("Late?", [asked]).answers
    found = engine.decide("Late?", questions).answers[min(place, count)]
    assert found.probabilities == pytest.approx(alone.probabilities, rel=1e-4)


def test_a_conversation_may_end_with_any_message(engine: Engine) -> None:
    messages = [{"role": "user", "content": "Late?"}, {"role": "assistant", "content": "Yes."}]
    for count in (1, 2):
        [found] = engine.decide(messages[:count], [choice("Yes", "No")]).answers
        assert found.best == 0


def test_a_model_without_a_template_is_refused(tmp_path: Path) -> None:
    path = write_scripted(tmp_path / "plain.gguf", ["Yes"])
    with (
        Engine.load(path, **SMALL) as engine,
        pytest.raises(RequestError, match="no chat template"),
    ):
        engine.decide("Late?", [Predicate("It is late.")])


# Ranking


def test_documents_are_asked_about_as_qwen3_reranker_was_trained() -> None:
    asked = Asked({ord("y"): -0.1, ord("n"): -3.0})
    found = rerank(["one", "two"], Scorer(asked.forks, asked.scores, (END,), 1000))
    assert asked.endings == [
        ("<Document>: one", ["yes", "no"]), ("<Document>: two", ["yes", "no"])
    ]  # fmt: skip
    assert all(0 < decision.probabilities[0] < 1 for decision in found.answers)
    with pytest.raises(ContextLengthError, match=r"documents\[1\]"):
        rerank(["one", "y" * 99], Scorer(asked.forks, asked.scores, (END,), 60))


def test_the_query_is_computed_once(engine: Engine) -> None:
    scores = engine.rerank("What is it?", ["It is late.", "It is early.", "It is late."])
    assert scores[0] == pytest.approx(scores[2], rel=1e-4)
    one, two = (
        engine.ask(Rerank("What is it?", documents, "Find it")).usage.prompt_tokens
        for documents in (("a",), ("a", "b"))
    )
    assert two < 1.5 * one


def test_the_prompt_is_that_of_the_model_card(engine: Engine) -> None:
    messages = rerank_messages("q", "i")
    prompts = engine.requests.prompts
    assert prompts is not None
    shared, [[yes, _]] = prompts.build_forks(
        messages, [("<Document>: d", ["yes", "no"])], separator=""
    )
    text = engine.detokenize([*shared, *yes])
    assert "user: <Instruct>: i\n<Query>: q\n<Document>: d\nassistant:yes" in text
    assert 'the answer can only be "yes" or "no".' in text
