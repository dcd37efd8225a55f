"""What makes the spans of traces: `tampu.server.features.tracing.otlp` is one."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Protocol

from tampu.server.serving.tracing import Attributes

if TYPE_CHECKING:
    from opentelemetry.trace import Span


class Tracer(Protocol):
    """Makes spans and sends them; see `tampu.server.features.tracing.otlp`."""

    def request_span(self, name: str, headers: Mapping[str, str], attributes: Attributes) -> Span:
        """Return a span of a client's request, in the client's trace if the headers name one."""

    def span(
        self, name: str, parent: Span, began_ns: int, attributes: Attributes, *, is_call: bool
    ) -> Span:
        """Return a span within another one; `is_call`: of a model."""

    def fail(self, span: Span, error: str) -> None:
        """Mark a span as failed."""

    def close(self) -> None:
        """Send what is left, and end."""
