"""Questions about an input, and their answers; see `tampu.engine.decisions`."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import TypeAlias

import msgspec

from tampu.errors import RequestError

MAX_QUESTIONS = 400
MAX_OPTIONS = 255
RERANK_INSTRUCTION = "Given a web search query, retrieve relevant passages that answer the query"


class Option(msgspec.Struct, frozen=True):
    """One of the values to choose from; a text and a boolean of the same name are different."""

    value: str | bool
    description: str = ""


class Level(msgspec.Struct, frozen=True):
    """One level of a scale."""

    label: str
    description: str = ""


class Predicate(msgspec.Struct, frozen=True, tag="predicate"):
    """Whether a statement is true, or a question is answered with yes.

    Attributes:
        instructions: the statement or question.
        yes: what yes means; "" if that is clear.
        no: what no means.
    """

    instructions: str
    yes: str = ""
    no: str = ""


class Choice(msgspec.Struct, frozen=True, tag="choice"):
    """Which of several options applies, 2 to 255."""

    instructions: str
    options: tuple[Option, ...]


class Score(msgspec.Struct, frozen=True, tag="score"):
    """Where the input lies on a scale of 2 to 255 levels, from the lowest to the highest."""

    instructions: str
    levels: tuple[Level, ...]


Question: TypeAlias = Predicate | Choice | Score


class Decision(msgspec.Struct, frozen=True):
    """The answer to one question.

    Attributes:
        probabilities: of the question's answers in their order; they sum to 1. Those of a predicate
            are yes and no.
        mass: the probability that the model's reply begins with any of the answers, after what they
            all begin with.
    """

    probabilities: tuple[float, ...]
    mass: float

    @property
    def best(self) -> int:
        """The index of the most probable answer; of several, the first."""
        return self.probabilities.index(max(self.probabilities))

    @property
    def expected(self) -> float:
        """The mean of the answers' indices: a score's place on its scale, from 0."""
        return sum(index * value for index, value in enumerate(self.probabilities))

    @property
    def confidence(self) -> float:
        """How peaked the probabilities are: 0 if all are equal, 1 if one of them is 1."""
        count = len(self.probabilities)
        return (count * max(self.probabilities) - 1) / (count - 1)


class Decisions(msgspec.Struct, frozen=True):
    """The answers to the questions about one input, in their order.

    Attributes:
        input_tokens: tokens of the input and of all questions; the input counts once.
        cached_tokens: how many of the input's were in the cache.
    """

    answers: tuple[Decision, ...]
    input_tokens: int
    cached_tokens: int


def check_count(count: int) -> None:
    """Check how many questions are asked at once.

    Raises:
        RequestError: if there are none or too many.
    """
    if not 1 <= count <= MAX_QUESTIONS:
        raise RequestError(f"questions: 1 to {MAX_QUESTIONS} can be asked at once, not {count}")


def check_question(
    question: Question, where: str, options: str = "options", levels: str = "levels"
) -> None:
    """Check what a question can be answered with.

    Args:
        question: of any kind.
        where: its place in the request, for messages.
        options: what the request calls the options of a choice.
        levels: what it calls the levels of a score.

    Raises:
        RequestError: if the answers are too few or too many, empty or equal.
    """
    if not question.instructions.strip():
        raise RequestError(f"{where}.instructions is empty")
    if isinstance(question, Choice):
        _check_answers([option.value for option in question.options], f"{where}.{options}")
    elif isinstance(question, Score):
        _check_answers([level.label for level in question.levels], f"{where}.{levels}")


def _check_answers(values: Sequence[str | bool], where: str) -> None:
    if not 2 <= len(values) <= MAX_OPTIONS:
        raise RequestError(f"{where} must be 2 to {MAX_OPTIONS}, not {len(values)}")
    if any(isinstance(value, str) and not value.strip() for value in values):
        raise RequestError(f"{where}: one is empty")
    seen: set[tuple[type, str | bool]] = set()
    for value in values:
        if (type(value), value) in seen:
            raise RequestError(f"{where}: {str(value)[:100]!r} is there twice")
        seen.add((type(value), value))


def check_questions(questions: Sequence[Question]) -> None:
    """Check questions that are asked at once, and what they can be answered with.

    Raises:
        RequestError: naming the first that is wrong.
    """
    check_count(len(questions))
    for index, question in enumerate(questions):
        check_question(question, f"questions[{index}]")


def option_names(options: Sequence[Option]) -> list[str]:
    """Return the options' names: booleans as in JSON, and texts quoted if they look like one."""
    booleans = {option.value for option in options if isinstance(option.value, bool)}
    written = {json.dumps(value) for value in booleans}
    return [
        json.dumps(option.value, ensure_ascii=False)
        if isinstance(option.value, bool) or option.value in written
        else option.value
        for option in options
    ]
