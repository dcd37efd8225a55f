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
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from tampu.engine.events import Reply
from tampu.engine.prompts import ChatPrompt
from tampu.engine.request import Request, Result
from tampu.engine.requests import Decide, Embed, Rerank
from tampu.runner.events import Done, Usage
from tampu.server.features.tracing.tracer import Tracer
from tampu.server.serving.generation_request import GenerationRequest, ModelCall
from tampu.server.serving.tracing import Attributes, Value

if TYPE_CHECKING:
    from opentelemetry.trace import Span

_OPERATIONS: dict[type[Request[Any]], str] = {
    Embed: "embeddings",
    Decide: "decisions",
    Rerank: "decisions",
}


class RequestSpans:
    """The trace of one HTTP request.

    Attributes:
        model: the use of a model that is under way; None: there is none.
    """

    def __init__(self, tracer: Tracer, span: Span) -> None:
        self._tracer = tracer
        self._span = span
        self.model: ModelSpans | None = None

    @contextmanager
    def use(self, model: str, call: GenerationRequest | ModelCall[Any]) -> Iterator[ModelSpans]:
        """Trace a request to the model of this name until this ends."""
        operation = _operation_of(call)
        known = {"gen_ai.operation.name": operation, "gen_ai.provider.name": "tampu"}
        known |= {"gen_ai.request.model": model, "gen_ai.response.model": model}
        name, attributes = f"{operation} {model}", {**known, **_attributes_of(call)}
        span = self._tracer.span(name, self._span, time.time_ns(), attributes, is_call=True)
        found = self.model = ModelSpans(self._tracer, span)
        error: BaseException | None = None
        try:
            yield found
        except BaseException as raised:
            error = raised
            raise
        finally:
            self.model = None
            found.end(error)


class ModelSpans:
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
            self._used(event.usage)
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
        self._used(usage)

    def _used(self, usage: Usage) -> None:
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


def _operation_of(request: GenerationRequest | ModelCall[Any]) -> str:
    """Return the operation of a request, as the semantic conventions name it."""
    if isinstance(request, ModelCall):
        return _OPERATIONS.get(type(request.request), type(request.request).__name__.lower())
    is_chat = all(isinstance(prompt, ChatPrompt) for prompt in request.prompts)
    return "chat" if is_chat else "text_completion"


def _attributes_of(request: GenerationRequest | ModelCall[Any]) -> Attributes:
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
