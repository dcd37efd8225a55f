"""What happens while a request is answered: the one stream that every API family translates.

For each choice in turn: one `Began`, any number of `Thought`, `Said` and `Called`, one `Ended`.
Choices run side by side, so their events may alternate.
"""

from __future__ import annotations

from typing import Any, Literal, TypeAlias

import msgspec

from tampu.runner.events import TokenLogprob, Usage

EndReason: TypeAlias = Literal["stop", "length", "cancelled", "tool_calls", "load"]


class Began(msgspec.Struct, frozen=True):
    """The prompt is these tokens; the model was ready at `ready_ns` of the monotonic clock."""

    tokens: tuple[int, ...]
    ready_ns: int
    choice: int = 0


class _Text(msgspec.Struct, frozen=True):
    """A piece of text, the tokens that came with it, and their scores if they were asked for."""

    text: str
    tokens: tuple[int, ...] = ()
    scores: tuple[TokenLogprob, ...] = ()
    choice: int = 0


class Said(_Text, frozen=True):
    """Text for the reader."""


class Thought(_Text, frozen=True):
    """Text that the model writes for itself before it answers."""


class Called(msgspec.Struct, frozen=True):
    """A function that the model wants called, complete; `index` counts those of the answer."""

    id: str
    name: str
    arguments: dict[str, Any]
    index: int
    choice: int = 0


class Ended(msgspec.Struct, frozen=True):
    """The choice is complete; `load`: nothing was to be generated, the model is in memory."""

    reason: EndReason
    usage: Usage
    ready_ns: int
    stop: str | None = None
    choice: int = 0


class Scored(msgspec.Struct, frozen=True):
    """The prompt's first token, and the scores of the others; before `Ended`, if asked for."""

    first: bytes
    scores: tuple[TokenLogprob, ...]
    choice: int = 0


Event: TypeAlias = Began | Said | Thought | Called | Scored | Ended


def total_usage(events: list[Ended], choices: int) -> Usage:
    """Return what all choices cost together; a prompt counts once, however many choices it has."""
    by_choice = sorted(events, key=lambda event: event.choice)
    prompts = by_choice[::choices]
    return Usage(
        prompt_tokens=sum(event.usage.prompt_tokens for event in prompts),
        cached_tokens=sum(event.usage.cached_tokens for event in prompts),
        generated_tokens=sum(event.usage.generated_tokens for event in by_choice),
    )
