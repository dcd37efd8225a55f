"""A loaded model, wherever it runs: in a process of this machine, or on another."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import AsyncGenerator, Callable
from contextlib import aclosing
from typing import Any, TypeVar

from tampu.engine.backend import ModelFacts
from tampu.engine.events import Reply, joined
from tampu.engine.request import Request
from tampu.runner.events import BatchCounts

R = TypeVar("R")


class ModelClient(ABC):
    """A loaded model, for one event loop.

    Attributes:
        name: of the model in messages.
        computed: called with the batches that were computed since the last call.
    """

    name: str
    computed: Callable[[BatchCounts], None]

    @property
    @abstractmethod
    def facts(self) -> ModelFacts:
        """What is known of the loaded model; RunnerDiedError if it is not loaded."""

    @property
    @abstractmethod
    def is_alive(self) -> bool:
        """Whether it accepts requests."""

    @property
    @abstractmethod
    def cause(self) -> str:
        """Why it crashed; empty while it has not, or after `close`."""

    @property
    def pid(self) -> int | None:
        """Its process on this machine; None: it runs elsewhere."""
        return None

    @abstractmethod
    def run(self, request: Request[Any]) -> AsyncGenerator[Reply, None]:
        """Yield the events of a generation, or the parts of a result; closing it cancels it.

        Raises:
            TampuError: if it fails; RunnerDiedError if the model's process has ended, and
                RequestNotStartedError if it did so before it started the request.
        """

    async def ask(self, request: Request[R]) -> R:
        """Return the result of a request; raises as `run`."""
        async with aclosing(self.run(request)) as replies:
            found: R = joined([reply async for reply in replies])
        return found

    @abstractmethod
    async def close(self) -> None:
        """End the process, if it is this client's."""
