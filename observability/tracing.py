"""Sets tracing up, once a process, in the one order that was found right.

Call ``setup_tracing`` in the entry point, before the Temporal client connects and before FastAPI
serves, and ``Tracing.shutdown`` after the worker or server is out. Never at module level of a file
that holds workflows: Temporal's sandbox runs such a file again.
"""

from __future__ import annotations

import logging
import os
import socket
import threading
import time
from collections.abc import Callable, Sequence
from importlib import metadata
from types import TracebackType
from typing import Final

from opentelemetry import propagate, trace
from opentelemetry.context import Context
from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter
from opentelemetry.sdk.resources import Resource
from opentelemetry.sdk.trace import SpanLimits, sampling
from opentelemetry.sdk.trace.export import BatchSpanProcessor, SpanExporter
from opentelemetry.trace import Link, SpanKind, TraceState
from opentelemetry.util.types import Attributes
from temporalio import activity, workflow
from temporalio.contrib.opentelemetry import (
    OpenTelemetryPlugin,
    ReplaySafeTracerProvider,
    create_tracer_provider,
)

from observability.boundary import BoundaryPropagator, CallerLink
from observability.export import CleanExporter
from observability.guard import ActivityMarker, ReplayGuard
from observability.redaction import Redactor, secrets_of
from observability.spans import current_trace_id, identify, trace_carrier, tracer
from settings import Settings

__all__ = [
    "Tracing",
    "current_trace_id",
    "identify",
    "setup_tracing",
    "trace_carrier",
    "tracer",
]

_log = logging.getLogger(__name__)
_lock = threading.Lock()
_installed: Tracing | None = None

EXPORT_TIMEOUT_S: Final = 5.0
"""Longest one export may take, retries included, in seconds."""

_LIMITS: Final = SpanLimits(
    max_span_attributes=64,
    max_events=64,
    max_links=16,
    # Long enough for a traced prompt to be of use, short enough for a collector's message limit.
    max_attribute_length=16_384,
)


class Tracing:
    """The tracing of one process. Use ``setup_tracing``; a bare one is not installed.

    Args:
        service: Name of the process kind, such as ``overline-api``.
        settings: ``otlp_endpoint`` decides whether spans leave the process.
    """

    def __init__(self, service: str, settings: Settings) -> None:
        self._redact = Redactor(secrets_of(settings))
        self._exporters: list[CleanExporter] = []
        self._closed = False
        self.provider: ReplaySafeTracerProvider = create_tracer_provider(
            # A caller's own flag never arrives here (`boundary`): roots are ours.
            sampler=sampling.ParentBased(_WhenExported(self._exporters)),
            resource=Resource.create(
                {
                    "service.name": service,
                    "service.namespace": "overline",
                    "service.version": _version(),
                    "service.instance.id": f"{socket.gethostname()}/{os.getpid()}",
                }
            ),
            # The SDK's own exit hook waits up to 30 s for a collector that is down.
            shutdown_on_exit=False,
            span_limits=_LIMITS,
        )
        self.provider.add_span_processor(CallerLink())
        self.provider.add_span_processor(ActivityMarker())
        if settings.otlp_endpoint:
            self.add_exporter(
                OTLPSpanExporter(
                    endpoint=_traces_url(settings.otlp_endpoint), timeout=EXPORT_TIMEOUT_S
                )
            )

    def add_exporter(self, exporter: SpanExporter, *, delay_s: float = 2.0) -> None:
        """Send spans to one more place, in batches, behind the guard.

        Args:
            exporter: Where to.
            delay_s: Longest time a span waits for its batch, in seconds.
        """
        clean = CleanExporter(exporter, self._redact)
        self._exporters.append(clean)
        # Batches are exported by a thread of their own. An exporter called within a workflow's
        # thread would have the sandbox's restrictions and lose its spans.
        batches = BatchSpanProcessor(clean, schedule_delay_millis=delay_s * 1000)
        self.provider.add_span_processor(ReplayGuard(batches))

    def temporal_plugin(self) -> OpenTelemetryPlugin:
        """Return the plugin for ``Client.connect(plugins=[…])``: the client only.

        Workers take it from their client; given to both it doubles every span. Also stops
        Temporal's loggers from writing their context into the message, as the log lines carry it
        in fields.
        """
        activity.logger.activity_info_on_message = False
        workflow.logger.workflow_info_on_message = False
        return OpenTelemetryPlugin(add_temporal_spans=True)

    def flush(self, timeout_s: float = 5.0) -> bool:
        """Export what is pending; log and return False when that fails or takes longer."""
        failures = self._failures()
        done = _bounded(self.provider.force_flush, timeout_s)
        ok = done is True and self._failures() == failures
        if not ok and not self._closed:
            _log.warning(
                "spans could not be flushed within %.1f s; traces have gaps, accounts do not",
                timeout_s,
            )
        return ok

    def shutdown(self, timeout_s: float = 5.0) -> bool:
        """Flush, then stop exporting; in all at most ``timeout_s`` seconds. Safe to call twice."""
        if self._closed:
            return True
        begun = time.monotonic()
        flushed = self.flush(timeout_s)
        self._closed = True
        remaining = max(0.1, timeout_s - (time.monotonic() - begun))
        stopped = _bounded(self.provider.shutdown, remaining) is not _TIMED_OUT
        return flushed and stopped

    def __enter__(self) -> Tracing:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self.shutdown()

    def _failures(self) -> int:
        return sum(exporter.failures for exporter in self._exporters)


class _WhenExported(sampling.Sampler):
    """Samples every trace if spans go anywhere.

    Else they have ids, which logs and ledger need, and cost next to nothing: no attributes, no
    formatted stacks.
    """

    def __init__(self, exporters: Sequence[CleanExporter]) -> None:
        self._exporters = exporters

    def should_sample(
        self,
        parent_context: Context | None,
        trace_id: int,
        name: str,
        kind: SpanKind | None = None,
        attributes: Attributes = None,
        links: Sequence[Link] | None = None,
        trace_state: TraceState | None = None,
    ) -> sampling.SamplingResult:
        """Decide for one root."""
        always = sampling.ALWAYS_ON if self._exporters else sampling.ALWAYS_OFF
        return always.should_sample(parent_context, trace_id, name, kind, attributes, links)

    def get_description(self) -> str:
        """Return the sampler's name."""
        return "WhenExported"


def setup_tracing(service: str, settings: Settings) -> Tracing:
    """Install tracing in this process and return it.

    Without ``settings.otlp_endpoint`` nothing is exported, but spans have ids all the same, which
    logs and the ledger record. A second call returns the first call's result: OpenTelemetry lets
    a process set its provider once.

    Args:
        service: Name of the process kind, such as ``overline-worker``.
        settings: Effective settings.

    Raises:
        RuntimeError: Other code set a tracer provider before.
    """
    global _installed
    with _lock:
        if _installed is not None:
            return _installed
        tracing = Tracing(service, settings)
        trace.set_tracer_provider(tracing.provider)
        if trace.get_tracer_provider() is not tracing.provider:
            raise RuntimeError("a tracer provider was set before Overline's; call us first")
        propagate.set_global_textmap(BoundaryPropagator())
        _installed = tracing
        return tracing


_TIMED_OUT: Final = object()


def _bounded(action: Callable[[], object], timeout_s: float) -> object:
    """Run an action whose own time limit the SDK ignores; return its result or ``_TIMED_OUT``."""
    result: list[object] = []

    def run() -> None:
        result.append(action())

    thread = threading.Thread(target=run, name="overline-tracing-flush", daemon=True)
    thread.start()
    thread.join(timeout_s)
    return result[0] if result else _TIMED_OUT


def _traces_url(base: str) -> str:
    """Return the URL for spans under an OTLP/HTTP base URL, which may already be that URL."""
    base = base.rstrip("/")
    return base if base.endswith("/v1/traces") else f"{base}/v1/traces"


def _version() -> str:
    try:
        return metadata.version("overline")
    except metadata.PackageNotFoundError:  # run from a checkout that is not installed
        return "0+checkout"
