"""The trace of the request that is being served; the feature `tracing` makes it."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager, nullcontext
from contextvars import ContextVar
from typing import Any, Protocol, TypeAlias

from tampu.engine.events import Reply
from tampu.server.front.caller import current_caller
from tampu.server.serving.generation_request import GenerationRequest, ModelCall

Value: TypeAlias = str | int | float | tuple[str, ...]
Attributes: TypeAlias = Mapping[str, Value]


class ModelTrace(Protocol):
    """The span of a use of a model, and those within."""

    def part(self, name: str, began_ns: int, ended_ns: int, attributes: Attributes) -> None:
        """Add a span within this one; times are in nanoseconds since 1970."""

    def loaded(self, model: str, began_ns: int) -> None:
        """Add the span of a model's loading, which ends now."""

    def reply(self, event: Reply) -> None:
        """Add the tokens of a result, or the spans of a choice that is complete."""


class RequestTrace(Protocol):
    """The trace of one HTTP request."""

    @property
    def model(self) -> ModelTrace | None:
        """The use of a model that is under way; None: there is none."""

    def use(
        self, model: str, call: GenerationRequest | ModelCall[Any]
    ) -> AbstractContextManager[ModelTrace]:
        """Trace a request to the model of this name until this ends."""


_current: ContextVar[RequestTrace | None] = ContextVar("trace", default=None)


@contextmanager
def traced(trace: RequestTrace) -> Iterator[None]:
    """Trace what is done for a request until this ends."""
    token = _current.set(trace)
    try:
        yield
    finally:
        _current.reset(token)


def current_model() -> ModelTrace | None:
    """Return the use of a model of the request that is being served; None: it is not traced."""
    trace = _current_trace()
    return None if trace is None else trace.model


def model_trace(
    model: str, call: GenerationRequest | ModelCall[Any]
) -> AbstractContextManager[ModelTrace | None]:
    """Trace a request to the model of this name until this ends; None: it is not traced."""
    trace = _current_trace()
    return nullcontext() if trace is None else trace.use(model, call)


def _current_trace() -> RequestTrace | None:
    """Return the trace; a batch's task has its request's context, but its rows are not traced."""
    return None if current_caller().is_row else _current.get()
