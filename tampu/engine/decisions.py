"""Decisions: questions about an input, answered with the probabilities of given answers.

The model writes nothing. A question ends the prompt, and each of its answers is scored as the
model's reply: the sum of the log-probabilities of its tokens. The probabilities are those of the
answers given that the reply begins with one of them: they are not divided by the answers' lengths.
Where one answer begins another (`no`, `no idea`), the shorter one is scored with the end token.

Documents are ranked in the same way: by the probability of `yes` to whether one matches a query.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import chain, islice
from typing import TypeAlias

from tampu.chat.media import Item, length
from tampu.engine.questions import (
    Choice,
    Decision,
    Decisions,
    Predicate,
    Question,
    Score,
    check_questions,
    option_names,
)
from tampu.engine.scoring import Scored, Tokens, common_prefix
from tampu.errors import ContextLengthError, RequestError


@dataclass(frozen=True, slots=True)
class _Asked:
    """A question as a prompt and what is scored for each answer: the sum of these continuations."""

    prompt: list[Item]
    answers: list[list[Tokens]]


Ending: TypeAlias = tuple[str, Sequence[str]]
"""How a prompt ends, and the possible replies to it."""

BuildForks: TypeAlias = Callable[[Sequence[Ending]], tuple[list[Item], list[list[list[int]]]]]
"""Returns the start of all prompts, and the tokens after it for each reply (`PromptBuilder`)."""


@dataclass(frozen=True, slots=True)
class Scorer:
    """Scores replies of one model to prompts that begin alike.

    Attributes:
        build_forks: makes the prompts from their endings and the possible replies.
        score: returns the log-probabilities of continuations of prompts that have a common start.
        ends: tokens that end a reply.
        context: the maximum number of tokens of a prompt with its reply.
    """

    build_forks: BuildForks
    score: Callable[[list[Item], list[tuple[list[Item], list[Tokens]]]], list[Scored]]
    ends: Sequence[int]
    context: int

    def decisions(self, endings: Sequence[Ending], where: str) -> Decisions:
        """Return the probabilities of the replies to each ending, given any of them.

        Raises:
            ContextLengthError: for a prompt that is too long; it begins with `where` and its index.
        """
        shared, forks = self.build_forks(endings)
        asked = []
        for index, replies in enumerate(forks):
            longest = length(shared) + max(map(len, replies)) + 1
            if longest > self.context:
                name = f"{where}[{index}] with what all have in common"
                raise ContextLengthError.of(longest, self.context, f"{name} is too long")
            asked.append(_asked(shared, [tuple(reply) for reply in replies], self.ends))
        scored = self.score(shared, [(each.prompt, [*chain(*each.answers)]) for each in asked])
        return Decisions(
            tuple(_decision(each, own) for each, own in zip(asked, scored, strict=True)),
            length(shared) + sum(len(each.prompt) - len(shared) for each in asked),
            min(scored[0].usage.cached_tokens, length(shared)),
        )


def decide(questions: Sequence[Question], scorer: Scorer) -> Decisions:
    """Answer questions, 1 to 400.

    Raises:
        RequestError: for a wrong number of questions or answers, and for equal answers.
        ContextLengthError: naming the question that is too long.
    """
    check_questions(questions)
    return scorer.decisions([_ending(question) for question in questions], "questions")


def rerank_messages(query: str, instruction: str) -> list[dict[str, str]]:
    """Return the conversation that asks whether a document, which follows, matches a query.

    It is the prompt that Qwen3-Reranker was trained with (arXiv:2506.05176).
    """
    system = (
        "Judge whether the Document meets the requirements based on the Query and the Instruct "
        'provided. Note that the answer can only be "yes" or "no".'
    )
    asked = f"<Instruct>: {instruction}\n<Query>: {query}\n"
    return [{"role": "system", "content": system}, {"role": "user", "content": asked}]


def rerank(documents: Sequence[str], scorer: Scorer) -> Decisions:
    """Return for each document the probabilities that it matches the query, and that it does not.

    Raises:
        ContextLengthError: naming the document that is too long.
    """
    if not len(documents):
        return Decisions((), 0, 0)
    endings = [(f"<Document>: {document}", ["yes", "no"]) for document in documents]
    return scorer.decisions(endings, "documents")


def _ending(question: Question) -> tuple[str, list[str]]:
    """Return how a question is put to the model, and its answers as the model would write them.

    What all questions of a kind have in common is first: it is computed once for all of them.
    """
    match question:
        case Predicate(instructions=text, yes=yes, no=no):
            meanings = (("Yes", yes), ("No", no))
            listed = [f"{name} means: {meaning}" for name, meaning in meanings if meaning]
            return _lines("Answer with Yes or No only.", text, *listed), ["Yes", "No"]
        case Choice(instructions=text, options=options):
            names = option_names(options)
            listed = [
                f"- {_described(name, option.description)}"
                for name, option in zip(names, options, strict=True)
            ]
            return _lines("Answer with one of the options only.", text, "Options:", *listed), names
        case Score(instructions=text, levels=levels):
            listed = [
                f"{number}: {_described(level.label, level.description)}"
                for number, level in enumerate(levels)
            ]
            start = "Answer with the number of one level only."
            numbers = [str(number) for number in range(len(levels))]
            return _lines(start, text, "Levels, from the lowest to the highest:", *listed), numbers


def _lines(*lines: str) -> str:
    return "\n".join(lines)


def _described(name: str, description: str) -> str:
    return f"{name}: {description}" if description else name


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
