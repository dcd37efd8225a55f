"""llama.cpp's sampler for filling in: the end of the text rather than an unlikely continuation.

The definition is that of llama.cpp's `llama_sampler_init_infill`. As there, probabilities are added
up only to decide which tokens are left; these are then sampled by their own probabilities.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from tampu.sampling.candidates import Mask, is_allowed
from tampu.sampling.chain import Ranked
from tampu.sampling.transforms import Doubles, Floats

_END_FACTOR = 3.0
_LEAST = 0.2
MAX_COMPARED = 1024  # texts: a request without top-k has those of the whole vocabulary


class Texts(Protocol):
    """The part of a tokenizer that this needs."""

    @property
    def eos(self) -> Collection[int]:
        """The tokens that end a text."""
        ...

    def token_bytes(self, token: int) -> bytes:
        """Return the bytes of a token; b"" for control tokens."""
        ...


class Infill:
    """The last filter of one sequence, which needs to know its tokens."""

    def __init__(self, texts: Texts, logit_bias: Mapping[int, float]) -> None:
        self._text_of = texts.token_bytes
        self._ends = np.array(sorted(texts.eos), np.intp)
        self._possible = [end for end in sorted(texts.eos) if logit_bias.get(end, 0.0) > -np.inf]

    def apply(self, ranked: Ranked, tokens: NDArray[np.intp], mask: Mask | None) -> int | None:
        """Leave out tokens.

        Args:
            ranked: what the filters before this have left.
            tokens: the ids of these.
            mask: the tokens that a grammar allows; None: all.

        Returns:
            The token that ends the text, if only that may come; else None, also where none is
            allowed: then the best token is left.
        """
        text_of = self._text_of
        kept = infill(
            ranked.weights, np.isin(tokens, self._ends), lambda place: text_of(int(tokens[place]))
        )
        if len(kept):
            ranked.keep(kept)
            return None
        for end in self._possible:
            if mask is None or is_allowed(mask, end):
                return end
        ranked.keep_first(1)
        return None


def infill(
    weights: Floats, is_end: NDArray[np.bool_], text_of: Callable[[int], bytes]
) -> NDArray[np.intp]:
    """Return, ascending, the ranks of the tokens to keep; empty: the text ends.

    Those that end the text are kept alone if three times the number of tokens times their
    probability is more than that of the others. If not, a token's probability is added to that of
    another if the text of one begins with that of the other, the less likely to the likelier; only
    the texts of the `MAX_COMPARED` best are compared. Then tokens with less than 0.2 go, and with
    less than 1 / (n + 1) if n are left, but not those that end the text.

    Args:
        weights: of the tokens, descending.
        is_end: which of them end the text.
        text_of: returns the bytes of a token by its rank.
    """
    probabilities = weights.astype(np.float64)
    total = probabilities.sum()
    end_sum = probabilities[is_end].sum()
    if _END_FACTOR * end_sum * len(weights) > total - end_sum:
        kept: NDArray[np.intp] = is_end.nonzero()[0]
        return kept
    probabilities /= total
    texts = [text_of(place) for place in range(min(len(weights), MAX_COMPARED))]
    probabilities[: len(texts)] = merged(probabilities[: len(texts)], texts)
    left = is_end | (probabilities >= _LEAST)
    texts_left = int(np.count_nonzero(left & ~is_end))
    if not texts_left:
        return np.empty(0, np.intp)
    least = probabilities[left].sum() / (texts_left + 1)
    possible = probabilities > 0  # not added to another
    found: NDArray[np.intp] = (possible & left & (is_end | (probabilities >= least))).nonzero()[0]
    return found


def merged(probabilities: Doubles, texts: list[bytes]) -> Doubles:
    """Return the probabilities with those of common beginnings added up; 0 for what was added.

    The first token is taken first, with all that begin with its text, then the second, and so on.
    """
    places: dict[bytes, list[int]] = {}
    for place, text in enumerate(texts):
        if text:
            places.setdefault(text, []).append(place)
    longer: list[list[int]] = [[] for _ in texts]
    for place, text in enumerate(texts):
        for length in range(1, len(text) + 1):
            for shorter in places.get(text[:length], ()):
                if shorter != place:
                    longer[shorter].append(place)
    sums = probabilities.tolist()
    for shorter, others in enumerate(longer):
        for other in others:
            into, added = (other, shorter) if sums[other] > sums[shorter] else (shorter, other)
            sums[into] += sums[added]
            sums[added] = 0.0
            if added == shorter:
                break
    return np.array(sums)
