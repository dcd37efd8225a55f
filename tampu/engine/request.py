"""What all requests to a loaded model have in common; see `tampu.engine.requests`."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from types import MappingProxyType
from typing import Any, ClassVar, Generic, Literal, Self, TypeAlias, TypeVar

import msgspec
from msgspec.structs import replace

from tampu.engine.prompts import (
    ChatPrompt,
    FIMPrompt,
    ItemsPrompt,
    Prompt,
    StructuredOutput,
    TextPrompt,
    TokensPrompt,
)
from tampu.runner.events import Usage
from tampu.runner.generate_options import GenerateOptions, Priority
from tampu.runner.steering_options import Steering

R_co = TypeVar("R_co", covariant=True)
Lane: TypeAlias = Literal["short", "long", "media", "grammar", "embed", "score", "watch", "offline"]
"""The threads of a worker that run a request: it waits only for others of its lane."""

Lora: TypeAlias = Mapping[str, float]
"""Names of loaded adapters, with the strength of each."""
NO_LORA: Lora = MappingProxyType({})

_LONG = 32 << 10  # characters or tokens; some milliseconds of tokenizing
_MANY = 200  # messages; some milliseconds of the template


class Result(msgspec.Struct, frozen=True, tag=True):
    """The answer to a request that is not streamed."""

    @property
    def is_last(self) -> bool:
        """Whether it is whole, or the last of its parts."""
        return True

    @property
    def usage(self) -> Usage:
        """The tokens that it took."""
        return Usage()

    def ready_at(self, ready_ns: int) -> Self:  # noqa: ARG002 - most do not have it
        """Return it with the time at which the model was ready, if it has that."""
        return self

    @classmethod
    def joined(cls, parts: Sequence[Self]) -> Self:
        """Return the whole answer."""
        return parts[-1]


class Request(msgspec.Struct, Generic[R_co], frozen=True, tag=True):
    """A request; `R_co` is the type of its result.

    Attributes:
        runs_in: the lane of all requests of a kind.
    """

    runs_in: ClassVar[Lane] = "watch"

    @property
    def lane(self) -> Lane:
        """Which threads of a worker run it."""
        return self.runs_in

    @property
    def contents(self) -> Sequence[Prompt]:
        """The prompts that it has."""
        return ()

    @property
    def size(self) -> int:
        """About how many bytes it has as a message: those of its texts, tokens and media."""
        return sum(map(prompt_size, self.contents))

    @property
    def adapters(self) -> Lora:
        """The adapters that it is computed with."""
        return NO_LORA

    def scheduled(
        self,
        lora: Lora,  # noqa: ARG002
        priority: Priority,  # noqa: ARG002
        steering: tuple[Steering, ...] = (),  # noqa: ARG002
    ) -> Self:
        """Return it with these adapters, this priority, and these changes before its own.

        One that computes nothing is returned as it is.
        """
        return self


class Computation(Request[R_co], frozen=True, kw_only=True):
    """A request that computes outputs of the model, and generates no text.

    Attributes:
        lora: names of loaded adapters, with the strength of each.
        steering: changes of values inside the model, as in `GenerateOptions`.
        priority: as in `GenerateOptions`.
    """

    runs_in: ClassVar[Lane] = "score"
    lora: dict[str, float] = {}
    steering: tuple[Steering, ...] = ()
    priority: Priority = "interactive"

    @property
    def lane(self) -> Lane:
        """Which threads of a worker run it: no one waits behind the rows of batches."""
        return "offline" if self.priority == "batch" else self.runs_in

    @property
    def adapters(self) -> Lora:
        """The adapters that it is computed with."""
        return self.lora

    @property
    def conditions(self) -> dict[str, Any]:
        """Return the fields of this class, for another computation that it consists of."""
        return {"lora": self.lora, "steering": self.steering, "priority": self.priority}

    @property
    def engine_options(self) -> GenerateOptions:
        """Return how the engine computes it."""
        return GenerateOptions(max_tokens=0, **self.conditions)

    def scheduled(
        self, lora: Lora, priority: Priority, steering: tuple[Steering, ...] = ()
    ) -> Self:
        """Return it with these adapters, this priority, and these changes before its own."""
        steered = (*steering, *self.steering)
        return replace(self, lora=dict(lora), priority=priority, steering=steered)


def prompt_lane(prompt: Prompt, structure: StructuredOutput | None = None) -> Lane:
    """Return the lane of a request by what may be slow about preparing it.

    Nothing ("short"), its length, its media or its grammar.
    """
    if isinstance(prompt, ChatPrompt):
        if any(message.get("media") for message in prompt.messages):
            return "media"
        if len(prompt.messages) > _MANY:
            return "long"
    if isinstance(prompt, TextPrompt) and prompt.media:
        return "media"
    if _text_size(prompt) > _LONG:
        return "long"
    return "short" if structure is None else "grammar"


def prompt_size(prompt: Prompt) -> int:
    """Return about how many bytes a prompt has: characters, tokens, and bytes of media."""
    media = 0
    if isinstance(prompt, ChatPrompt):
        given = (message.get("media") or () for message in prompt.messages)
        media = sum(len(file) for several in given for file in several)
    elif isinstance(prompt, TextPrompt):
        media = sum(map(len, prompt.media))
    return _text_size(prompt) + media


def _text_size(prompt: Prompt) -> int:
    match prompt:
        case TextPrompt(text=text):
            return len(text)
        case TokensPrompt(tokens=tokens) | ItemsPrompt(items=tokens):
            return len(tokens)
        case FIMPrompt(prefix=prefix, suffix=suffix):
            return len(prefix) + len(suffix)
        case ChatPrompt(messages=messages, before=before):
            return len(before) + sum(len(each.get("content") or "") for each in messages)
