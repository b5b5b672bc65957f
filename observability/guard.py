"""Keeps a workflow's spans from being exported twice, and marks activity attempts.

A workflow's spans are opened again on every replay, with the same ids; Temporal's plugin ends them
only where the workflow really goes on. One case escapes it: a worker that stopped keeps coroutines
of open workflows, and when the garbage collector closes them their ``finally`` ends spans that
another worker will end too, at their true time. Such an end happens in no workflow, or in another
one. So a span says which workflow instance opened it, and is dropped unless it ends in there.

What stays: a span that was complete when its workflow task failed is exported again, with the same
id, by the task's next attempt. Readers keep one span an id.
"""

from __future__ import annotations

import itertools
from typing import Final

from opentelemetry.context import Context
from opentelemetry.sdk.trace import ReadableSpan, Span, SpanProcessor
from temporalio import activity, workflow

__all__ = ["OPENED_IN", "ActivityMarker", "ReplayGuard"]

OPENED_IN: Final = "overline.opened_in"
_MARK: Final = "__overline_workflow_instance"
_instances = itertools.count(1)


def _here() -> str | None:
    """Return the run and instance of the workflow that executes here, or None outside of one.

    The run id alone is not enough: the old instance of a run can be collected while the same
    worker replays that run in a new one.
    """
    if not workflow.in_workflow():
        return None
    instance = workflow.instance()
    number = getattr(instance, _MARK, None)
    if number is None:
        number = next(_instances)
        setattr(instance, _MARK, number)
    return f"{workflow.info().run_id}/{number}"


class ReplayGuard(SpanProcessor):
    """Passes spans on to another processor, except those that end where they did not begin."""

    def __init__(self, inner: SpanProcessor) -> None:
        self._inner = inner

    def on_start(self, span: Span, parent_context: Context | None = None) -> None:
        """Note the workflow instance; an attribute, because ``on_end`` is given a copy."""
        if (here := _here()) is not None:
            span.set_attribute(OPENED_IN, here)
        self._inner.on_start(span, parent_context)

    def on_end(self, span: ReadableSpan) -> None:
        """Pass the span on if it ends in the workflow instance that opened it."""
        opened_in = (span.attributes or {}).get(OPENED_IN)
        if opened_in is None or opened_in == _here():
            self._inner.on_end(span)

    def shutdown(self) -> None:
        """Shut the inner processor down."""
        self._inner.shutdown()

    def force_flush(self, timeout_millis: int = 30_000) -> bool:
        """Flush the inner processor; see ``Tracing.flush`` for a bound that holds."""
        return self._inner.force_flush(timeout_millis)


class ActivityMarker(SpanProcessor):
    """Writes the attempt and the time spent in the task queue on each ``RunActivity`` span.

    Attempts are siblings under one ``StartActivity`` and would else look alike. Waiting has no
    span of its own.
    """

    def on_start(self, span: Span, parent_context: Context | None = None) -> None:
        """Mark a span that Temporal's plugin opens around an attempt."""
        if not span.name.startswith("RunActivity:") or not activity.in_activity():
            return
        info = activity.info()
        waited = info.started_time - info.current_attempt_scheduled_time
        span.set_attributes(
            {
                "overline.attempt": info.attempt,
                "overline.queue_wait_ms": round(waited.total_seconds() * 1000, 3),
                "overline.task_queue": info.task_queue,
            }
        )
