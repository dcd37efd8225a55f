"""From logits to the next token; `tampu.sampling.chain` has the order of the transforms."""

from __future__ import annotations

import copy
import math
from collections.abc import Sequence
from types import MappingProxyType

import numpy as np

# Not `np.random`, which is imported at its first use: where threads do that at once, numpy's
# `__getattr__` may call itself until the recursion is too deep.
from numpy.random import PCG64, Generator
from numpy.typing import NDArray

from tampu.errors import RequestError, ShapeError
from tampu.sampling.candidates import (
    Candidates,
    Mask,
    at_or_above,
    best_of,
    few_tokens,
    filtered,
    is_allowed,
    masked,
    require_finite,
)
from tampu.sampling.chain import ADJUSTMENTS, BOUNDS, FILTERS, Ranked
from tampu.sampling.dry import Breakers
from tampu.sampling.full_vocab import FullVocabulary
from tampu.sampling.infill import Infill
from tampu.sampling.options import SamplingOptions
from tampu.sampling.transforms import COLDEST, Floats, softmax_weights

_SPARE = 2  # this many times top-k candidates, since a grammar may forbid some of them
_NO_BREAKERS: Breakers = MappingProxyType({})


class Sampler:
    """Samples the tokens of one sequence.

    Owns its random numbers, the counts of the last tokens and its buffers, so that no array of the
    vocabulary's size is allocated for a token. Not thread-safe; each sequence needs its own.
    """

    def __init__(
        self,
        options: SamplingOptions,
        vocabulary_size: int,
        breakers: Breakers = _NO_BREAKERS,
        infill: Infill | None = None,
    ) -> None:
        """Begin a sequence.

        Args:
            options: how to sample.
            vocabulary_size: how many logits there are.
            breakers: of DRY, as `SequenceBreakers.find` returns them.
            infill: the filter that comes last; None: there is none.

        Raises:
            RequestError: for a biased token outside the vocabulary.
        """
        seed = None if options.seed == -1 else options.seed
        self.options = options
        self.greedy = options.is_greedy
        self._size = vocabulary_size
        self._random = Generator(PCG64(seed))
        self._adjustments = [
            row.make(options, vocabulary_size, breakers)
            for row in ADJUSTMENTS
            if row.is_on(options)
        ]
        self._bounds = [row.bound for row in BOUNDS if row.is_on(options)]
        filters = [row for row in FILTERS if row.is_on(options)]
        self._filters = [row.apply for row in filters]
        self._infill = infill
        self._needs_order = infill is not None or any(row.needs_order for row in filters)
        self._logits = np.empty(vocabulary_size, np.float32)  # pages come with the first use
        self._weights = np.empty(vocabulary_size, np.float32)
        self._masked = np.empty(vocabulary_size, np.float32)
        self._full = FullVocabulary(vocabulary_size)

    @property
    def candidates(self) -> int:
        """How many of the best tokens are enough to sample from; 0: all logits are needed."""
        if self._adjustments or self._bounds:
            return 0
        if self.greedy:
            return 1
        return self.options.top_k if 0 < self.options.top_k < self._size else 0

    def prime(self, tokens: Sequence[int]) -> None:
        """Add the prompt's tokens to the penalties.

        Raises:
            RequestError: a token outside the vocabulary.
        """
        if not self._adjustments:
            return
        for token in (min(tokens, default=0), max(tokens, default=0)):
            if not 0 <= token < self._size:
                raise RequestError(
                    f"token {token} of the prompt is outside the vocabulary of {self._size}"
                )
        for adjustment in self._adjustments:
            adjustment.extend(tokens)

    def sample(self, logits: NDArray[np.float32], mask: Mask | None = None) -> int:
        """Return the next token and add it to the penalties.

        Args:
            logits: (vocabulary,), float32; not changed.
            mask: the allowed tokens, as `Constraint.mask` returns them; None: all.

        Raises:
            ComputeError: a logit of an allowed token is NaN or +inf, or all are -inf.
            ShapeError: not one logit for each entry of the vocabulary.
        """
        if logits.shape != (self._size,) or logits.dtype != np.float32:
            raise ShapeError(
                f"logits are {logits.dtype} of shape {logits.shape};"
                f" the sampler needs float32 of shape ({self._size},)"
            )
        logits = self._adjusted(logits)
        if mask is not None:
            token = self._constrained(logits, mask)
        else:
            token = _best(logits) if self.greedy else self._sampled(logits)
        for adjustment in self._adjustments:
            adjustment.add(token)
        return token

    def choose(self, tokens: NDArray[np.intp], logits: Floats, total: float) -> int:
        """Return the next token, as `sample` would, from the best ones alone.

        Args:
            tokens: the best tokens in any order, at least as many as `candidates` says.
            logits: of these.
            total: the sum of all logits of the vocabulary, which tells if one is NaN or +inf.

        Raises:
            ComputeError: a logit is NaN or +inf, or all are -inf.
        """
        best = float(logits.max())
        require_finite(best if total < math.inf else total)
        if self.greedy:
            return int(tokens[logits == best].min())
        order = tokens.argsort()
        order = order[logits[order] > -np.inf]
        return self._pick(Candidates.of(logits[order], tokens[order]), self.options.top_k)

    def probabilities(self, logits: Floats, mask: Mask | None) -> tuple[NDArray[np.intp], Floats]:
        """Return the tokens that `sample` would now choose from, the likeliest first.

        This sorts the vocabulary unless `top_k` is set.

        Args:
            logits: as for `sample`.
            mask: as for `sample`.

        Returns:
            Ids and their probabilities, which add up to 1.

        Raises:
            ComputeError: as `sample`.
        """
        logits = self._adjusted(logits)
        if mask is not None:
            logits = masked(logits, mask, self._masked)
        if self.greedy:
            return np.array([_best(logits)]), np.ones(1, np.float32)
        o = self.options
        top_k = o.top_k if 0 < o.top_k < self._size else self._size
        if self._bounds:
            candidates = at_or_above(logits, max(bound(logits, o) for bound in self._bounds))
        else:
            candidates = best_of(logits, top_k)
        random = copy.deepcopy(self._random)  # so that `sample` draws the same
        ranked, end = self._filtered(candidates, top_k, mask, random)
        if end is not None:
            return np.array([end]), np.ones(1, np.float32)
        count = np.count_nonzero(ranked.weights)  # the rest of these have underflowed
        tokens = candidates.tokens_at(ranked.ranks()[:count])
        return tokens, ranked.weights[:count] / np.float32(ranked.cumulative[-1])

    def _adjusted(self, logits: Floats) -> Floats:
        """Return the logits with penalties and biases."""
        if not self._adjustments:
            return logits
        np.copyto(self._logits, logits)
        for adjustment in self._adjustments:
            adjustment.apply(self._logits)
        return self._logits

    def _constrained(self, logits: Floats, mask: Mask) -> int:
        """Sample from the tokens that a mask allows, examining as few as possible."""
        tokens = few_tokens(mask)
        if tokens is not None:
            return self._among(logits, tokens, mask)
        top_k = self.options.top_k
        if self.greedy:
            best = int(logits.argmax())
            if is_allowed(mask, best):
                return _best(logits)
        elif 0 < top_k < self._size and not self._bounds:
            candidates = filtered(best_of(logits, _SPARE * top_k), mask)
            if len(candidates.tokens) >= top_k:
                return self._pick(candidates, top_k, mask)
        logits = masked(logits, mask, self._masked)
        return _best(logits) if self.greedy else self._sampled(logits, mask)

    def _among(self, logits: Floats, tokens: NDArray[np.intp], mask: Mask) -> int:
        values = logits[tokens]
        require_finite(float(values.max()) if len(values) else -math.inf)
        if self.greedy:
            return int(tokens[values.argmax()])
        top_k = self.options.top_k
        possible = values > -np.inf
        values, tokens = values[possible], tokens[possible]
        for bound in self._bounds:
            kept = values >= bound(values, self.options)
            values, tokens = values[kept], tokens[kept]
        candidates = Candidates.of(values, tokens)
        return self._pick(candidates, top_k if top_k > 0 else self._size, mask)

    def _sampled(self, logits: Floats, mask: Mask | None = None) -> int:
        o = self.options
        top_k = o.top_k if 0 < o.top_k < self._size else self._size
        if self._bounds:
            require_finite(float(logits.max()))
            lowest = max(bound(logits, o) for bound in self._bounds)
            return self._pick(at_or_above(logits, lowest), top_k, mask)
        if top_k < self._size:
            return self._pick(best_of(logits, top_k), top_k, mask)
        if o.typical_p >= 1.0 and o.top_p >= 1.0 and o.min_p > 0.0:
            return self._pick_by_min_p(logits, mask)
        if self._needs_order:
            return self._pick(best_of(logits, top_k), top_k, mask)
        best = logits.max()
        require_finite(float(best))
        weights = softmax_weights(logits, best, o.temperature, out=self._weights)
        return self._full.sample(weights, o.top_p, o.min_p, self._random)

    def _pick_by_min_p(self, logits: Floats, mask: Mask | None) -> int:
        """Sample without the total, and so without most of the weights."""
        o, best = self.options, float(logits.max())
        require_finite(best)
        reach = max(o.temperature, COLDEST) * (math.log(o.min_p) - 1.0)  # rather too far
        return self._pick(at_or_above(logits, best + reach), self._size, mask)

    def _pick(self, candidates: Candidates, top_k: int, mask: Mask | None = None) -> int:
        ranked, end = self._filtered(candidates, top_k, mask, self._random)
        if end is not None:
            return end
        return candidates.token(ranked.sample(self._random.random()))

    def _filtered(
        self, candidates: Candidates, top_k: int, mask: Mask | None, random: Generator
    ) -> tuple[Ranked, int | None]:
        """Return what the filters leave of candidates, or the one token if it is not among them."""
        values = candidates.descending[:top_k]
        ranked = Ranked(softmax_weights(values, values[0], self.options.temperature))
        for keep in self._filters:
            keep(ranked, self.options, random)
        if self._infill is None:
            return ranked, None
        return ranked, self._infill.apply(ranked, candidates.tokens_at(ranked.ranks()), mask)


def _best(logits: Floats) -> int:
    token = int(logits.argmax())  # the first of equals; a NaN counts as the largest
    require_finite(float(logits[token]))
    return token
