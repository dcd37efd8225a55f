"""The events of a request, in order: any number of `TextDelta`, then one `Done` or one `Failed`.

If they are requested, `PromptProgress` events come first.

A worker sends the same structs to the server, so they hold plain data only.
"""

from __future__ import annotations

from typing import Literal, TypeAlias

import msgspec

from tampu import errors
from tampu.errors import ModelFileError, TampuError

FinishReason: TypeAlias = Literal["stop", "length", "cancelled", "tool_calls", "load"]
# What an answer of the reason `length` ended at: `max_tokens`, its context, `max_repeated_tokens`,
# `max_predict_ms`, or `min_indent`.
Limit: TypeAlias = Literal["tokens", "context", "repetition", "time", "indent"]


class TokenLogprob(msgspec.Struct, frozen=True):
    """The log-probability of a token, and of the most likely tokens at its position.

    Attributes:
        token: its id.
        logprob: natural logarithm of its probability.
        top: ids and log-probabilities of the most likely tokens, the likeliest first.
        token_bytes: the token's text in UTF-8, possibly part of a character.
        top_bytes: the same for each token of `top`.
        entropy: of the model's whole distribution at its position, in nats, if requested.
    """

    token: int
    logprob: float
    top: tuple[tuple[int, float], ...] = ()
    token_bytes: bytes = b""
    top_bytes: tuple[bytes, ...] = ()
    entropy: float | None = None

    @property
    def top_by_bytes(self) -> list[tuple[bytes, float]]:
        """Texts and log-probabilities of the most likely tokens."""
        return [(each, value) for each, (_, value) in zip(self.top_bytes, self.top, strict=True)]


class Usage(msgspec.Struct, frozen=True):
    """Token counts and durations (in nanoseconds) of a request.

    Attributes:
        prompt_tokens: tokens of the prompt.
        cached_tokens: how many of them were already in the cache.
        prompt_ns: from getting a slot to the first token of the answer.
        generated_tokens: tokens of the answer.
        generated_ns: from the first token of the answer to its end.
        total_ns: from arrival to the end, including the wait for a slot.
        dropped_tokens: cut from the prompt, or shifted out of a full context.
        drafted_tokens: guesses of tokens of the answer that were computed.
        accepted_tokens: how many of the guesses were right.
        drafts: steps that had guesses.
    """

    prompt_tokens: int = 0
    cached_tokens: int = 0
    prompt_ns: int = 0
    generated_tokens: int = 0
    generated_ns: int = 0
    total_ns: int = 0
    dropped_tokens: int = 0
    drafted_tokens: int = 0
    accepted_tokens: int = 0
    drafts: int = 0


class BatchCounts(msgspec.Struct, frozen=True):
    """How many batches a model has computed, and the sum of the requests in each."""

    batches: int = 0
    sequences: int = 0

    def since(self, before: BatchCounts) -> BatchCounts:
        """Return how many more these are."""
        return BatchCounts(self.batches - before.batches, self.sequences - before.sequences)


class BatchNumbers(msgspec.Struct, frozen=True):
    """In which batches a request was computed; they are counted from 1 since the model was loaded.

    Attributes:
        first: of its prompt.
        answer: the one that gave the first token of the answer; 0: none has.
        last: of the request; those of an answer follow each other unless other work came between.
    """

    first: int
    answer: int
    last: int


class PromptProgress(msgspec.Struct, frozen=True, tag="progressed", omit_defaults=True):
    """A part of the prompt is computed; the first says what was in the cache, the last is whole.

    Attributes:
        tokens: of the prompt.
        cached: how many of them were in the cache.
        processed: how many of them are computed, with these.
        elapsed_ns: since the request got a slot.
        choice: as in `TextDelta`.
    """

    tokens: int
    cached: int
    processed: int
    elapsed_ns: int
    choice: int = 0


class TextDelta(msgspec.Struct, frozen=True, tag="text", omit_defaults=True):
    """New text of the answer; it never ends within a character or a possible stop string.

    Attributes:
        text: the new text.
        tokens: ids of its tokens.
        logprobs: one entry per token, if requested.
        choice: the number of the answer, of a request for several.
    """

    text: str
    tokens: tuple[int, ...] = ()
    logprobs: tuple[TokenLogprob, ...] = ()
    choice: int = 0


class ReasoningDelta(msgspec.Struct, frozen=True, tag="reasoning", omit_defaults=True):
    """A piece of the reasoning before the answer; the attributes are those of `TextDelta`."""

    text: str
    tokens: tuple[int, ...] = ()
    logprobs: tuple[TokenLogprob, ...] = ()
    choice: int = 0


class Done(msgspec.Struct, frozen=True, tag="done", omit_defaults=True):
    """The answer is complete.

    Attributes:
        reason: why it ended: `stop`, `length` or `cancelled`; of a chat also `tool_calls`; from a
            server also `load`: the request only loaded the model.
        usage: token counts and durations.
        prompt_logprobs: one entry per prompt token except the first, if requested.
        stop: the stop string that ended it, if one did.
        batches: that it was computed in; None: in none, or the engine does not tell.
        limit: what it ended at, if the reason is `length`.
        end: the token with which the model ended it, without text; None: it did not.
        captured: values inside the model, if requested: a safetensors file as `Captured.encoded`.
        choice: as in `TextDelta`.
        ready_ns: when the model was ready, by the server's monotonic clock; 0: not from a server.
    """

    reason: FinishReason
    usage: Usage
    prompt_logprobs: tuple[TokenLogprob, ...] = ()
    stop: str | None = None
    batches: BatchNumbers | None = None
    limit: Limit | None = None
    end: TextDelta | None = None
    captured: bytes = b""
    choice: int = 0
    ready_ns: int = 0


class Failed(msgspec.Struct, frozen=True, tag="failed"):
    """The request ended in an error; `kind` names a class of `tampu.errors`."""

    kind: str
    message: str


Event: TypeAlias = PromptProgress | TextDelta | Done | Failed


def to_error(kind: str, message: str) -> TampuError:
    """Return the exception of a `Failed` event: a class of `tampu.errors`, by its name."""
    if kind == ModelFileError.__name__:
        field, _, reason = message.partition(": ")
        return ModelFileError(field, reason)
    found = vars(errors).get(kind)
    return found(message) if isinstance(found, type) else TampuError(message)
