"""DRY ("don't repeat yourself"): tokens that would continue a repetition become less likely.

The definition is that of llama.cpp's `llama_sampler_init_dry`. If the last n tokens occurred
before, the token that followed them there loses `multiplier * base ** (n - allowed_length)` of its
logit. Repetitions do not extend across a sequence breaker, such as the end of a line.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from typing import TypeAlias

import numpy as np
from numpy.typing import NDArray

from tampu.sampling.options import SamplingOptions
from tampu.sampling.transforms import Floats

# From the first token of a breaker to the tokens that follow it in the breaker; often none.
Breakers: TypeAlias = Mapping[int, Sequence[tuple[int, ...]]]

MAX_BREAKER_BYTES = 40
MAX_TAIL = 20
_MAX_EXPONENT = 88.7228391  # the logarithm of the largest float32
_LEAST_BASE = 1.000001  # below it no power overflows
_CACHED = 16


class SequenceBreakers:
    """Finds the tokens of breakers in one vocabulary."""

    def __init__(
        self, spellings: Callable[[], Sequence[bytes]], encode: Callable[[str], list[int]]
    ) -> None:
        """Defer all work: spelling a vocabulary takes a while.

        Args:
            spellings: returns the bytes of each token, control tokens as written.
            encode: returns the tokens of plain text, without special tokens.
        """
        self._spellings = spellings
        self._encode = encode
        self._known: dict[tuple[str, ...], Breakers] = {}

    def find(self, breakers: Sequence[str]) -> Breakers:
        """Return where breakers begin: each token that holds one, or the first part of one."""
        key = tuple(breakers)
        if key not in self._known:
            if len(self._known) >= _CACHED:
                self._known.clear()
            self._known[key] = self._search([text.encode()[:MAX_BREAKER_BYTES] for text in key])
        return self._known[key]

    def _search(self, breakers: list[bytes]) -> Breakers:
        found: dict[int, list[tuple[int, ...]]] = {}
        for token, spelling in enumerate(self._spellings()):
            for breaker in breakers:
                if breaker and breaker in spelling:
                    tails: list[tuple[int, ...]] = [()]
                else:
                    tails = [self._tail(breaker[n:]) for n in _overlaps(spelling, breaker)]
                known = found.setdefault(token, []) if tails else []
                known += [tail for tail in tails if tail not in known]
        return found

    def _tail(self, rest: bytes) -> tuple[int, ...]:
        return tuple(self._encode(rest.decode("utf-8", "replace"))[:MAX_TAIL])


class Dry:
    """The penalty of one sequence."""

    def __init__(self, options: SamplingOptions, vocabulary_size: int, breakers: Breakers) -> None:
        """Begin a sequence without tokens."""
        length = options.dry_penalty_last_n
        self._options = options
        self._limit = length if length > 0 else None
        self._tokens = np.empty(64 if length < 0 else 2 * length, np.intp)
        # How many tokens up to each position equal the last ones of the sequence.
        self._lengths = np.zeros(len(self._tokens), np.intp)
        self._used = 0
        self._breakers = breakers
        self._begins = np.zeros(vocabulary_size, np.bool_)
        self._begins[list(breakers)] = True
        self._is_breaker = np.zeros(vocabulary_size, np.bool_)
        self._is_breaker[[token for token, tails in breakers.items() if () in tails]] = True

    def extend(self, tokens: Sequence[int]) -> None:
        """Add the tokens that the sequence begins with."""
        kept = tokens[-self._limit :] if self._limit else tokens
        if len(kept) > len(self._tokens):
            self._tokens = np.empty(2 * len(kept), np.intp)
            self._lengths = np.zeros(len(self._tokens), np.intp)
        self._used = len(kept)
        self._tokens[: len(kept)] = kept
        self._lengths[: len(kept)] = suffix_lengths(kept)

    def add(self, token: int) -> None:
        """Add the newest token."""
        if self._used == len(self._tokens):
            self._make_room()
        n = self._used
        lengths = self._lengths[:n]
        lengths[1:] = lengths[:-1] + 1
        lengths[:1] = 1
        lengths *= self._tokens[:n] == token
        self._tokens[n] = token
        self._used += 1

    def apply(self, logits: Floats) -> None:
        """Subtract the penalties from the logits, in place."""
        tokens, lengths = self._repeats()
        if not len(tokens):
            return
        o = self._options
        following, places = np.unique(tokens, return_inverse=True)
        longest = np.zeros(len(following), np.intp)
        np.maximum.at(longest, places, lengths)
        exponents = longest - o.dry_allowed_length
        if o.dry_base > _LEAST_BASE:
            exponents = np.minimum(exponents, int(_MAX_EXPONENT / math.log(o.dry_base)))
        penalties = o.dry_multiplier * np.float64(o.dry_base) ** exponents
        penalties[self._is_breaker[following]] = 0.0
        with np.errstate(over="ignore"):  # a penalty too large forbids the token
            logits[following] -= penalties.astype(np.float32)

    def _repeats(self) -> tuple[NDArray[np.intp], NDArray[np.intp]]:
        """Return tokens that followed earlier repetitions, and how long each of these is."""
        none = np.empty(0, np.intp)
        start = max(0, self._used - self._limit) if self._limit else 0
        allowed = self._options.dry_allowed_length
        if self._used - start <= allowed:
            return none, none
        limit = self._since_breaker(start)
        if limit < allowed:
            return none, none
        lengths = self._lengths[start : self._used - 1]
        lengths = np.minimum(np.minimum(lengths, np.arange(1, len(lengths) + 1)), limit)
        places = (lengths >= allowed).nonzero()[0]
        return self._tokens[start + 1 + places], lengths[places]

    def _since_breaker(self, start: int) -> int:
        """Return how many tokens follow the last breaker, all from `start` without one."""
        tokens = self._tokens[start : self._used]
        for place in self._begins[tokens].nonzero()[0][::-1].tolist():
            after = len(tokens) - 1 - place
            longest = -1
            for tail in self._breakers[int(tokens[place])]:
                is_there = tuple(tokens[place + 1 : place + 1 + len(tail)].tolist()) == tail
                if is_there and len(tail) > longest:
                    longest = len(tail)
            if longest >= 0:
                return int(after - longest)
        return len(tokens)

    def _make_room(self) -> None:
        if self._limit is None:
            self._tokens = np.concatenate([self._tokens, np.empty_like(self._tokens)])
            self._lengths = np.concatenate([self._lengths, np.zeros_like(self._lengths)])
            return
        kept = self._limit
        self._tokens[:kept] = self._tokens[self._used - kept :].copy()
        self._lengths[:kept] = self._lengths[self._used - kept :].copy()
        self._used = kept


def suffix_lengths(tokens: Sequence[int]) -> list[int]:
    """Return for each position how many tokens up to it equal the last ones.

    This is the Z-algorithm, from the end: each token is compared about twice.
    """
    count = len(tokens)
    lengths = [0] * count  # by the distance from the end
    begin = end = 0
    for place in range(1, count):
        same = min(end - place, lengths[place - begin]) if place < end else 0
        while place + same < count and tokens[-1 - same] == tokens[-1 - place - same]:
            same += 1
        if place + same > end:
            begin, end = place, place + same
        lengths[place] = same
    return lengths[::-1]


def _overlaps(spelling: bytes, breaker: bytes) -> list[int]:
    """Return the lengths of the breaker's prefixes that the token ends with."""
    return [
        n
        for n in range(min(len(spelling), len(breaker) - 1), 0, -1)
        if spelling.endswith(breaker[:n])
    ]
