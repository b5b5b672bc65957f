"""Spans for the code that does the work: no set-up, and no knowledge of Temporal.

Works before and without set-up: spans are then not recorded and there is no trace id.
"""

from __future__ import annotations

from typing import Final

from opentelemetry import trace
from opentelemetry.trace import Span, Tracer
from opentelemetry.trace.propagation.tracecontext import TraceContextTextMapPropagator

from observability.names import ID_FIELDS, SPAN_PREFIX

__all__ = ["current_trace_id", "identify", "trace_carrier", "tracer"]

_W3C: Final = TraceContextTextMapPropagator()


def tracer(name: str) -> Tracer:
    """Return the tracer of a module; ``name`` is its ``__name__``.

    Ask for it where it is used, not at module level: before set-up it would record nothing.
    """
    return trace.get_tracer(name)


def trace_carrier() -> dict[str, str]:
    """Return the current span as W3C headers, for gRPC metadata: keys are lower case.

    Empty when there is no span. Baggage is left out: it could carry a caller's text to the engine.
    """
    carrier: dict[str, str] = {}
    _W3C.inject(carrier)
    return carrier


def current_trace_id() -> str | None:
    """Return the current trace id, 32 hex digits, or None outside of any span."""
    context = trace.get_current_span().get_span_context()
    return trace.format_trace_id(context.trace_id) if context.is_valid else None


def identify(span: Span | None = None, **ids: str | int | float | bool | None) -> None:
    """Put identifiers on a span (default: the current one) under ``overline.<name>``.

    Raises:
        ValueError: A name is not in ``names.ID_FIELDS``; it could be content.
    """
    target = span or trace.get_current_span()
    for name, value in ids.items():
        if name not in ID_FIELDS:
            raise ValueError(f"{name!r} is no identifier that may get on a span")
        if value is not None:
            target.set_attribute(SPAN_PREFIX + name, value)
