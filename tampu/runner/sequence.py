"""A sequence: the state of one request from its prompt to its last token."""

from __future__ import annotations

import time
from collections.abc import Callable
from collections.abc import Sequence as Many
from dataclasses import dataclass, field
from typing import Protocol, TypeAlias

import numpy as np
import numpy.typing as npt

from tampu.kvcache import CellTable
from tampu.runner.capture import SequenceCapture
from tampu.runner.detokenizer import Detokenizer
from tampu.runner.events import BatchNumbers, Event, FinishReason, Limit, TokenLogprob, Usage
from tampu.runner.generate_options import GenerateOptions
from tampu.runner.layout import TEXT, InputLayout
from tampu.runner.variants import PLAIN, Variant
from tampu.sampling import Sampler, top_logprobs

Sink: TypeAlias = Callable[[Event], None]
Rows: TypeAlias = npt.NDArray[np.float32]

_PATIENCE_NS = 2_000_000  # added to a deadline for each token of the prompt


@dataclass(slots=True)
class RequestTimes:
    """Times of a request in nanoseconds of the monotonic clock; 0: not yet."""

    submitted: int = field(default_factory=time.monotonic_ns)
    preempted: int = 0
    started: int = 0
    first_token: int = 0


@dataclass(frozen=True, slots=True)
class SampledToken:
    """A token sampled for a sequence."""

    token: int
    logprobs: tuple[TokenLogprob, ...] = ()


class Constraint(Protocol):
    """A constraint on the tokens of an answer."""

    def begin(self) -> None:
        """Start computing the next mask in the background."""

    def mask(self) -> npt.NDArray[np.uint32] | None:
        """Return which tokens may come next: bit i % 32 of word i // 32 for token i; None: any.

        Raises:
            GrammarError: if none may.
        """

    def accept(self, token: int) -> None:
        """Advance past a token."""

    def forced_tokens(self) -> Many[int]:
        """Return the tokens of the text that must come next, as far as that is known."""

    @property
    def is_complete(self) -> bool:
        """Whether the answer is complete and only an end token may follow."""


@dataclass(frozen=True, slots=True)
class RowCollector:
    """Receives the output of every token of a prompt, of its first or of its last ones.

    Attributes:
        rows: is called with the rows of each batch, (tokens, vocabulary or features).
        wants_logits: whether they are logits, else final hidden states.
        chunk: the maximum number of tokens computed at once; None: as many as fit.
        last: how many tokens at the end of the prompt have an output; None: all.
        only_first: whether the prompt's first token alone has one.
    """

    rows: Callable[[Rows], None]
    wants_logits: bool = True
    chunk: int | None = None
    last: int | None = None
    only_first: bool = False


class LogprobCollector:
    """Collects the log-probability of each token of a prompt as its logits are computed.

    Attributes:
        entries: one per token except the first, which has no logits.
    """

    def __init__(
        self, tokens: npt.NDArray[np.int32], top: int, token_bytes: Callable[[int], bytes]
    ) -> None:
        """Start without entries; each will list the `top` most likely tokens."""
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
    return _entry(token, own, likeliest, token_bytes)


def post_sampling_logprob(
    tokens: npt.NDArray[np.intp],
    probabilities: Rows,
    token: int,
    top: int,
    token_bytes: Callable[[int], bytes],
) -> TokenLogprob:
    """Return the same of the probabilities that a token was sampled with, the likeliest first."""
    [own] = np.log(probabilities[tokens == token])
    likeliest = [*zip(tokens[:top].tolist(), np.log(probabilities[:top]).tolist(), strict=True)]
    return _entry(token, float(own), likeliest, token_bytes)


def _entry(
    token: int, own: float, top: list[tuple[int, float]], token_bytes: Callable[[int], bytes]
) -> TokenLogprob:
    top_bytes = tuple(token_bytes(each) for each, _ in top)
    return TokenLogprob(token, own, tuple(top), token_bytes(token), top_bytes)


@dataclass(slots=True, eq=False, weakref_slot=True)
class Sequence:
    """The state of one request.

        tokens:  |<------ computed ------>|<-- known -->|?|
                 |<-- cached -->|
        cells:   one for each computed token

    Attributes:
        tokens: I32, (capacity + 1,): the prompt and the answer; `length` of them are known.
        keys: I32, (capacity + 1,): what the prefix cache compares: the tokens, except for images.
        length: number of known tokens.
        prompt_length: number of tokens of the prompt.
        cell_table: its cells, for tokens in the cache or in a planned batch.
        layout: where images are, and which inputs must share a batch.
        variant: how its request changes the model.
        collector: receives the output of tokens of the prompt.
        prompt_logprobs: collects those of the prompt's tokens, if requested.
        capture: what it captures of the model.
        watch: what a watcher captures of its next step; nothing else of it changes by that.
        constraint: on the tokens of the answer.
        awaited: how many tokens the batches in flight give.
        cached: prompt tokens whose rows were in the cache, or computed for others.
        read: tokens whose batches are done.
        dropped: tokens dropped by truncation and context shifts.
        finish: why the answer is complete; None while it is not.
        limit: what it ended at, if it is `length`.
        end: the model's end token, once it has come.
        is_cancelled: whether its caller has cancelled it.
        is_paused: whether it gives its slot to an interactive request after the batch in flight.
        number: of the request, in the order of getting a slot.
        slot: its slot, from 0; None: it has none.
        pending: tokens whose text is held back.
        predicted: what its caller expects as the answer.
        drafts: guesses of its next tokens that are in the planned batch or in flight.
        drafted, accepted: how many guesses were computed, and how many of them were right.
        draft_steps: in how many steps.
        first_batch, answer_batch, last_batch: numbers as in `BatchNumbers`; 0: not yet.
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
    layout: InputLayout = TEXT
    variant: Variant = PLAIN
    collector: RowCollector | None = None
    prompt_logprobs: LogprobCollector | None = None
    capture: SequenceCapture | None = None
    watch: SequenceCapture | None = None
    constraint: Constraint | None = None
    awaited: int = 0
    cached: int = 0
    read: int = 0
    dropped: int = 0
    generated: int = 0
    finish: FinishReason | None = None
    limit: Limit | None = None
    end: SampledToken | None = None
    is_cancelled: bool = False
    is_paused: bool = False
    number: int = 0
    slot: int | None = None
    pending: list[SampledToken] = field(default_factory=list)
    predicted: tuple[int, ...] = ()
    drafts: tuple[int, ...] = ()
    drafted: int = 0
    accepted: int = 0
    draft_steps: int = 0
    times: RequestTimes = field(default_factory=RequestTimes)
    first_batch: int = 0
    answer_batch: int = 0
    last_batch: int = 0

    @property
    def was_preempted(self) -> bool:
        """Whether it gave up its slot, so that its rows may come from the cache again."""
        return self.times.preempted > 0

    @property
    def capacity(self) -> int:
        """The maximum number of tokens in the context."""
        return len(self.tokens) - 1

    @property
    def computed(self) -> int:
        """The number of tokens with cells."""
        return self.cell_table.length

    @property
    def uncomputed(self) -> int:
        """The number of tokens to compute next, including one that is being sampled."""
        return self.length + self.awaited - self.computed

    @property
    def is_prefilling(self) -> bool:
        """Whether its prompt, or what a context shift left, is not computed yet."""
        return self.uncomputed > 1 or (self.generated == 0 and not self.awaited)

    @property
    def is_ready(self) -> bool:
        """Whether it has tokens to compute, and room for them in its context."""
        if self.finish is not None or self.uncomputed <= 0 or self.is_paused:
            return False
        limit = self.options.max_tokens
        if self.awaited and limit is not None and self.generated + self.awaited >= limit:
            return False  # the token that is being sampled is its last
        return self.computed < self.capacity

    @property
    def reusable_end(self) -> int:
        """The position after the last token whose row may come from the cache.

        It has no output, and is not captured.
        """
        ends = [self.length - 1]
        ends += [self.first_output] if self.wants_rows else []
        ends += [self.capture.first] if self.capture else []
        return min(ends)

    @property
    def is_offline(self) -> bool:
        """Whether it comes after all interactive requests."""
        return self.options.priority == "batch"

    @property
    def urgency(self) -> tuple[bool, int]:
        """Which prompt is computed first, the least: interactive, then earlier and shorter ones."""
        return self.is_offline, self.times.submitted + self.prompt_length * _PATIENCE_NS

    @property
    def wants_rows(self) -> bool:
        """Whether tokens of the prompt before the last have an output, from `first_output` on."""
        return self.collector is not None or self.prompt_logprobs is not None

    @property
    def chunk(self) -> int | None:
        """The maximum number of its prompt's tokens in the next step; None: as many as fit."""
        limits = [each.chunk for each in (self.collector, self.capture) if each and each.chunk]
        stop = self.capture.until_state(self.computed) if self.capture else None
        return min(limits if stop is None else [*limits, stop], default=None)

    @property
    def first_output(self) -> int:
        """The position of the prompt's first token that has an output."""
        if self.collector is None:
            return 0 if self.prompt_logprobs else self.prompt_length - 1
        last = self.collector.last
        return 0 if last is None else self.prompt_length - last

    @property
    def output_end(self) -> int:
        """The position after the prompt's last token that has an output."""
        only_first = self.collector is not None and self.collector.only_first
        return 1 if only_first else self.prompt_length

    @property
    def wants_logits(self) -> bool:
        """Whether its outputs are logits, else hidden states."""
        return self.collector is None or self.collector.wants_logits

    @property
    def candidates(self) -> int:
        """How many of the best logits are enough for its next token; 0: all are needed."""
        needs_all = self.wants_rows or self.constraint is not None or self.options.logprobs
        return 0 if needs_all else self.sampler.candidates

    @property
    def is_repeating(self) -> bool:
        """Whether its last token has been repeated as often as allowed."""
        limit = self.options.max_repeated_tokens
        if limit is None or self.generated <= limit:
            return False
        last = self.tokens[max(self.length - limit - 1, 0) : self.length]
        return bool(last[-2] == last[-1]) and bool((last == last[-1]).all())

    def end_at(self, limit: Limit) -> FinishReason:
        """End it at a limit; return the reason."""
        self.finish, self.limit = "length", limit
        return self.finish

    def append(self, token: int) -> None:
        """Add a generated token."""
        self.tokens[self.length] = token
        self.keys[self.length] = token + self.variant.key_offset
        self.length += 1
        self.generated += 1

    @property
    def batches(self) -> BatchNumbers | None:
        """The batches that it was computed in; None: in none."""
        numbers = BatchNumbers(self.first_batch, self.answer_batch, self.last_batch)
        return numbers if self.first_batch else None

    def usage(self) -> Usage:
        """Return the usage so far."""
        now = time.monotonic_ns()
        started = self.times.started or now
        first = self.times.first_token or now
        return Usage(
            prompt_tokens=self.prompt_length,
            cached_tokens=self.cached,
            prompt_ns=first - started,
            generated_tokens=self.generated,
            generated_ns=now - first,
            total_ns=now - self.times.submitted,
            dropped_tokens=self.dropped,
            drafted_tokens=self.drafted,
            accepted_tokens=self.accepted,
            drafts=self.draft_steps,
        )
