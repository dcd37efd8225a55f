"""Sends traces to an OpenTelemetry collector, by OTLP over HTTP.

opentelemetry's own variables apply, such as OTEL_SERVICE_NAME, OTEL_RESOURCE_ATTRIBUTES,
OTEL_TRACES_SAMPLER and OTEL_EXPORTER_OTLP_HEADERS. Spans are sent by a thread, some seconds later,
many at once; where the collector does not accept them, they are lost, and one line of the log says
so.
"""

from __future__ import annotations

from collections.abc import Mapping

from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter
from opentelemetry.sdk.resources import OTELResourceDetector, Resource
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import BatchSpanProcessor
from opentelemetry.trace import Span, SpanKind, StatusCode, set_span_in_context
from opentelemetry.trace.propagation.tracecontext import TraceContextTextMapPropagator

from tampu.server.serving.tracing import Attributes
from tampu.version import __version__

_EXPORT_SECONDS = 5.0


class OTLPTracer:
    """Makes spans and sends them; see `Tracer`."""

    def __init__(self, endpoint: str) -> None:
        """Send them to the collector at this URL, whose path gets `/v1/traces`."""
        own = Resource({"service.name": "tampu", "service.version": __version__})
        self._provider = TracerProvider(resource=own.merge(OTELResourceDetector().detect()))
        url = f"{endpoint.rstrip('/')}/v1/traces"
        exporter = OTLPSpanExporter(endpoint=url, timeout=_EXPORT_SECONDS)
        self._provider.add_span_processor(BatchSpanProcessor(exporter))
        self._tracer = self._provider.get_tracer("tampu", __version__)
        self._propagator = TraceContextTextMapPropagator()

    def request_span(self, name: str, headers: Mapping[str, str], attributes: Attributes) -> Span:
        """Return a span of a client's request, in the client's trace if the headers name one."""
        given = {key: headers[key] for key in ("traceparent", "tracestate") if key in headers}
        context = self._propagator.extract(given)
        return self._tracer.start_span(
            name, context=context, kind=SpanKind.SERVER, attributes=attributes
        )

    def span(
        self, name: str, parent: Span, began_ns: int, attributes: Attributes, *, is_call: bool
    ) -> Span:
        """Return a span within another one; `is_call`: of a model."""
        return self._tracer.start_span(
            name,
            context=set_span_in_context(parent),
            kind=SpanKind.CLIENT if is_call else SpanKind.INTERNAL,
            attributes=attributes,
            start_time=began_ns,
        )

    def fail(self, span: Span, error: str) -> None:
        """Mark a span as failed."""
        span.set_attribute("error.type", error)
        span.set_status(StatusCode.ERROR)

    def close(self) -> None:
        """Send what is left, and end."""
        self._provider.shutdown()
