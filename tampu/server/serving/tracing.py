"""Traces of requests, as OpenTelemetry has them; off unless an endpoint is set.

A request with a W3C `traceparent` is part of its client's trace. Its spans, each within the one
before it: the HTTP request; the use of a model, named and described as the semantic conventions for
generative AI say; and in this `load`, if a model had to be loaded, and for each choice `route`, if
there are replicas, `queue`, `prompt` and `answer`, with the batches in which it was computed. The
last three are placed by the durations that the model's process reports, so that no clocks of other
machines matter. Nothing of a prompt or an answer is in a trace.

Source: "Semantic conventions for generative client AI spans" and "for HTTP spans".
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from typing import TYPE_CHECKING, Any

from tampu.engine.events import Reply
from tampu.engine.prompts import ChatPrompt
from tampu.engine.request import Request, Result
from tampu.engine.requests import Decide, Embed, Rerank
from tampu.runner.events import Done, Usage
from tampu.server.front.caller import current_caller
from tampu.server.serving.generation_request import GenerationRequest, ModelCall
from tampu.server.serving.tracer import Attributes, Tracer, Value

if TYPE_CHECKING:
    from opentelemetry.trace import Span

_OPERATIONS: dict[type[Request[Any]], str] = {
    Embed: "embeddings",
    Decide: "decisions",
    Rerank: "decisions",
}


class RequestTrace:
    """The trace of one HTTP request.

    Attributes:
        model: the use of a model that is under way; None: there is none.
    """

    def __init__(self, tracer: Tracer, span: Span) -> None:
        self.tracer = tracer
        self.span = span
        self.model: ModelTrace | None = None


class ModelTrace:
    """The span of a use of a model, and those within."""

    def __init__(self, tracer: Tracer, span: Span) -> None:
        self._tracer = tracer
        self._reasons: list[str] = []
        self._usage = [0, 0, 0]
        self.span = span

    def part(self, name: str, began_ns: int, ended_ns: int, attributes: Attributes) -> None:
        """Add a span within this one; times are in nanoseconds since 1970."""
        span = self._tracer.span(name, self.span, began_ns, attributes, is_call=False)
        span.end(ended_ns)

    def loaded(self, model: str, began_ns: int) -> None:
        """Add the span of a model's loading, which ends now."""
        self.part("load", began_ns, time.time_ns(), {"gen_ai.request.model": model})

    def reply(self, event: Reply) -> None:
        """Add the tokens of a result, or the spans of a choice that is complete."""
        if isinstance(event, Result):
            self.used(event.usage)
        if not isinstance(event, Done) or event.reason == "load":
            return
        usage, choice = event.usage, {"tampu.choice": event.choice}
        ended = time.time_ns()
        answer = ended - usage.generated_ns
        prompt = answer - usage.prompt_ns
        queue = min(ended - usage.total_ns, prompt)
        batches: dict[str, Value] = {}
        if event.batches is not None:
            first, given, last = event.batches.first, event.batches.answer, event.batches.last
            batches = {"tampu.batch.first": first, "tampu.batch.last": given or last}
        self.part("queue", queue, prompt, choice)
        own = {"gen_ai.usage.input_tokens": usage.prompt_tokens}
        own["gen_ai.usage.cache_read.input_tokens"] = usage.cached_tokens
        self.part("prompt", prompt, answer, {**choice, **own, **batches})
        if event.batches is not None and event.batches.answer:
            batches = {"tampu.batch.first": event.batches.answer}
            batches["tampu.batch.last"] = event.batches.last
        own = {"gen_ai.usage.output_tokens": usage.generated_tokens}
        self.part("answer", answer, ended, {**choice, **own, **batches})
        self._reasons.append(event.reason)
        self.used(usage)

    def used(self, usage: Usage) -> None:
        """Add tokens to those of the whole use."""
        given = (usage.prompt_tokens, usage.cached_tokens, usage.generated_tokens)
        self._usage = [before + more for before, more in zip(self._usage, given, strict=True)]

    def end(self, error: BaseException | None) -> None:
        """End the span."""
        prompt, cached, generated = self._usage
        self.span.set_attribute("gen_ai.usage.input_tokens", prompt)
        self.span.set_attribute("gen_ai.usage.cache_read.input_tokens", cached)
        self.span.set_attribute("gen_ai.usage.output_tokens", generated)
        if self._reasons:
            self.span.set_attribute("gen_ai.response.finish_reasons", self._reasons)
        if error is not None:
            self._tracer.fail(self.span, type(error).__name__)
        self.span.end()


_current: ContextVar[RequestTrace | None] = ContextVar("trace", default=None)


@contextmanager
def request_trace(tracer: Tracer, span: Span) -> Iterator[None]:
    """Trace what is done for a request until this ends."""
    token = _current.set(RequestTrace(tracer, span))
    try:
        yield
    finally:
        _current.reset(token)


def current_model() -> ModelTrace | None:
    """Return the use of a model of the request that is being served; None: it is not traced."""
    trace = _current.get()
    return None if trace is None or current_caller().is_row else trace.model


@contextmanager
def model_trace(
    operation: str, model: str, attributes: Callable[[], Attributes] = dict
) -> Iterator[ModelTrace | None]:
    """Trace the use of a model until this ends; None: the request is not traced.

    Args:
        operation: `chat`, `embeddings`, or another one of the semantic conventions.
        model: its name.
        attributes: returns more attributes of the span.
    """
    trace = _current.get()
    if trace is None or current_caller().is_row:  # a batch's task has its request's context
        yield None
        return
    known = {"gen_ai.operation.name": operation, "gen_ai.provider.name": "tampu"}
    known |= {"gen_ai.request.model": model, "gen_ai.response.model": model}
    name, told = f"{operation} {model}", {**known, **attributes()}
    span = trace.tracer.span(name, trace.span, time.time_ns(), told, is_call=True)
    found = trace.model = ModelTrace(trace.tracer, span)
    error: BaseException | None = None
    try:
        yield found
    except BaseException as raised:
        error = raised
        raise
    finally:
        trace.model = None
        found.end(error)


def operation_of(request: GenerationRequest | ModelCall[Any]) -> str:
    """Return the operation of a request, as the semantic conventions name it."""
    if isinstance(request, ModelCall):
        return _OPERATIONS.get(type(request.request), type(request.request).__name__.lower())
    is_chat = all(isinstance(prompt, ChatPrompt) for prompt in request.prompts)
    return "chat" if is_chat else "text_completion"


def attributes_of(request: GenerationRequest | ModelCall[Any]) -> Attributes:
    """Return the attributes of a request, as the semantic conventions name them."""
    if isinstance(request, ModelCall):
        return {}
    options = request.options
    known = {
        "temperature": options.temperature,
        "top_p": options.top_p,
        "top_k": options.top_k,
        "max_tokens": options.max_tokens,
        "seed": options.seed,
        "frequency_penalty": options.frequency_penalty,
        "presence_penalty": options.presence_penalty,
        "choice.count": request.choices,
    }
    return {f"gen_ai.request.{name}": value for name, value in known.items() if value is not None}
