"""What a request may say about sampling, checked once."""

from __future__ import annotations

import math

import msgspec

from tampu.errors import RequestError

RANDOM_SEED = -1  # Ollama's word for "another text each time"; `None` says the same


class SamplingOptions(msgspec.Struct, frozen=True, kw_only=True):
    """How tokens are drawn; the names and defaults are Ollama's.

    Attributes:
        temperature: divides the logits; 0 takes the best token always (greedy).
        top_k: keep the k best tokens; 0 or -1 keeps all.
        top_p: keep the smallest set of best tokens whose probability exceeds this; 1 keeps all.
        min_p: keep tokens with at least this share of the best token's probability; 0 keeps all.
        typical_p: keep the tokens nearest to the distribution's entropy, up to this much
            probability; 1 keeps all.
        repeat_last_n: tokens back, prompt included, that the three penalties look at; 0 turns
            them off, -1 looks at everything.
        repeat_penalty: divides a repeated token's positive logit, multiplies a negative one.
        presence_penalty: taken off the logit of a token that occurs in the window.
        frequency_penalty: taken off the logit for each time that the token occurs in the window.
        seed: the same seed gives the same tokens; `None` or -1 gives others each time.
        logit_bias: token id to what is added to its logit; `-math.inf` forbids the token.

    Raises:
        RequestError: a value of the wrong type or out of its range; the message names the range.
    """

    temperature: float = 0.8
    top_k: int = 40
    top_p: float = 0.9
    min_p: float = 0.0
    typical_p: float = 1.0
    repeat_last_n: int = 64
    repeat_penalty: float = 1.0
    presence_penalty: float = 0.0
    frequency_penalty: float = 0.0
    seed: int | None = None
    logit_bias: dict[int, float] = {}

    def __post_init__(self) -> None:
        _number("temperature", self.temperature, low=0.0, high=100.0)
        _integer("top_k", self.top_k, low=-1)
        _number("top_p", self.top_p, low=0.0, high=1.0)
        _number("min_p", self.min_p, low=0.0, high=1.0)
        _number("typical_p", self.typical_p, low=0.0, high=1.0)
        _integer("repeat_last_n", self.repeat_last_n, low=-1, high=1_000_000)
        _number("repeat_penalty", self.repeat_penalty, low=0.01, high=100.0)
        _number("presence_penalty", self.presence_penalty, low=-1000.0, high=1000.0)
        _number("frequency_penalty", self.frequency_penalty, low=-1000.0, high=1000.0)
        if self.seed is not None:
            _integer("seed", self.seed, low=RANDOM_SEED)
        for token, bias in self.logit_bias.items():
            _integer("a token of logit_bias", token, low=0)
            if bias != -math.inf:
                _number(f"logit_bias of token {token}", bias, low=-1000.0, high=1000.0)

    @property
    def is_greedy(self) -> bool:
        """Whether only the best token can come out, so that nothing is drawn."""
        return self.temperature == 0.0 or self.top_k == 1 or self.top_p == 0.0

    @property
    def has_penalties(self) -> bool:
        """Whether the tokens so far change the logits."""
        return self.repeat_last_n != 0 and (
            self.repeat_penalty != 1.0
            or self.presence_penalty != 0.0
            or self.frequency_penalty != 0.0
        )


def _number(name: str, value: object, *, low: float, high: float) -> None:
    if isinstance(value, bool) or not isinstance(value, int | float) or not low <= value <= high:
        raise RequestError(f"{name} is {value!r}; it must be a number from {low:g} to {high:g}")


def _integer(name: str, value: object, *, low: int, high: int | None = None) -> None:
    if isinstance(value, bool) or not isinstance(value, int) or value < low:
        raise RequestError(f"{name} is {value!r}; it must be a whole number of {low} or more")
    if high is not None and value > high:
        raise RequestError(f"{name} is {value}; it must be {high} or less")
