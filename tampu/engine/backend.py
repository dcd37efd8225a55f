"""What a loaded model is to its users, whichever engine runs it: facts, and requests."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, ClassVar, Protocol, TypeAlias, TypeVar

import msgspec
import numpy as np
import numpy.typing as npt

from tampu.engine.events import Reply, joined
from tampu.engine.output import OutputEvent
from tampu.engine.placement import Placement
from tampu.engine.request import Request, Result
from tampu.engine.request_builder import RequestBuilder
from tampu.errors import UnsupportedRequestError
from tampu.runner.events import BatchCounts, Event
from tampu.runner.generate_options import GenerateOptions

R = TypeVar("R")


class ModelFacts(msgspec.Struct, frozen=True, tag="ready"):
    """What is known of a loaded model.

    Attributes:
        context: of each slot, in tokens.
        memory_bytes: that it takes on all devices, the CPU included.
        device_bytes: that it takes on GPUs.
        engine: native or llamacpp.
        device_free: free bytes of the GPUs; None: unknown, or there are none.
        slots: how many requests it computes at once.
        slot_bytes: memory of each slot: its share of the cache and of recurrent states; 0: unknown.
        has_pooling: whether the embedding of a text is one vector, not one for each token.
        placement: what each device has of it, and why.
    """

    context: int
    memory_bytes: int
    device_bytes: int = 0
    engine: str = "native"
    device_free: int | None = None
    slots: int = 1
    slot_bytes: int = 0
    has_pooling: bool = True
    placement: Placement = Placement()


class Handle(Protocol):
    """A sequence that an engine computes."""

    @property
    def progress(self) -> tuple[int, int]:
        """The computed and the total prompt tokens; (0, 0): unknown."""

    @property
    def keys(self) -> npt.NDArray[np.int32]:
        """The prompt's tokens as the prefix cache compares them, I32, (n,); empty: unknown."""

    def cancel(self) -> None:
        """End it soon, with `Done("cancelled")`."""


Submit: TypeAlias = Callable[[Sequence[Any], GenerateOptions, Callable[[Event], None]], Handle]
"""Begins to generate from a prompt; the function receives its events on another thread."""

ReplySink: TypeAlias = Callable[[Reply], None]
"""Receives what a request gives."""


class Running(ABC):
    """A request whose replies come later, on another thread."""

    @property
    @abstractmethod
    def progress(self) -> tuple[int, int]:
        """The computed and the total prompt tokens; (0, 0): unknown."""

    @abstractmethod
    def begin(self, sink: ReplySink) -> None:
        """Begin; `sink` receives the replies, those from before `parse`.

        Raises:
            TampuError: if the request is invalid.
        """

    @abstractmethod
    def parse(self, reply: Reply) -> Iterator[OutputEvent]:
        """Yield the events of a reply: content, reasoning and tool calls.

        The receiver calls it, so that the engine's thread does not wait for it.
        """

    @abstractmethod
    def cancel(self) -> None:
        """End it soon, with `Done("cancelled")`, if it has begun."""


Handler: TypeAlias = Callable[[Any, Any], Result | Iterator[Result] | Running]
"""Answers requests of one kind: takes the model and the request."""

Handlers: TypeAlias = Mapping[type[Request[Any]], Handler]


class Backend(ABC):
    """A loaded model of any engine. Any thread may call it.

    `counts`, `prepare`, `warm_up` and `hang_reason` are what the process that holds a model needs;
    they are not part of the Python API, although `Engine` has them too.

    Attributes:
        handlers: answer the kinds of requests that it supports.
        unsupported: says why it supports no others.
        requests: builds its prompts.
    """

    handlers: ClassVar[Handlers]
    unsupported: ClassVar[str]
    requests: RequestBuilder

    @property
    @abstractmethod
    def facts(self) -> ModelFacts:
        """What is known of it."""

    def run(self, request: Request[Any]) -> Iterator[Result] | Running:
        """Return the result of a request, in parts, or what gives its events once it has begun.

        Raises:
            UnsupportedRequestError: if this engine does not have this kind of request.
            TampuError: if it is invalid or fails, also while iterating.
        """
        handler = self.handlers.get(type(request))
        if handler is None:
            kind = type(request).__name__
            raise UnsupportedRequestError(f"{kind} is not supported: {self.unsupported}")
        found = handler(self, request)
        return iter((found,)) if isinstance(found, Result) else found

    def ask(self, request: Request[R]) -> R:
        """Return the result of a request that generates no text; raises as `run`."""
        found = self.run(request)
        if isinstance(found, Running):
            raise TypeError(type(request))
        result: R = joined([*found])
        return result

    def counts(self) -> BatchCounts:
        """Return the batches that it has computed; none if its engine does not count."""
        return BatchCounts()

    def prepare(self) -> None:
        """Set up what the first chat needs."""
        if self.requests.prompts is not None:
            self.requests.prompts.prepare()

    def warm_up(self) -> None:  # noqa: B027 - there may be nothing to set up
        """Set up ahead of time what the first grammar and the first image will need."""

    def hang_reason(self, patience_s: float) -> str:  # noqa: ARG002
        """Return why it has failed; empty if it is running or idle.

        Args:
            patience_s: how long anything may take without progress.
        """
        return ""
