"""One request on its way: its inputs, where they are in the cache, and what it owes its caller."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Protocol, TypeAlias

import numpy as np
import numpy.typing as npt

from tampu.kvcache import CellTable
from tampu.runner.detokenizer import Detokenizer
from tampu.runner.events import Event, FinishReason, TokenLogprob, Usage
from tampu.runner.layout import TEXT, Layout
from tampu.runner.request import GenerateOptions
from tampu.sampling import Sampler, top_logprobs

Sink: TypeAlias = Callable[[Event], None]
Rows: TypeAlias = npt.NDArray[np.float32]

_PATIENCE_NS = 2_000_000  # a prompt may be this much later for each of its tokens
_BATCH_PATIENCE_NS = 30_000_000_000  # and this much if nobody waits for it


@dataclass(slots=True)
class Clock:
    """When what happened, in nanoseconds of the monotonic clock; 0: not yet."""

    submitted: int = field(default_factory=time.monotonic_ns)
    started: int = 0
    first_token: int = 0


@dataclass(frozen=True, slots=True)
class Sampled:
    """A token that a step gave to a sequence."""

    token: int
    logprobs: tuple[TokenLogprob, ...] = ()


class Constraint(Protocol):
    """What an answer must be like, token by token."""

    def begin(self) -> None:
        """Begin to work out which tokens may come next; returns at once."""
        ...

    def mask(self) -> npt.NDArray[np.uint32] | None:
        """Return which tokens may come next: bit i % 32 of word i // 32 for token i; None: any.

        Raises:
            GrammarError: if no token may.
        """
        ...

    def accept(self, token: int) -> None:
        """Go on after a token."""
        ...

    @property
    def is_complete(self) -> bool:
        """Whether the answer is whole and nothing but its end may follow."""
        ...


@dataclass(frozen=True, slots=True)
class Collector:
    """Somebody who wants the result of every token of a prompt.

    Attributes:
        rows: receives them as they come, (tokens, vocabulary or features).
        wants_logits: logits, else final hidden states.
        chunk: how many tokens to compute at a time at most; None: as many as fit.
    """

    rows: Callable[[Rows], None]
    wants_logits: bool = True
    chunk: int | None = None


class LogprobCollector:
    """Collects the log-probability of each token of a prompt as its logits are computed.

    Attributes:
        entries: one per token except the first, which has no logits.
    """

    def __init__(
        self, tokens: npt.NDArray[np.int32], top: int, token_bytes: Callable[[int], bytes]
    ) -> None:
        """Start without entries.

        Args:
            tokens: I32, (n,): the prompt.
            top: how many of the most likely tokens to list for each.
            token_bytes: returns a token's text in UTF-8.
        """
        self.entries: list[TokenLogprob] = []
        self._tokens = tokens
        self._top = top
        self._token_bytes = token_bytes

    def add(self, rows: Rows) -> None:
        """Add the logits of the next tokens, (tokens, vocabulary)."""
        for row in rows:
            following = len(self.entries) + 1
            if following < len(self._tokens):
                token = int(self._tokens[following])
                self.entries.append(token_logprob(row, token, self._top, self._token_bytes))


def token_logprob(
    logits: npt.NDArray[np.float32], token: int, top: int, token_bytes: Callable[[int], bytes]
) -> TokenLogprob:
    """Return the log-probability of a token and of the `top` most likely ones at its position."""
    own, likeliest = top_logprobs(logits, token, top)
    top_bytes = tuple(token_bytes(each) for each, _ in likeliest)
    return TokenLogprob(token, own, tuple(likeliest), token_bytes(token), top_bytes)


@dataclass(slots=True, eq=False)
class Sequence:
    """The state of one request.

        tokens:  |<------ computed ------>|<-- known -->|?|
                 |<-- cached -->|
        cells:   one for each computed token

    Attributes:
        tokens: I32, (capacity + 1,): the prompt and the answer; `length` of them are known.
        keys: I32, (capacity + 1,): what the cache compares: the tokens, but for images.
        length: tokens known.
        prompt_length: of which the caller gave.
        cell_table: its cells, for tokens in the cache or in a batch that is planned.
        layout: where images are, and what must stay together.
        collector: who wants the result of every token of the prompt.
        prompt_logprobs: collects those of the prompt's tokens, if requested.
        constraint: what the answer must be like.
        awaits: whether the batch that computes now will give the next token.
        cached: prompt tokens whose rows were in the cache, or computed for others.
        read: tokens whose batches are done.
        dropped: tokens that truncation and context shifts have dropped.
        finish: why the answer is complete; None while it is not.
        is_cancelled: its caller wants no more of it.
        number: of the request, in the order in which they got their slots.
        pending: tokens whose text is held back.
    """

    options: GenerateOptions
    sampler: Sampler
    detokenizer: Detokenizer
    sink: Sink
    tokens: npt.NDArray[np.int32]
    keys: npt.NDArray[np.int32]
    length: int
    prompt_length: int
    cell_table: CellTable
    layout: Layout = TEXT
    collector: Collector | None = None
    prompt_logprobs: LogprobCollector | None = None
    constraint: Constraint | None = None
    awaits: bool = False
    cached: int = 0
    read: int = 0
    dropped: int = 0
    generated: int = 0
    finish: FinishReason | None = None
    is_cancelled: bool = False
    number: int = 0
    pending: list[Sampled] = field(default_factory=list)
    clock: Clock = field(default_factory=Clock)

    @property
    def capacity(self) -> int:
        """The most tokens that the context holds."""
        return len(self.tokens) - 1

    @property
    def computed(self) -> int:
        """How many tokens have cells."""
        return self.cell_table.length

    @property
    def available(self) -> int:
        """How many tokens could be computed next, one that is not known yet included."""
        return self.length + self.awaits - self.computed

    @property
    def is_reading(self) -> bool:
        """Whether its prompt, or what a context shift left, is not computed yet."""
        return self.available > 1 or (self.generated == 0 and not self.awaits)

    @property
    def deadline(self) -> int:
        """When its prompt should be done: earlier requests come first, and shorter ones."""
        patience = 0 if self.options.priority == "interactive" else _BATCH_PATIENCE_NS
        return self.clock.submitted + patience + self.prompt_length * _PATIENCE_NS

    @property
    def wants_every_row(self) -> bool:
        """Whether each token of the prompt has a result, not only the last."""
        return self.collector is not None or self.prompt_logprobs is not None

    @property
    def wants_logits(self) -> bool:
        """Whether its batches give logits, else hidden states."""
        return self.collector is None or self.collector.wants_logits

    @property
    def only_repeats(self) -> bool:
        """Whether its last token has followed itself as often as it may."""
        most = self.options.max_repeated_tokens
        if most is None or self.generated <= most:
            return False
        last = self.tokens[max(self.length - most - 1, 0) : self.length]
        return bool(last[-2] == last[-1]) and bool((last == last[-1]).all())

    def append(self, token: int) -> None:
        """Add a generated token."""
        self.tokens[self.length] = self.keys[self.length] = token
        self.length += 1
        self.generated += 1

    def usage(self) -> Usage:
        """Return what the request has cost so far."""
        now = time.monotonic_ns()
        started = self.clock.started or now
        first = self.clock.first_token or now
        return Usage(
            prompt_tokens=self.prompt_length,
            cached_tokens=self.cached,
            prompt_ns=first - started,
            generated_tokens=self.generated,
            generated_ns=now - first,
            total_ns=now - self.clock.submitted,
            dropped_tokens=self.dropped,
        )
