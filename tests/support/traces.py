"""A collector of OpenTelemetry's traces on this machine: OTLP over HTTP."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest
from support.local_http import Answer, LocalServer, Request


@dataclass(frozen=True)
class Span:
    """A span that was received; ids are in hexadecimal digits, times in nanoseconds."""

    name: str
    trace: str
    id: str
    parent: str
    began_ns: int
    ended_ns: int
    attributes: dict[str, Any]
    has_failed: bool


class Collector:
    """What has arrived."""

    def __init__(self, server: LocalServer) -> None:
        self.server = server

    @property
    def url(self) -> str:
        return self.server.url

    def exports(self) -> list[ExportTraceServiceRequest]:
        """Each request that came, as a message."""
        assert {each.path for each in self.server.requests} <= {"/v1/traces"}
        return [ExportTraceServiceRequest.FromString(each.body) for each in self.server.requests]

    def spans(self) -> list[Span]:
        """All spans, the earliest first."""
        found = [
            _span(span)
            for export in self.exports()
            for resource in export.resource_spans
            for scope in resource.scope_spans
            for span in scope.spans
        ]
        return sorted(found, key=lambda span: span.began_ns)

    def span(self, name: str) -> Span:
        """The only span of a name."""
        [found] = [each for each in self.spans() if each.name == name]
        return found


@contextmanager
def collecting() -> Iterator[Collector]:
    """Collect traces until the end."""

    def answer(_: Request) -> Answer:
        return Answer(headers={"content-type": "application/x-protobuf"})

    with LocalServer(answer) as server:
        yield Collector(server)


def _span(span: Any) -> Span:
    return Span(
        span.name,
        span.trace_id.hex(),
        span.span_id.hex(),
        span.parent_span_id.hex(),
        span.start_time_unix_nano,
        span.end_time_unix_nano,
        {each.key: _value(each.value) for each in span.attributes},
        span.status.code == span.status.STATUS_CODE_ERROR,
    )


def _value(value: Any) -> Any:
    kind = value.WhichOneof("value")
    if kind == "array_value":
        return [_value(each) for each in value.array_value.values]
    return getattr(value, kind)
