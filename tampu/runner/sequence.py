"""One request on its way: its tokens, where they are in the cache, and what it owes its caller."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import TypeAlias

import numpy as np
import numpy.typing as npt

from tampu.kvcache.cells import CellArray
from tampu.runner.events import Event, FinishReason, TokenLogprob, Usage
from tampu.runner.request import GenerateOptions
from tampu.runner.text import TextStream
from tampu.sampling import Sampler

Sink: TypeAlias = Callable[[Event], None]


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


@dataclass(slots=True, eq=False)
class Sequence:
    """The state of one request.

        tokens:  |<------ computed ------>|<-- known -->|?|
                 |<-- cached -->|
        cells:   one for each computed token

    Attributes:
        tokens: I32, (capacity,): the prompt and the answer; `length` of them are known.
        length: tokens known.
        prompt_length: of which the caller gave.
        computed: tokens whose rows are in the cache or in the batch that computes now.
        awaits: whether the batch that computes now will give the next token.
        cells: I32, (capacity,): the cell of each computed token.
        cached: prompt tokens taken from the cache.
        dropped: tokens that truncation and context shifts have dropped.
        finish: why the answer is complete; None while it is not.
        is_cancelled: its caller wants no more of it.
        pending: tokens whose text is held back.
    """

    options: GenerateOptions
    sampler: Sampler
    text: TextStream
    sink: Sink
    tokens: npt.NDArray[np.int32]
    length: int
    prompt_length: int
    cells: CellArray
    computed: int = 0
    awaits: bool = False
    cached: int = 0
    dropped: int = 0
    generated: int = 0
    finish: FinishReason | None = None
    is_cancelled: bool = False
    pending: list[Sampled] = field(default_factory=list)
    clock: Clock = field(default_factory=Clock)

    @property
    def capacity(self) -> int:
        """The most tokens that the context holds."""
        return len(self.cells)

    @property
    def available(self) -> int:
        """How many tokens could be computed next, one that is not known yet included."""
        return self.length + self.awaits - self.computed

    def append(self, token: int) -> None:
        """Add a generated token."""
        self.tokens[self.length] = token
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


@dataclass(slots=True, eq=False)
class Probe:
    """A text whose logits or hidden states are wanted for every token; it generates nothing.

    Attributes:
        tokens: I32, (n,).
        chunk: how many tokens are computed at a time.
        wants_logits: logits (vocabulary), else final hidden states (features).
        collect: receives the rows of one chunk, (tokens of the chunk, width).
        finished: is called once, with the error if there was one.
    """

    tokens: npt.NDArray[np.int32]
    chunk: int
    wants_logits: bool
    collect: Callable[[npt.NDArray[np.float32]], None]
    finished: Callable[[Exception | None], None]
