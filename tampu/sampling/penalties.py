"""The last tokens of a sequence, counted, for the penalties."""

from __future__ import annotations

from collections.abc import Iterable

import numpy as np
from numpy.typing import NDArray


class TokenWindow:
    """The last `length` tokens and how often each occurs among them.

    Adding a token costs the same whatever the length. The counts are an array over the whole
    vocabulary, so that those of the window are one gather away.
    """

    def __init__(self, length: int | None, vocabulary_size: int) -> None:
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
        """Take in the newest token; the oldest leaves when the window is full."""
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
        """Take in several tokens, the newest last."""
        for token in tokens:
            self.add(token)

    def _add_without_limit(self, token: int) -> None:
        if self.counts[token] == 0:
            if self._used == len(self._tokens):
                self._tokens = np.concatenate([self._tokens, np.empty_like(self._tokens)])
            self._tokens[self._used] = token
            self._used += 1
        self.counts[token] += 1
