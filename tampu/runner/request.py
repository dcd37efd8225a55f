"""What a caller may ask of one generation: limits, stop strings and sampling."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Literal

import msgspec

from tampu.errors import RequestError
from tampu.sampling import SamplingOptions
from tampu.sampling.grammar import Grammar, grammar_of
from tampu.sampling.parameters import DEFAULTS, Use, engine_values

MAX_TOP_LOGPROBS = 20


class Thoughts(msgspec.Struct, frozen=True, kw_only=True):
    """How a model writes thoughts.

    Attributes:
        begin: the text before one.
        end: the text after it.
        is_begun: whether the prompt ends inside one.
        anywhere: whether one may begin after other text too.
    """

    begin: str
    end: str
    is_begun: bool = False
    anywhere: bool = False


class GenerateOptions(SamplingOptions, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Limits and stop strings of one request, and how its tokens are drawn (`SamplingOptions`).

    Attributes:
        max_tokens: the most tokens to generate; None: until the model ends.
        stop: the answer ends before the first of these strings.
        keep: tokens at the beginning that a context shift keeps; -1: the whole prompt.
        shift: whether old tokens are dropped when the context is full; else the answer ends there.
        truncate: whether a prompt longer than the context is cut; else it is refused.
        priority: "interactive" requests come before "batch" ones.
        ignore_eos: go on after the model's end token.
        shown: control tokens that are part of the text, by their own texts; others are not.
        logprobs: return the log-probability of each token.
        top_logprobs: and of this many of the likeliest tokens in its place, 0 to 20.
        prompt_logprobs: and of each token of the prompt; then none of it is taken from the cache.
        grammar: what the answer must follow; None: nothing.
        max_repeated_tokens: the answer ends when a token follows itself more often; None: it may.
        think_budget: the most tokens of thoughts, which then are ended; None: any number.
        thoughts: how the model writes thoughts; None: the answer has none.
    """

    max_tokens: int | None = DEFAULTS["max_tokens"]
    stop: tuple[str, ...] = DEFAULTS["stop"]
    keep: int = DEFAULTS["keep"]
    shift: bool = True
    truncate: bool = False
    priority: Literal["interactive", "batch"] = "interactive"
    ignore_eos: bool = False
    shown: tuple[str, ...] = ()
    logprobs: bool = False
    top_logprobs: int = 0
    prompt_logprobs: bool = False
    grammar: Grammar | None = None
    max_repeated_tokens: int | None = None
    think_budget: int | None = DEFAULTS["think_budget"]
    thoughts: Thoughts | None = None

    def __post_init__(self) -> None:
        """Refuse values outside their range.

        Raises:
            RequestError: naming the option and the range allowed.
        """
        super().__post_init__()
        if not 0 <= self.top_logprobs <= MAX_TOP_LOGPROBS:
            raise RequestError(
                f"top_logprobs must be 0 to {MAX_TOP_LOGPROBS}, not {self.top_logprobs}"
            )
        if self.max_repeated_tokens is not None and self.max_repeated_tokens < 1:
            raise RequestError(
                f"max_repeated_tokens must be 1 or more, not {self.max_repeated_tokens}"
            )
        if any(not stop for stop in self.stop):
            raise RequestError("stop strings must not be empty")


def given_options(values: Mapping[str, object]) -> dict[str, Any]:
    """Return the values for `GenerateOptions` of a Modelfile's or a request's parameters.

    Args:
        values: by Ollama's names; others and None do not count.

    Raises:
        RequestError: for a wrong type or a value out of range.
    """
    found = engine_values(values, Use.SAMPLING, Use.GENERATION)
    return found | {"stop": tuple(found["stop"])} if "stop" in found else found


def generate_options(values: dict[str, object]) -> GenerateOptions:
    """Check loose keyword values and return them as options.

    `format` stands for a grammar: "json", a JSON schema, or one of `regex`, `lark`, `gbnf`,
    `choices` in a mapping.

    Raises:
        RequestError: for an unknown name or a value of the wrong type.
        GrammarError: for a format that is wrong or not supported.
    """
    if "format" in values:
        values = {**values, "grammar": grammar_of(values["format"])}
        del values["format"]
    try:
        return msgspec.convert(values, GenerateOptions)
    except msgspec.ValidationError as error:
        known = ", ".join(GenerateOptions.__struct_fields__)
        raise RequestError(f"generation options: {error} (known: {known})") from None
