"""The repeat, presence and frequency penalties on the last tokens of a sequence."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import numpy as np
from numpy.typing import NDArray

from tampu.sampling.options import SamplingOptions
from tampu.sampling.transforms import Floats, penalized


class TokenCounts:
    """The last `length` tokens and how often each occurs among them.

    Adding a token costs the same whatever the length. The counts are an array over the whole
    vocabulary, so that those of the last tokens are one gather away.
    """

    def __init__(self, length: int | None, vocabulary_size: int) -> None:
        """Begin without tokens; without a length none is ever dropped."""
        self.counts: NDArray[np.float32] = np.zeros(vocabulary_size, np.float32)
        self._length = length
        self._tokens = np.empty(64 if length is None else length, np.intp)
        self._used = 0
        self._oldest = 0

    @property
    def tokens(self) -> NDArray[np.intp]:
        """The tokens in no order, each at least once; a view that the next `add` changes."""
        return self._tokens[: self._used]

    def add(self, token: int) -> None:
        """Add the newest token; when the length is reached the oldest is dropped."""
        if self._length is None:
            self._add_without_limit(token)
        elif self._used < self._length:
            self._tokens[self._used] = token
            self._used += 1
            self.counts[token] += 1
        elif self._length:
            self.counts[self._tokens[self._oldest]] -= 1
            self._tokens[self._oldest] = token
            self._oldest = (self._oldest + 1) % self._length
            self.counts[token] += 1

    def extend(self, tokens: Iterable[int]) -> None:
        """Add several tokens, the newest last."""
        for token in tokens:
            self.add(token)

    def _add_without_limit(self, token: int) -> None:
        if self.counts[token] == 0:
            if self._used == len(self._tokens):
                self._tokens = np.concatenate([self._tokens, np.empty_like(self._tokens)])
            self._tokens[self._used] = token
            self._used += 1
        self.counts[token] += 1


class Penalties:
    """The three penalties of one sequence."""

    def __init__(self, options: SamplingOptions, vocabulary_size: int) -> None:
        """Begin a sequence without tokens."""
        self._options = options
        length = options.repeat_last_n
        self._length = length if length > 0 else None
        self._last = TokenCounts(self._length, vocabulary_size)
        self.add = self._last.add

    def extend(self, tokens: Sequence[int]) -> None:
        """Add the tokens that the sequence begins with."""
        self._last.extend(tokens[-self._length :] if self._length else tokens)

    def apply(self, logits: Floats) -> None:
        """Make the last tokens less likely, in place."""
        o, tokens = self._options, self._last.tokens
        logits[tokens] = penalized(  # a token that occurs twice is written twice, the same value
            logits[tokens],
            self._last.counts[tokens],
            repeat=o.repeat_penalty,
            presence=o.presence_penalty,
            frequency=o.frequency_penalty,
        )
