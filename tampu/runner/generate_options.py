"""The options of one request: limits, stop strings and sampling."""

from __future__ import annotations

import logging
from collections.abc import Mapping
from typing import Any, Literal, TypeAlias

import msgspec

from tampu.errors import RequestError
from tampu.runner.capture_options import CaptureOptions
from tampu.runner.steering_options import Steering
from tampu.sampling import SamplingOptions
from tampu.sampling.grammar import Grammar, grammar_of
from tampu.sampling.parameters import DEFAULTS, Use, engine_values, keyword_values
from tampu.settings.type_errors import convert

log = logging.getLogger("tampu")

Priority: TypeAlias = Literal["interactive", "batch"]
MAX_TOP_LOGPROBS = 20
MAX_STRENGTH = 100.0
"""Of an adapter: far more than anyone trains with."""


class ReasoningTags(msgspec.Struct, frozen=True, kw_only=True):
    """How a model marks its reasoning.

    Attributes:
        begin: the tag before it.
        end: the tag after it.
        is_open: whether the prompt ends inside reasoning.
        anywhere: whether it may also begin after other text.
        markers: control tokens in the tags, by their texts.
    """

    begin: str
    end: str
    is_open: bool = False
    anywhere: bool = False
    markers: tuple[str, ...] = ()


class GenerateOptions(SamplingOptions, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Limits and stop strings of one request, and its sampling options (`SamplingOptions`).

    Attributes:
        max_tokens: the maximum number of tokens to generate; None: until the model ends.
        stop: the answer ends before the first of these strings.
        keep: tokens at the start that a context shift keeps; -1: the whole prompt.
        shift: whether old tokens are dropped when the context is full; else the answer ends there.
        truncate: whether a prompt longer than the context is cut; else it is refused.
        priority: "interactive" requests come before "batch" ones.
        return_progress: report how much of the prompt is computed, with `PromptProgress` events.
        ignore_eos: continue after the model's end token.
        shown: texts of the control tokens that are part of the answer's text.
        logprobs: return the log-probability of each token.
        top_logprobs: and of this many of the most likely tokens at its position, 0 to 20.
        entropy: with `logprobs`, return the entropy of the model's distribution for each token too.
        post_sampling_probs: these are of the probabilities that tokens were sampled with; those of
            the tokens that were left out are not listed.
        prompt_logprobs: and of each prompt token; the prompt then takes nothing from the cache.
        lora: names of loaded adapters that change the model for this request, and the strength
            of each; 1: as trained.
        steering: changes of values inside the model, in their order.
        capture: values inside the model to return, after these changes; the context is not shifted
            then.
        grammar: a constraint on the answer.
        min_indent: the answer ends before the first of its lines after the first that begins with
            fewer spaces and tabs; an empty line has none.
        max_predict_ms: the answer ends with the first line break that comes more milliseconds after
            its first token; None: there is no limit.
        max_repeated_tokens: the answer ends when a token follows itself more often; None: no limit.
        think_budget: the maximum number of tokens of reasoning; None: no limit.
        reasoning_tags: how the model marks its reasoning; None: it does not reason.
        draft_tokens: the maximum number of drafts in a step; 0: none, None: as many as win.
        prediction: what the answer may be; as far as it is right, tokens come sooner.
    """

    max_tokens: int | None = DEFAULTS["max_tokens"]
    stop: tuple[str, ...] = DEFAULTS["stop"]
    keep: int = DEFAULTS["keep"]
    shift: bool = True
    truncate: bool = False
    priority: Priority = "interactive"
    return_progress: bool = False
    ignore_eos: bool = False
    shown: tuple[str, ...] = ()
    logprobs: bool = False
    top_logprobs: int = 0
    entropy: bool = False
    post_sampling_probs: bool = False
    prompt_logprobs: bool = False
    lora: dict[str, float] = msgspec.field(default_factory=dict)
    steering: tuple[Steering, ...] = ()
    capture: CaptureOptions | None = None
    grammar: Grammar | None = None
    min_indent: int = 0
    max_predict_ms: int | None = None
    max_repeated_tokens: int | None = None
    think_budget: int | None = DEFAULTS["think_budget"]
    reasoning_tags: ReasoningTags | None = None
    draft_tokens: int | None = DEFAULTS["draft_tokens"]
    prediction: str = ""

    def __post_init__(self) -> None:
        """Check the ranges of values.

        Raises:
            RequestError: naming the option and its range.
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
        if self.entropy and not self.logprobs:
            raise RequestError("entropy needs logprobs")
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
    return {k: tuple(value) if isinstance(value, list) else value for k, value in found.items()}


def generate_options(values: Mapping[str, object]) -> GenerateOptions:
    """Return keyword values as options.

    `format` is short for a grammar: "json", a JSON schema, or one of `regex`, `lark`, `gbnf`,
    `choices` in a mapping. A number as `logprobs` is that of `top_logprobs` too, as in OpenAI's
    completions.

    Raises:
        RequestError: for an unknown name or a value of the wrong type.
        GrammarError: for a format that is invalid or not supported.
    """
    found = keyword_values(values, _KEYWORDS)
    if "format" in found:
        grammar = found["grammar"] = grammar_of(found.pop("format"))
        log_ignored(grammar)
    top = found.get("logprobs")
    if isinstance(top, int) and not isinstance(top, bool):
        found |= {"logprobs": True, "top_logprobs": found.get("top_logprobs", top)}
    return convert(found, GenerateOptions, "the generation options")


_KEYWORDS = dict.fromkeys((*GenerateOptions.__struct_fields__, "format"))  # in their order


def token_limit(context: int) -> int:
    """Return how many tokens an answer without a limit has at most: ten contexts."""
    return 10 * context


def log_ignored(grammar: Grammar | None) -> None:
    """Log what of a schema is not enforced."""
    for line in grammar.ignored if grammar else ():
        log.warning("format: %s", line)


def check_strength(name: str, scale: float) -> None:
    """Do nothing if an adapter may have this strength.

    Raises:
        RequestError: naming it, if it is not a number from -100 to 100.
    """
    if not -MAX_STRENGTH <= scale <= MAX_STRENGTH:
        raise RequestError(
            f"lora: the strength of {name[:100]!r} must be {-MAX_STRENGTH:g} to "
            f"{MAX_STRENGTH:g}, not {scale:g}"
        )
