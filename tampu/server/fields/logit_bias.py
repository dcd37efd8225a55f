"""`logit_bias` in OpenAI's form, `{"5": -100}`, or llama.cpp's, `[[5, false], ["text", 1.5]]`."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any

from tampu.errors import RequestError, require
from tampu.sampling.options import MAX_BIAS
from tampu.server.fields.tools import shortened

MAX_BIASES = 1_024
MAX_TEXT = 1_024


@dataclass(frozen=True, slots=True)
class LogitBias:
    """What is added to logits.

    Attributes:
        tokens: by token id.
        texts: by text, for each of its tokens.
    """

    tokens: dict[int, float] = field(default_factory=dict)
    texts: dict[str, float] = field(default_factory=dict)


def read_bias(given: dict[str, Any] | list[Any] | None) -> LogitBias:
    """Return the biases of a request; a text of digits in an object is a token id.

    Raises:
        RequestError: for a value that is not one of these forms, or out of range.
    """
    bias = LogitBias()
    pairs: Iterable[Any] = given.items() if isinstance(given, dict) else given or ()
    require(len(given or ()) <= MAX_BIASES, f"logit_bias: at most {MAX_BIASES} tokens")
    for pair in pairs:
        match pair:
            case (str(text), value) if isinstance(given, dict) and _is_number(text):
                bias.tokens[_token(text)] = _value(value)
            case (str(text), value) | [str(text), value]:
                require(
                    0 < len(text) <= MAX_TEXT, f"logit_bias: texts have 1 to {MAX_TEXT} characters"
                )
                bias.texts[text] = _value(value)
            case [int(token), value] if not isinstance(token, bool):
                bias.tokens[_token(str(token))] = _value(value)
            case _:
                raise RequestError(
                    "logit_bias must be an object of tokens and numbers, or a list of such pairs"
                )
    return bias


def _is_number(text: str) -> bool:
    return text.isascii() and text.removeprefix("-").isdecimal()


def _token(text: str) -> int:
    require(text.isdecimal() and len(text) < 10, f"logit_bias: {shortened(text)} is not a token id")
    return int(text)


def _value(value: object) -> float:
    """Return a bias; false forbids the token."""
    if value is False:
        return -MAX_BIAS
    if value is True or not isinstance(value, int | float):
        raise RequestError(f"logit_bias: {shortened(value)} is not a number or false")
    require(-100 <= value <= 100, f"logit_bias: {shortened(value)} is not -100 to 100")
    return float(value)
