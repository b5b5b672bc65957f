"""Where a public caller's trace context stops.

FastAPI takes ``traceparent`` and ``baggage`` from a request before any middleware runs, through
OpenTelemetry's global propagator. Obeyed, they would let a caller join strangers' traces, switch
ours off (``sampled=0``) and send text on to the engine. The propagator in here notes the caller's
span under a key of our own instead, so the request begins a new root with our own sampling, and a
processor links that root to the caller's span: their ids are found, and rule nothing.

Inside, Temporal's plugin and ``spans.trace_carrier`` use propagators of their own.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from opentelemetry import trace
from opentelemetry.context import Context, create_key, get_value, set_value
from opentelemetry.propagators.textmap import (
    CarrierT,
    Getter,
    Setter,
    TextMapPropagator,
    default_getter,
    default_setter,
)
from opentelemetry.sdk.trace import Span, SpanProcessor
from opentelemetry.trace import SpanContext
from opentelemetry.trace.propagation.tracecontext import TraceContextTextMapPropagator

__all__ = ["LINK_KIND", "BoundaryPropagator", "CallerLink"]

LINK_KIND: Final[Mapping[str, str]] = {"overline.link": "caller"}
_CALLER: Final = create_key("overline.caller")
_W3C: Final = TraceContextTextMapPropagator()


class BoundaryPropagator(TextMapPropagator):
    """W3C trace context outwards; inwards only a note of who called."""

    def extract(
        self,
        carrier: CarrierT,
        context: Context | None = None,
        getter: Getter[CarrierT] = default_getter,
    ) -> Context:
        """Return a context without parent and baggage, with the caller's span set aside."""
        claimed = trace.get_current_span(_W3C.extract(carrier, Context(), getter))
        caller = claimed.get_span_context()
        ours = Context() if context is None else context
        if not caller.is_valid:
            return ours
        # No trace state: its text is the caller's.
        noted = SpanContext(caller.trace_id, caller.span_id, is_remote=True)
        return set_value(_CALLER, noted, ours)

    def inject(
        self,
        carrier: CarrierT,
        context: Context | None = None,
        setter: Setter[CarrierT] = default_setter,
    ) -> None:
        """Write the current span as ``traceparent``."""
        _W3C.inject(carrier, context, setter)

    @property
    def fields(self) -> set[str]:
        """Header names this propagator writes."""
        return _W3C.fields


class CallerLink(SpanProcessor):
    """Links the root span of a request to the span of its caller."""

    def on_start(self, span: Span, parent_context: Context | None = None) -> None:
        """Add the link to a root that began under a noted caller."""
        if span.parent is not None:
            return
        caller = get_value(_CALLER, parent_context)
        if isinstance(caller, SpanContext):
            span.add_link(caller, LINK_KIND)
