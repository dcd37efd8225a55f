"""Byte-pair merging: join the best adjacent pair, the leftmost of equals, until none can be joined.

Byte-level BPE and SentencePiece's BPE differ only in what makes a pair good, so both use this
class, with a `rank` of their own: the lower the better, NEVER for a pair that isn't joined.

Why not the merging of the `tokenizers` library, which prepares the text? Its model must be built
whole before the first word: 0.4 s for the 280,147 merges of Llama 3, all of it holding the
interpreter's lock, and over a second for the 262,144 pieces of Gemma, where SentencePiece's ties
cannot be expressed at all. Two dictionaries take a fifth of that, and a word is merged only once.
"""

from __future__ import annotations

from array import array
from collections.abc import Callable
from heapq import heapify, heappop, heappush
from itertools import pairwise
from typing import TypeVar

import numpy as np
import numpy.typing as npt

V = TypeVar("V")

NEVER = 1 << 32  # ranks are below it

_POSITION_BITS = 32
_POSITION_MASK = (1 << _POSITION_BITS) - 1
_SHORT = 24  # up to this many symbols a scan beats a heap
_LONG = 4096  # from this many symbols on, repetition is searched for
_REPETITIVE = 16  # a text is repetitive if one pair makes up a 16th of it
_NAMES = 1 << 31
_MAX_ITEMS = 16_384  # about 4 MB
_REMEMBERED = 32_768  # hashes of texts that came once, two of each
_MAX_LENGTH = 64  # characters; longer texts are rarely repeated


class Merger:
    """Merges the symbols of one word at a time."""

    def __init__(self, rank: Callable[[str, str], int]) -> None:
        self._rank = rank

    def merge(self, symbols: list[str]) -> list[str]:
        """Return the merged symbols; takes n log n steps for n symbols."""
        if len(symbols) <= _SHORT:
            return self._merge_short(symbols)
        if len(symbols) >= _LONG:
            symbols = self._merge_repetitions(symbols)
        return self._merge_heap(symbols)

    def _merge_short(self, symbols: list[str]) -> list[str]:
        rank = self._rank
        ranks = [rank(left, right) for left, right in pairwise(symbols)]
        while ranks and (best := min(ranks)) < NEVER:
            at = ranks.index(best)
            symbols[at] += symbols.pop(at + 1)
            del ranks[at]
            if at > 0:
                ranks[at - 1] = rank(symbols[at - 1], symbols[at])
            if at < len(ranks):
                ranks[at] = rank(symbols[at], symbols[at + 1])
        return symbols

    def _merge_heap(self, symbols: list[str]) -> list[str]:
        """Merge with a heap of (rank, position), two numbers in one.

        `ranks[i]` is the rank of the pair that begins at i: an entry of the heap that differs from
        it is out of date. Position i's symbol grows to the right; the symbols it took in are "".
        """
        count = len(symbols)
        after = list(range(1, count + 1))
        before = list(range(-1, count - 1))
        rank = self._rank
        known = {pair: rank(*pair) for pair in set(pairwise(symbols))}
        ranks = [*map(known.__getitem__, pairwise(symbols)), NEVER]
        heap = [(best << _POSITION_BITS) | at for at, best in enumerate(ranks) if best < NEVER]
        heapify(heap)
        while heap:
            key = heappop(heap)
            at = key & _POSITION_MASK
            if ranks[at] != key >> _POSITION_BITS:
                continue
            taken = after[at]
            symbols[at] += symbols[taken]
            symbols[taken] = ""
            ranks[taken] = ranks[at] = NEVER
            after[at] = following = after[taken]
            if following < count:
                before[following] = at
                ranks[at] = best = rank(symbols[at], symbols[following])
                if best < NEVER:
                    heappush(heap, (best << _POSITION_BITS) | at)
            if (left := before[at]) >= 0:
                ranks[left] = best = rank(symbols[left], symbols[at])
                if best < NEVER:
                    heappush(heap, (best << _POSITION_BITS) | left)
        return [symbol for symbol in symbols if symbol]

    def _merge_repetitions(self, symbols: list[str]) -> list[str]:
        """Do the first merges of a long repetitive word (a million times "a") many at a time."""
        names = list(dict.fromkeys(symbols))
        numbers = {name: number for number, name in enumerate(names)}
        word = np.array([numbers[symbol] for symbol in symbols], dtype=np.int64)
        repetitive = True
        while repetitive and len(word) >= _LONG:
            word, repetitive = self._merge_round(word, names)
        return [names[number] for number in word.tolist()]

    def _merge_round(
        self, word: npt.NDArray[np.int64], names: list[str]
    ) -> tuple[npt.NDArray[np.int64], bool]:
        """Join all pairs of the best rank from left to right, if that creates no better pair.

        Returns the shorter word and whether to continue. Leaves the word unchanged if one of these
        joins creates a pair of the same rank, since that pair would be next.
        """
        ranks, merged = self._pairs(word[:-1], word[1:], names)
        best = ranks.min()
        at = _disjoint(np.flatnonzero(ranks == best))
        if best >= NEVER or len(at) * _REPETITIVE < len(word):
            return word, False
        made = word.copy()
        made[at] = merged[at]
        keep = np.ones(len(word), dtype=bool)
        keep[at + 1] = False
        # To the left of a join is what an earlier join made, to the right what was there before.
        lefts = np.maximum.accumulate(np.where(keep, np.arange(len(word)), 0))
        with_left, with_right = at[at > 0], at[at + 2 < len(word)]
        left, _ = self._pairs(made[lefts[with_left - 1]], made[with_left], names)
        right, _ = self._pairs(made[with_right], word[with_right + 2], names)
        if (left <= best).any() or (right <= best).any():
            return word, False
        return made[keep], True

    def _pairs(
        self, left: npt.NDArray[np.int64], right: npt.NDArray[np.int64], names: list[str]
    ) -> tuple[npt.NDArray[np.int64], npt.NDArray[np.int64]]:
        """Return each pair's rank and the number of the joined name, adding it to `names`."""
        keys, where = np.unique(left * _NAMES + right, return_inverse=True)
        ranks = []
        joined = []
        for key in keys.tolist():
            first, second = names[key // _NAMES], names[key % _NAMES]
            ranks.append(self._rank(first, second))
            joined.append(len(names))
            names.append(first + second)
        return np.array(ranks, dtype=np.int64)[where], np.array(joined, dtype=np.int64)[where]


def _disjoint(at: npt.NDArray[np.int64]) -> npt.NDArray[np.int64]:
    """Drop pairs that overlap the one before: of neighbours every second, from the left."""
    begins = np.ones(len(at), dtype=bool)
    begins[1:] = np.diff(at) != 1
    indices = np.arange(len(at))
    first = np.maximum.accumulate(np.where(begins, indices, 0))
    kept: npt.NDArray[np.int64] = at[(indices - first) % 2 == 0]
    return kept


class WordCache(dict[str, V]):
    """Results of `compute`: `cache[text]` computes the value of a new text.

    It is kept when the text comes a second time, with not too many new ones in between: most new
    words come once, and the memory grew for hours while the cache filled with them. A full cache
    is cleared. Thread-safe: at worst something is computed once more.
    """

    def __init__(self, compute: Callable[[str], V]) -> None:
        super().__init__()
        self._compute = compute
        # Hashes, each at two places: of two texts that share one, neither would ever be kept.
        self._once = array("q", bytes(8 * _REMEMBERED))

    def __missing__(self, text: str) -> V:
        value = self._compute(text)
        if len(text) <= _MAX_LENGTH:
            key = hash(text)
            places = key % _REMEMBERED, (key >> 32) % _REMEMBERED
            if any(self._once[place] == key for place in places):
                if len(self) >= _MAX_ITEMS:
                    self.clear()
                self[text] = value
            for place in places:
                self._once[place] = key
        return value
