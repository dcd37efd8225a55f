"""Decisions: questions about an input, answered with the probabilities of given answers.

The model writes nothing. A question ends the prompt, and each of its answers is scored as the
model's reply: the sum of the log-probabilities of its tokens. The probabilities are those of the
answers given that the reply begins with one of them: they are not divided by the answers' lengths.
Where one answer begins another (`no`, `no idea`), the shorter one is scored with the end token.
"""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import chain, islice
from typing import TypeAlias

from tampu.chat.images import Item, length
from tampu.engine.questions import (
    Choice,
    Decision,
    Decisions,
    Option,
    Predicate,
    Question,
    Score,
    check_count,
    check_question,
)
from tampu.engine.scoring import Scored, Tokens, common_prefix
from tampu.errors import ContextLengthError, RequestError


@dataclass(frozen=True, slots=True)
class _Asked:
    """A question as a prompt and what is scored for each answer: the sum of these continuations."""

    prompt: list[Item]
    answers: list[list[Tokens]]


BuildForks: TypeAlias = Callable[
    [Sequence[tuple[str, Sequence[str]]]], tuple[list[Item], list[list[list[int]]]]
]
"""Returns the start of all prompts, and the tokens after it for each answer (`PromptBuilder`)."""


def decide(
    questions: Sequence[Question],
    build_forks: BuildForks,
    score: Callable[[list[Item], list[tuple[list[Item], list[Tokens]]]], list[Scored]],
    *,
    ends: Sequence[int],
    context: int,
) -> Decisions:
    """Answer questions.

    Args:
        questions: 1 to 400.
        build_forks: makes the prompts of questions and answers.
        score: returns the log-probabilities of continuations of prompts that have a common start.
        ends: tokens that end a reply.
        context: the maximum number of tokens of a prompt with its answer.

    Raises:
        RequestError: for a wrong number of questions or answers, and for equal answers.
        ContextLengthError: naming the question that is too long.
    """
    check_count(len(questions))
    endings = []
    for index, question in enumerate(questions):
        check_question(question, f"questions[{index}]")
        endings.append(_ending(question))
    shared, forks = build_forks(endings)
    asked = []
    for index, answers in enumerate(forks):
        longest = length(shared) + max(map(len, answers)) + 1
        if longest > context:
            raise ContextLengthError.of(longest, context, f"questions[{index}] with the input")
        asked.append(_asked(shared, [tuple(answer) for answer in answers], ends))
    scored = score(shared, [(each.prompt, [*chain(*each.answers)]) for each in asked])
    return Decisions(
        tuple(_decision(each, own) for each, own in zip(asked, scored, strict=True)),
        length(shared) + sum(len(each.prompt) - len(shared) for each in asked),
        min(scored[0].usage.cached_tokens, length(shared)),
    )


def _ending(question: Question) -> tuple[str, list[str]]:
    """Return how a question is put to the model, and its answers as the model would write them."""
    match question:
        case Predicate(instructions=text, yes=yes, no=no):
            meanings = (("Yes", yes), ("No", no))
            listed = [f"{name} means: {meaning}" for name, meaning in meanings if meaning]
            return _lines(text, *listed, "Answer with Yes or No only."), ["Yes", "No"]
        case Choice(instructions=text, options=options):
            names = _names(options)
            listed = [
                f"- {_described(name, option.description)}"
                for name, option in zip(names, options, strict=True)
            ]
            end = "Answer with one of the options only."
            return _lines(text, "Options:", *listed, end), names
        case Score(instructions=text, levels=levels):
            listed = [
                f"{number}: {_described(level.label, level.description)}"
                for number, level in enumerate(levels)
            ]
            end = "Answer with the number of one level only."
            numbers = [str(number) for number in range(len(levels))]
            return _lines(text, "Levels, from the lowest to the highest:", *listed, end), numbers


def _lines(*lines: str) -> str:
    return "\n".join(lines)


def _described(name: str, description: str) -> str:
    return f"{name}: {description}" if description else name


def _names(options: Sequence[Option]) -> list[str]:
    """Return the options' names: booleans as in JSON, and texts quoted if they look like one."""
    booleans = {option.value for option in options if isinstance(option.value, bool)}
    written = {json.dumps(value) for value in booleans}
    return [
        json.dumps(option.value, ensure_ascii=False)
        if isinstance(option.value, bool) or option.value in written
        else option.value
        for option in options
    ]


def _asked(shared: list[Item], answers: list[Tokens], ends: Sequence[int]) -> _Asked:
    """Return a question; what all its answers begin with is a part of its prompt.

    That is the end of the question, and maybe the start of the answers: it does not change the
    probabilities.

    Raises:
        RequestError: if one answer begins another, and the model has no end token.
    """
    first, *others = answers
    common = min(common_prefix(first, other) for other in others)
    rest = [answer[common:] for answer in answers]
    begins = [any(own != other and other[: len(own)] == own for other in rest) for own in rest]
    if any(begins) and not ends:
        raise RequestError("one answer begins another, and the model has no token to end it")
    continuations = [
        [(*own, end) for end in ends] if is_begun else [own]
        for own, is_begun in zip(rest, begins, strict=True)
    ]
    return _Asked([*shared, *first[:common]], continuations)


def _decision(asked: _Asked, scored: Scored) -> Decision:
    values = iter(scored.logprobs)
    logprobs = [_log_sum([*islice(values, len(each))]) for each in asked.answers]
    mass = _log_sum(logprobs)
    if mass == -math.inf:  # the model rules out all of them
        return Decision((1 / len(logprobs),) * len(logprobs), 0.0)
    return Decision(tuple(math.exp(value - mass) for value in logprobs), math.exp(mass))


def _log_sum(logprobs: Sequence[float]) -> float:
    """Return the logarithm of the sum of probabilities."""
    most = max(logprobs)
    if most == -math.inf:
        return most
    return most + math.log(sum(math.exp(value - most) for value in logprobs))
