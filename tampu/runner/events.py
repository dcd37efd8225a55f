"""What a request's sink receives, in order: any number of `Text`, then one `Done` or one `Failed`.

The same structs travel between the processes of the server, so they hold plain data only.
"""

from __future__ import annotations

from typing import Literal, TypeAlias

import msgspec

FinishReason: TypeAlias = Literal["stop", "length", "cancelled"]


class TokenLogprob(msgspec.Struct, frozen=True):
    """The log-probability of a generated token, and of the likeliest ones in its place."""

    token: int
    logprob: float
    top: tuple[tuple[int, float], ...] = ()


class Usage(msgspec.Struct, frozen=True):
    """What a request cost. Durations are in nanoseconds, counts in tokens."""

    prompt_tokens: int = 0
    cached_tokens: int = 0
    prompt_ns: int = 0
    generated_tokens: int = 0
    generated_ns: int = 0
    total_ns: int = 0
    dropped_tokens: int = 0


class Text(msgspec.Struct, frozen=True, tag="text"):
    """A piece of the answer; its text never ends in half a character or half a stop string."""

    text: str
    tokens: tuple[int, ...] = ()
    logprobs: tuple[TokenLogprob, ...] = ()


class Done(msgspec.Struct, frozen=True, tag="done"):
    """The answer is complete.

    Attributes:
        reason: why.
        usage: what it cost.
        stop: the stop string that ended it; None: none did.
        prompt_logprobs: of all tokens of the prompt but the first, if asked for.
    """

    reason: FinishReason
    usage: Usage
    prompt_logprobs: tuple[TokenLogprob, ...] = ()
    stop: str | None = None


class Failed(msgspec.Struct, frozen=True, tag="failed"):
    """The request ended in an error; `kind` names a class of `tampu.errors`."""

    kind: str
    message: str


Event: TypeAlias = Text | Done | Failed
