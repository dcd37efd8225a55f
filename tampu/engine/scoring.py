"""Log-probabilities of given continuations of prompts, computed as forks of the prompts.

The logits after a prompt score the first token of every continuation. A longer continuation needs
the logits after each of its tokens but the last; those of continuations that begin alike are
computed once. All forks run as requests of their own, which share the rows of the prompt.
"""

from __future__ import annotations

import math
import queue
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import partial
from itertools import islice
from typing import Protocol, Self, TypeAlias, TypeVar

import numpy as np

from tampu.cancellation import check_cancelled
from tampu.chat.media import Item
from tampu.engine.requests import PromptScores, ScoredContinuation
from tampu.errors import ComputeError, RequestError
from tampu.runner.events import Done, Event, Failed, Usage, to_error
from tampu.runner.sequence import RowCollector, Rows
from tampu.tokenizer import Tokenizer

Work = TypeVar("Work")
Tokens: TypeAlias = tuple[int, ...]
Prompts: TypeAlias = Sequence[tuple[Sequence[Item], Sequence[Tokens]]]
"""Prompts, each with its continuations."""
Continuation: TypeAlias = str | Sequence[int]
"""What may follow a prompt: a text, or token ids."""
AT_ONCE = 128
"""Requests of one caller that run or wait; those that fit share a batch."""
_POLL_S = 0.1  # between looks at whether the work is still wanted


class Handle(Protocol):
    """A running request."""

    def cancel(self) -> None:
        """End it before its next token."""


Collect: TypeAlias = Callable[[Sequence[Item], RowCollector, Callable[[Event], None]], Handle]
"""Begins to compute the outputs of a prompt, as `InputProcessor.collect` does."""


@dataclass(frozen=True, slots=True)
class Scored:
    """The scores of one prompt's continuations.

    Attributes:
        logprobs: the natural log-probability of each continuation after the prompt.
        usage: of the request that computed the prompt.
    """

    logprobs: list[float]
    usage: Usage

    @classmethod
    def of(cls, found: PromptScores) -> Self:
        """Return the sums of what was computed."""
        return cls([each.logprob for each in found.continuations], found.usage)


@dataclass(slots=True)
class _Fork:
    """One path of tokens after a prompt: its logits score what may follow each prefix of the path.

    Attributes:
        following: the tokens that may follow each prefix, with their log-probabilities.
        length: of the prefix whose logits come next; the shorter ones are another fork's.
    """

    prompt: Sequence[Item]
    path: Tokens
    following: dict[Tokens, dict[int, float]]
    length: int
    usage: Usage = field(default_factory=Usage)

    def add(self, rows: Rows) -> None:
        """Score the tokens after the next prefixes, from their logits."""
        for row in rows:
            wanted = self.following[self.path[: self.length]]
            wanted.update(zip(wanted, log_softmax(row, [*wanted]), strict=True))
            self.length += 1


def log_softmax(logits: Rows, tokens: Sequence[int]) -> list[float]:
    """Return the natural log-probabilities of tokens, from the logits of the vocabulary.

    Raises:
        ComputeError: if a logit is NaN or infinite.
        RequestError: for a token that is not in the vocabulary.
    """
    if not 0 <= min(tokens) <= max(tokens) < len(logits):
        raise RequestError(f"a token is not in the vocabulary of {len(logits)} tokens")
    values = logits.astype(np.float64)
    most = float(values.max())
    if not math.isfinite(most):
        raise ComputeError("the model computed NaN or infinite logits")
    total = float(np.exp(values - most).sum())
    found: list[float] = (values[list(tokens)] - (most + math.log(total))).tolist()
    return found


def scores(prompts: Prompts, collect: Collect, *, at_once: int) -> tuple[PromptScores, ...]:
    """Return the log-probabilities of continuations of several prompts.

    Args:
        prompts: each with its continuations, of one token or more.
        collect: begins a request.
        at_once: how many requests run or wait at a time; others get their turn in between.

    Raises:
        TampuError: as `collect`, and for invalid logits; the other requests are cancelled.
    """
    computed = _tables(prompts, collect, at_once)
    return tuple(
        PromptScores(
            tuple(ScoredContinuation(tokens, _logprobs(table, tokens)) for tokens in continuations),
            usage,
        )
        for (_, continuations), (table, usage) in zip(prompts, computed, strict=True)
    )


def with_continuations(
    tokenizer: Tokenizer, prompt: Sequence[Item] | str, continuations: Sequence[Continuation]
) -> list[tuple[Sequence[Item], list[Tokens]]]:
    """Return each continuation as tokens, with the tokens of the prompt before it.

    The border of two texts is that of lm-evaluation-harness, which vLLM is measured with, too:
    white space at the end of the prompt belongs to the continuation, since most vocabularies have
    it in the token of the next word. Both texts are encoded together, and the continuation has the
    tokens after the prompt's own. Where a token has the end of the prompt and the start of the
    continuation, and beside tokens, a text is encoded alone, without BOS.

    Raises:
        RequestError: for an empty continuation.
    """
    text = prompt if isinstance(prompt, str) else None
    begin, _ = tokenizer.around
    start = [] if text is None else [*begin, *tokenizer.encode(text.rstrip(), add_special=False)]
    whole = prompt if text is None else [*begin, *tokenizer.encode(text, add_special=False)]
    pairs: list[tuple[Sequence[Item], list[Tokens]]] = []
    for index, each in enumerate(continuations):
        if not len(each):
            raise RequestError(f"continuations[{index}] is empty: it must have at least one token")
        if not isinstance(each, str):
            pairs.append((whole, [tuple(map(int, each))]))
        elif text is None:
            pairs.append((whole, [_alone(tokenizer, each)]))
        else:
            both = [*begin, *tokenizer.encode(text + each, add_special=False)]
            is_split = both[: len(start)] == start and len(both) > len(start)
            rest = tuple(both[len(start) :])
            space = text[len(text.rstrip()) :]
            pairs.append((start, [rest if is_split else _alone(tokenizer, space + each)]))
    return pairs


def _alone(tokenizer: Tokenizer, text: str) -> Tokens:
    return tuple(tokenizer.encode_pieces(((text, True),), continues=True))


def _tables(
    prompts: Prompts, collect: Collect, at_once: int
) -> list[tuple[dict[Tokens, dict[int, float]], Usage]]:
    """Return for each prompt the log-probabilities of the tokens after each prefix."""
    for prompt, continuations in prompts:
        if not prompt:
            raise RequestError("the prompt is empty: it must have at least one token")
        if any(not tokens for tokens in continuations):
            raise RequestError("a continuation is empty: it must have at least one token")
    tables = [_following(continuations) for _, continuations in prompts]
    forks = [_forks(prompt, table) for (prompt, _), table in zip(prompts, tables, strict=True)]

    def begin(fork: _Fork, sink: Callable[[Event], None]) -> Handle:
        collector = RowCollector(fork.add, last=len(fork.path) + 1 - fork.length)
        return collect([*fork.prompt, *fork.path], collector, sink)

    flat = [fork for each in forks for fork in each]
    for fork, usage in zip(flat, run_all(flat, begin, at_once=at_once), strict=True):
        fork.usage = usage
    usages = [own[0].usage if own else Usage() for own in forks]
    return [*zip(tables, usages, strict=True)]


def _following(continuations: Sequence[Tokens]) -> dict[Tokens, dict[int, float]]:
    """Return which tokens follow each prefix of the continuations, without scores yet."""
    table: dict[Tokens, dict[int, float]] = {}
    for tokens in continuations:
        for index, token in enumerate(tokens):
            table.setdefault(tokens[:index], {})[token] = math.nan
    return table


def _forks(prompt: Sequence[Item], following: dict[Tokens, dict[int, float]]) -> list[_Fork]:
    """Return forks that pass through all prefixes, each through those that no earlier one has."""
    forks: list[_Fork] = []
    paths = sorted(following)  # a prefix comes right before what it begins
    shared = 0
    for path, after in zip(paths, [*paths[1:], ()], strict=True):
        common = common_prefix(path, after)
        if common < len(path) or not after:
            forks.append(_Fork(prompt, path, following, shared))
            shared = common + 1
    return forks


def common_prefix(first: Sequence[Item], second: Sequence[Item]) -> int:
    """Return how many items two sequences have in common at their start."""
    pairs = enumerate(zip(first, second, strict=False))
    return next((i for i, (a, b) in pairs if a != b), min(len(first), len(second)))


def _logprobs(following: dict[Tokens, dict[int, float]], tokens: Tokens) -> tuple[float, ...]:
    return tuple(following[tokens[:index]][token] for index, token in enumerate(tokens))


def run_all(
    works: Sequence[Work], begin: Callable[[Work, Callable[[Event], None]], Handle], *, at_once: int
) -> list[Usage]:
    """Run requests, and return the usage of each; after an error the others are cancelled.

    Args:
        works: what is requested.
        begin: begins the request for one of them; the function gets its events.
        at_once: how many requests run or wait at a time.

    Raises:
        TampuError: the first error of a request.
    """
    events: queue.SimpleQueue[tuple[int, Event]] = queue.SimpleQueue()
    running: dict[int, Handle] = {}
    usages = [Usage()] * len(works)
    left = iter(range(len(works)))

    def begin_next(count: int) -> None:
        for index in islice(left, count):
            sink = partial(_put, events, index)
            running[index] = begin(works[index], sink)

    try:
        begin_next(at_once)
        while running:
            index, event = _next(events)
            if isinstance(event, Failed):
                raise to_error(event.kind, event.message)
            if isinstance(event, Done):
                usages[index] = event.usage
                del running[index]
                begin_next(1)
    finally:
        for handle in running.values():
            handle.cancel()
    return usages


def _put(events: queue.SimpleQueue[tuple[int, Event]], index: int, event: Event) -> None:
    events.put((index, event))


def _next(events: queue.SimpleQueue[tuple[int, Event]]) -> tuple[int, Event]:
    while True:
        check_cancelled()
        try:
            return events.get(timeout=_POLL_S)
        except queue.Empty:
            continue
