"""How tokens are sampled: the options of a request, checked once."""

from __future__ import annotations

import math

import msgspec

from tampu.errors import RequestError
from tampu.sampling.sampling_fields import SamplingFields

MAX_BIAS = 1000.0
XTC_MAX_THRESHOLD = 0.5  # two tokens cannot both be above it


class SamplingOptions(SamplingFields, frozen=True, kw_only=True):
    """How tokens are sampled; what each option does is in `tampu.sampling.parameters`.

    Attributes:
        logit_bias: added to the logits of these token ids; `-math.inf` forbids the token.

    Raises:
        RequestError: a value of the wrong type or out of its range; the message names the range.
    """

    logit_bias: dict[int, float] = msgspec.field(default_factory=dict)

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
