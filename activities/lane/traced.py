"""The span of one attempt of a call."""

from __future__ import annotations

from typing import Any
from uuid import UUID

from opentelemetry.trace import Span, SpanKind

from activities.lane.options import Option
from activities.lane.runs import Ended
from observability import genai
from observability.spans import identify, tracer
from workflows.contracts.call import CallSpec

__all__ = ["CallSpan"]


class CallSpan:
    """Begins when it is made; ends once."""

    def __init__(self, option: Option, spec: CallSpec, task_id: UUID, *, max_tokens: int) -> None:
        """Begin it, for a candidate that is asked."""
        asked = spec.parameters
        operation: Any = "chat" if spec.prompt is None else "text_completion"
        self._model = option.name
        self._span: Span | None = tracer(__name__).start_span(
            genai.span_name(option.name, operation), kind=SpanKind.CLIENT
        )
        if not self._span.is_recording():
            return
        genai.set_request(
            self._span,
            model=option.name,
            operation=operation,
            max_tokens=max_tokens,
            temperature=asked.get("temperature"),
            top_p=asked.get("top_p"),
            conversation_id=str(task_id),
            provider=genai.UPSTREAM_PROVIDER if option.is_upstream else genai.PROVIDER,
        )
        identify(self._span, call_key=f"{task_id}:1", epoch=1)

    def fail(self, error: str) -> None:
        """End it with a failure."""
        span, self._span = self._span, None
        if span is not None:
            genai.set_error(span, error)
            span.end()

    def succeed(self, end: Ended, *, key: str, answer: str, trace_prompts: bool) -> None:
        """End it with what was made.

        Args:
            end: How the attempt ended.
            key: Its generation.
            answer: What was said, as it is kept.
            trace_prompts: Whether a trace may have that.
        """
        span, self._span = self._span, None
        if span is None:
            return
        if span.is_recording():
            genai.set_response(
                span,
                model=self._model,
                finish_reason=end.finish_reason,
                response_id=f"{key}@1",
                input_tokens=end.usage.prompt_tokens,
                output_tokens=end.usage.completion_tokens,
                cached_tokens=end.usage.cached_tokens,
                queue_ms=end.timings.queue_ms,
                first_token_ms=end.timings.first_token_ms,
                total_ms=end.timings.duration_ms,
            )
            genai.set_content(
                span, trace_prompts=trace_prompts, answer=answer, finish_reason=end.finish_reason
            )
        span.end()
