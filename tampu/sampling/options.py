"""How tokens are sampled: the options of a request, checked once."""

from __future__ import annotations

import math
from collections.abc import Callable
from functools import cache
from operator import attrgetter

import msgspec

from tampu.errors import RequestError
from tampu.sampling.parameters import DEFAULTS, PARAMETERS, Parameter

MAX_BIAS = 1000.0
XTC_MAX_THRESHOLD = 0.5  # two tokens cannot both be above it


class CheckedOptions(msgspec.Struct, frozen=True, kw_only=True):
    """Options whose values are checked by the table of parameters."""

    def __post_init__(self) -> None:
        """Check the values.

        Raises:
            RequestError: naming the option and its range.
        """
        values, rows = _checked(type(self))
        for value, row in zip(values(self), rows, strict=True):
            default = row.default
            # By value: options from another process are equal, not identical. True equals 1.
            if value is not default and (value != default or type(value) is not type(default)):
                row.check(value, row.name)


@cache
def _checked(
    kind: type[CheckedOptions],
) -> tuple[Callable[[CheckedOptions], tuple[object, ...]], list[Parameter]]:
    """Return what gets the values that are checked from options, and their parameters."""
    rows = [PARAMETERS[name] for name in kind.__struct_fields__ if name in PARAMETERS]
    rows = [row for row in rows if row.kind is not list]
    return attrgetter(*(row.name for row in rows)), rows


class SamplingOptions(CheckedOptions, frozen=True, kw_only=True):
    """How tokens are sampled; what each option does is in `tampu.sampling.parameters`.

    Attributes:
        logit_bias: added to the logits of these token ids; `-math.inf` forbids the token.

    Raises:
        RequestError: a value of the wrong type or out of its range; the message names the range.
    """

    temperature: float = DEFAULTS["temperature"]
    top_k: int = DEFAULTS["top_k"]
    top_p: float = DEFAULTS["top_p"]
    min_p: float = DEFAULTS["min_p"]
    typical_p: float = DEFAULTS["typical_p"]
    repeat_last_n: int = DEFAULTS["repeat_last_n"]
    repeat_penalty: float = DEFAULTS["repeat_penalty"]
    presence_penalty: float = DEFAULTS["presence_penalty"]
    frequency_penalty: float = DEFAULTS["frequency_penalty"]
    top_n_sigma: float = DEFAULTS["top_n_sigma"]
    xtc_probability: float = DEFAULTS["xtc_probability"]
    xtc_threshold: float = DEFAULTS["xtc_threshold"]
    dry_multiplier: float = DEFAULTS["dry_multiplier"]
    dry_base: float = DEFAULTS["dry_base"]
    dry_allowed_length: int = DEFAULTS["dry_allowed_length"]
    dry_penalty_last_n: int = DEFAULTS["dry_penalty_last_n"]
    dry_sequence_breakers: tuple[str, ...] = DEFAULTS["dry_sequence_breakers"]
    infill: bool = DEFAULTS["infill"]
    seed: int | None = DEFAULTS["seed"]
    logit_bias: dict[int, float] = {}

    def __post_init__(self) -> None:
        """Check the values.

        Raises:
            RequestError: naming the option and its range.
        """
        super().__post_init__()
        for token, bias in self.logit_bias.items():
            if token < 0:
                raise RequestError(f"a token of logit_bias must be 0 or more, not {token}")
            if bias != -math.inf and not -MAX_BIAS <= bias <= MAX_BIAS:
                raise RequestError(
                    f"logit_bias of token {token} must be a number from {-MAX_BIAS:g} to"
                    f" {MAX_BIAS:g}, not {bias!r}"
                )

    @property
    def is_greedy(self) -> bool:
        """Whether the result is always the best token, so that nothing is sampled."""
        return self.temperature == 0.0 or self.top_k == 1 or self.top_p == 0.0

    @property
    def has_penalties(self) -> bool:
        """Whether the tokens so far change the logits."""
        return self.repeat_last_n != 0 and (
            self.repeat_penalty != 1.0
            or self.presence_penalty != 0.0
            or self.frequency_penalty != 0.0
        )

    @property
    def has_dry(self) -> bool:
        """Whether repetitions make tokens less likely."""
        return self.dry_multiplier > 0.0 and self.dry_penalty_last_n != 0

    @property
    def has_xtc(self) -> bool:
        """Whether the best tokens may be left out."""
        return self.xtc_probability > 0.0 and self.xtc_threshold <= XTC_MAX_THRESHOLD
