"""The transforms of the logits, in their order; a new one is a function and a row here.

    logit bias, penalties, dry     change the logits of some tokens
    top_n_sigma, top_k             leave out tokens by their logits
    temperature, softmax
    typical_p, top_p, min_p, xtc   leave out tokens by their probabilities
    infill                         by their texts too: `tampu.sampling.infill`

That is llama.cpp's default order (`common_params_sampling.samplers`: penalties, dry, top_n_sigma,
top_k, typ_p, top_p, min_p, xtc, temperature; `infill` is not among them), but for the temperature:
it comes before the filters by probability as in Ollama, Hugging Face transformers and vLLM, so that
the same options mean the same. Each filter gets the probabilities renormalized over the tokens that
the one before kept. At temperature 0 the best token is taken after the first line.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol, TypeAlias

import numpy as np
from numpy.typing import NDArray

from tampu.errors import RequestError
from tampu.sampling import transforms
from tampu.sampling.dry import Breakers, Dry
from tampu.sampling.options import SamplingOptions
from tampu.sampling.penalties import Penalties
from tampu.sampling.transforms import Doubles, Floats

Selection: TypeAlias = slice | NDArray[np.intp]


class Uniform(Protocol):
    """A source of random numbers, uniformly from 0 to 1."""

    def random(self) -> float:
        """Return the next number."""
        ...


class Adjustment(Protocol):
    """Changes the logits of one sequence's tokens."""

    def extend(self, tokens: Sequence[int]) -> None:
        """Add the tokens that the sequence begins with."""
        ...

    def add(self, token: int) -> None:
        """Add the newest token."""
        ...

    def apply(self, logits: Floats) -> None:
        """Change the logits in place."""
        ...


class LogitBias:
    """The logit bias of a request."""

    def __init__(self, options: SamplingOptions, vocabulary_size: int) -> None:
        """Check the tokens.

        Raises:
            RequestError: for one outside the vocabulary.
        """
        for token in options.logit_bias:
            if token >= vocabulary_size:
                raise RequestError(
                    f"logit_bias names token {token}; the vocabulary ends at {vocabulary_size - 1}"
                )
        self._tokens = np.array(list(options.logit_bias), np.intp)
        self._bias = np.array(list(options.logit_bias.values()), np.float32)

    def extend(self, _: Sequence[int]) -> None:
        """Do nothing: earlier tokens do not matter."""

    def add(self, _: int) -> None:
        """Do nothing."""

    def apply(self, logits: Floats) -> None:
        """Add the bias in place."""
        logits[self._tokens] += self._bias


class Ranked:
    """Tokens in descending order; each filter keeps some of them.

    Attributes:
        weights: unnormalized probabilities.
    """

    __slots__ = ("_cumulative", "_selections", "weights")

    def __init__(self, weights: Floats) -> None:
        """Begin with all tokens."""
        self.weights = weights
        self._cumulative: Doubles | None = None
        self._selections: list[Selection] = []

    @property
    def cumulative(self) -> Doubles:
        """The cumulative sum of the weights."""
        if self._cumulative is None:
            self._cumulative = transforms.cumsum(self.weights)
        return self._cumulative

    def keep_first(self, count: int) -> None:
        """Leave out all tokens after the first ones."""
        if count < len(self.weights):
            self.weights = self.weights[:count]
            if self._cumulative is not None:
                self._cumulative = self._cumulative[:count]

    def keep(self, selection: Selection) -> None:
        """Leave out all other tokens."""
        self.weights, self._cumulative = self.weights[selection], None
        self._selections.append(selection)

    def sample(self, share: float) -> int:
        """Sample by the weights; return the rank among the tokens before any filter."""
        return int(self._original(transforms.multinomial(self.cumulative, share)))

    def ranks(self) -> NDArray[np.intp]:
        """Return the ranks before any filter of the tokens that are left."""
        found: NDArray[np.intp] = self._original(np.arange(len(self.weights)))
        return found

    def _original(self, rank: Any) -> Any:
        """Return the rank before any filter, or several, of tokens by their ranks now."""
        for selection in reversed(self._selections):
            rank = rank + selection.start if isinstance(selection, slice) else selection[rank]
        return rank


@dataclass(frozen=True, slots=True)
class Row:
    """A transform, and whether the options enable it."""

    is_on: Callable[[SamplingOptions], bool]


@dataclass(frozen=True, slots=True)
class AdjustmentRow(Row):
    """Makes what changes logits, for a vocabulary's size and the breakers of sequences."""

    make: Callable[[SamplingOptions, int, Breakers], Adjustment]


@dataclass(frozen=True, slots=True)
class BoundRow(Row):
    """Returns the lowest logit to keep."""

    bound: Callable[[Floats, SamplingOptions], float]


@dataclass(frozen=True, slots=True)
class FilterRow(Row):
    """Leaves out tokens by their probabilities.

    Attributes:
        needs_order: whether it needs all tokens in descending order; only those that
            `FullVocabulary` knows can be applied without sorting.
    """

    apply: Callable[[Ranked, SamplingOptions, Uniform], None]
    needs_order: bool = True


def _typical_p(ranked: Ranked, o: SamplingOptions, _: Uniform) -> None:
    ranked.keep(transforms.typical_p(ranked.weights, o.typical_p))


def _top_p(ranked: Ranked, o: SamplingOptions, _: Uniform) -> None:
    ranked.keep_first(transforms.top_p(ranked.cumulative, o.top_p))


def _min_p(ranked: Ranked, o: SamplingOptions, _: Uniform) -> None:
    ranked.keep_first(transforms.min_p(ranked.weights, o.min_p))


def _xtc(ranked: Ranked, o: SamplingOptions, random: Uniform) -> None:
    if len(ranked.weights) > 1 and random.random() <= o.xtc_probability:
        left_out = transforms.xtc(ranked.weights, o.xtc_threshold)
        if left_out:
            ranked.keep(slice(left_out, None))


# All samplers by llama.cpp's names, in its order, each with the values of its parameters that turn
# it off. `infill` is used only where a request names it. Samplers that llama.cpp does not have come
# after `temperature`, whatever their place in the chain is: they have a name, and no letter.
SAMPLERS: Mapping[str, Mapping[str, Any]] = {
    "penalties": {"repeat_penalty": 1.0, "presence_penalty": 0.0, "frequency_penalty": 0.0},
    "dry": {"dry_multiplier": 0.0},
    "top_n_sigma": {"top_n_sigma": -1.0},
    "top_k": {"top_k": 0},
    "typ_p": {"typical_p": 1.0},
    "top_p": {"top_p": 1.0},
    "min_p": {"min_p": 0.0},
    "xtc": {"xtc_probability": 0.0},
    "infill": {"infill": False},
    "temperature": {"temperature": 1.0},
}
SAMPLER_LETTERS = dict(zip("edskypmxit", SAMPLERS, strict=False))  # llama.cpp's
ADJUSTMENTS = (
    AdjustmentRow(lambda o: bool(o.logit_bias), lambda o, size, _: LogitBias(o, size)),
    AdjustmentRow(lambda o: o.has_penalties, lambda o, size, _: Penalties(o, size)),
    AdjustmentRow(lambda o: o.has_dry, Dry),
)
BOUNDS = (
    BoundRow(lambda o: o.top_n_sigma > 0, lambda x, o: transforms.top_n_sigma(x, o.top_n_sigma)),
)
FILTERS = (
    FilterRow(lambda o: o.typical_p < 1, _typical_p),
    FilterRow(lambda o: o.top_p < 1, _top_p, needs_order=False),
    FilterRow(lambda o: o.min_p > 0, _min_p, needs_order=False),
    FilterRow(lambda o: o.has_xtc, _xtc),
)
