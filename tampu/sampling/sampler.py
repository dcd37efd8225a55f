"""From logits to the next token.

The order of the transforms:

1. logit bias, 2. repeat, presence and frequency penalties, as in llama.cpp's chain;
3. temperature 0 ends here with the best token;
4. top-k, 5. temperature, 6. softmax, 7. typical-p, 8. top-p, 9. min-p, 10. the draw.

Temperature comes before top-p and min-p as in the engine that tampu takes the place of, and in
Hugging Face transformers and vLLM: the same options then mean the same. llama.cpp itself divides
by the temperature last. Penalties and bias work at temperature 0 too, as in llama.cpp. Each
filter sees the probabilities renormalised over what the former one kept.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from tampu.errors import RequestError, ShapeError
from tampu.sampling.candidates import Candidates, at_or_above, best_of, require_finite
from tampu.sampling.full_vocab import WholeVocabulary
from tampu.sampling.masks import Mask, few_tokens, filtered, is_allowed, masked
from tampu.sampling.options import SamplingOptions
from tampu.sampling.penalties import TokenWindow
from tampu.sampling.transforms import (
    COLDEST,
    Floats,
    drawn,
    min_p,
    penalized,
    running_total,
    top_p,
    typical_p,
    weigh,
)

_SPARE = 2  # so many times top-k candidates, where a grammar may forbid some of them


class Sampler:
    """Draws the tokens of one sequence.

    Owns its random numbers, its window of recent tokens and room to work in, so that nothing of
    the vocabulary's size is allocated for a token. Not to be shared by threads or sequences.
    """

    def __init__(self, options: SamplingOptions, vocabulary_size: int) -> None:
        seed = None if options.seed == -1 else options.seed
        self.options = options
        self.greedy = options.is_greedy
        self._size = vocabulary_size
        self._random = np.random.Generator(np.random.PCG64(seed))
        self._window = _window(options, vocabulary_size)
        self._bias_tokens, self._bias = _bias(options, vocabulary_size)
        self._adjusts = self._window is not None or len(self._bias) > 0
        self._logits = np.empty(vocabulary_size, np.float32)  # pages come with the first use
        self._weights = np.empty(vocabulary_size, np.float32)
        self._masked = np.empty(vocabulary_size, np.float32)
        self._whole = WholeVocabulary(vocabulary_size)

    def prime(self, tokens: Sequence[int]) -> None:
        """Let the penalties see tokens that came before: the prompt's.

        Raises:
            RequestError: a token outside the vocabulary.
        """
        if self._window is None:
            return
        if self.options.repeat_last_n > 0:
            tokens = tokens[-self.options.repeat_last_n :]
        for token in tokens:
            if not 0 <= token < self._size:
                raise RequestError(
                    f"token {token} of the prompt is outside the vocabulary of {self._size}"
                )
        self._window.extend(tokens)

    def sample(self, logits: NDArray[np.float32], mask: Mask | None = None) -> int:
        """Return the next token and count it as said.

        Args:
            logits: (vocabulary,), float32; not changed.
            mask: the tokens that may come, as `Constraint.mask` gives them; None: all may.

        Raises:
            ComputeError: a logit of a token that may come is NaN or +inf, or all are -inf.
            ShapeError: not one logit for each entry of the vocabulary.
        """
        if logits.shape != (self._size,) or logits.dtype != np.float32:
            raise ShapeError(
                f"logits are {logits.dtype} of shape {logits.shape};"
                f" the sampler needs float32 of shape ({self._size},)"
            )
        if self._adjusts:
            logits = self._adjusted(logits)
        if mask is not None:
            token = self._constrained(logits, mask)
        else:
            token = _best(logits) if self.greedy else self._drawn(logits)
        if self._window is not None:
            self._window.add(token)
        return token

    def _adjusted(self, logits: Floats) -> Floats:
        np.copyto(self._logits, logits)
        if len(self._bias):
            self._logits[self._bias_tokens] += self._bias
        if self._window is not None:
            tokens = self._window.tokens  # one that occurs twice is written twice, the same value
            self._logits[tokens] = penalized(
                self._logits[tokens],
                self._window.counts[tokens],
                repeat=self.options.repeat_penalty,
                presence=self.options.presence_penalty,
                frequency=self.options.frequency_penalty,
            )
        return self._logits

    def _constrained(self, logits: Floats, mask: Mask) -> int:
        """Choose among the tokens that a mask allows, looking at as few as will do."""
        tokens = few_tokens(mask)
        if tokens is not None:
            return self._among(logits, tokens)
        top_k = self.options.top_k
        if self.greedy:
            best = int(logits.argmax())
            if is_allowed(mask, best):
                return _best(logits)
        elif 0 < top_k < self._size:
            candidates = filtered(best_of(logits, _SPARE * top_k), mask)
            if len(candidates.tokens) >= top_k:
                return self._pick(candidates, top_k)
        logits = masked(logits, mask, self._masked)
        return _best(logits) if self.greedy else self._drawn(logits)

    def _among(self, logits: Floats, tokens: NDArray[np.intp]) -> int:
        values = logits[tokens]
        require_finite(float(values.max()) if len(values) else -math.inf)
        if self.greedy:
            return int(tokens[values.argmax()])
        top_k = self.options.top_k
        possible = values > -np.inf
        candidates = Candidates.of(values[possible], tokens[possible])
        return self._pick(candidates, top_k if top_k > 0 else self._size)

    def _drawn(self, logits: Floats) -> int:
        o = self.options
        if 0 < o.top_k < self._size:
            return self._pick(best_of(logits, o.top_k), o.top_k)
        if o.typical_p < 1.0:
            return self._pick(best_of(logits, self._size), self._size)
        best = logits.max()
        require_finite(float(best))
        if o.top_p >= 1.0 and o.min_p > 0.0:  # no total is needed, so most weights are not either
            reach = max(o.temperature, COLDEST) * (math.log(o.min_p) - 1.0)  # rather too far
            return self._pick(at_or_above(logits, float(best) + reach), self._size)
        weights = weigh(logits, best, o.temperature, out=self._weights)
        return self._whole.draw(weights, o.top_p, o.min_p, self._random)

    def _pick(self, candidates: Candidates, top_k: int) -> int:
        o = self.options
        values = candidates.descending[:top_k]
        weights = weigh(values, values[0], o.temperature)
        ranks: NDArray[np.intp] | None = None
        if o.typical_p < 1.0:
            ranks = typical_p(weights, o.typical_p)
            weights = weights[ranks]
        running = running_total(weights)
        kept = min(top_p(running, o.top_p), min_p(weights, o.min_p))
        rank = drawn(running[:kept], self._random.random())
        return candidates.token(rank if ranks is None else int(ranks[rank]))


def _best(logits: Floats) -> int:
    token = int(logits.argmax())  # the first of equals; a NaN counts as the largest
    require_finite(float(logits[token]))
    return token


def _window(options: SamplingOptions, vocabulary_size: int) -> TokenWindow | None:
    if not options.has_penalties:
        return None
    length = options.repeat_last_n
    return TokenWindow(length if length > 0 else None, vocabulary_size)


def _bias(options: SamplingOptions, vocabulary_size: int) -> tuple[NDArray[np.intp], Floats]:
    for token in options.logit_bias:
        if token >= vocabulary_size:
            raise RequestError(
                f"logit_bias names token {token}; the vocabulary ends at {vocabulary_size - 1}"
            )
    tokens = np.array(list(options.logit_bias), np.intp)
    return tokens, np.array(list(options.logit_bias.values()), np.float32)
