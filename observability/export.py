"""The last step before spans leave the process: without secrets, and failures counted."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

from opentelemetry.sdk.trace import Event, ReadableSpan
from opentelemetry.sdk.trace.export import SpanExporter, SpanExportResult
from opentelemetry.trace import Status
from opentelemetry.util.types import AttributeValue

__all__ = ["CleanExporter"]


class CleanExporter(SpanExporter):
    """Redacts text on spans, then exports; knows how many exports failed.

    OpenTelemetry records exceptions with message and stack, and libraries quote secrets in those.
    The SDK's flush says "done" even when the collector refused everything, hence the count.
    """

    def __init__(self, inner: SpanExporter, redact: Callable[[str], str]) -> None:
        self._inner = inner
        self._redact = redact
        self.failures = 0

    def export(self, spans: Sequence[ReadableSpan]) -> SpanExportResult:
        """Export copies of the spans without secrets."""
        result = self._inner.export([self._clean(span) for span in spans])
        if result is not SpanExportResult.SUCCESS:
            self.failures += 1
        return result

    def shutdown(self) -> None:
        """Shut the inner exporter down."""
        self._inner.shutdown()

    def force_flush(self, timeout_millis: int = 30_000) -> bool:
        """Flush the inner exporter."""
        return self._inner.force_flush(timeout_millis)

    def _clean(self, span: ReadableSpan) -> ReadableSpan:
        description = span.status.description
        return ReadableSpan(
            name=self._redact(span.name),
            context=span.context,
            parent=span.parent,
            resource=span.resource,
            attributes=self._attributes(span.attributes),
            events=[
                Event(event.name, self._attributes(event.attributes), event.timestamp)
                for event in span.events
            ],
            links=span.links,
            kind=span.kind,
            status=(
                Status(span.status.status_code, self._redact(description))
                if description
                else span.status
            ),
            start_time=span.start_time,
            end_time=span.end_time,
            instrumentation_scope=span.instrumentation_scope,
        )

    def _attributes(
        self, attributes: Mapping[str, AttributeValue] | None
    ) -> dict[str, AttributeValue]:
        return {
            key: self._redact(value) if isinstance(value, str) else value
            for key, value in (attributes or {}).items()
        }
