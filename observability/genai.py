"""The only module that knows OpenTelemetry's names for generative AI, and how we fill them.

The conventions are still in development and rename things; so the names stand here once, a test
compares them with the installed package, and a rename is an edit of this file.

A model call is one CLIENT span ``"<operation> <model>"`` around the request to Triton. Triton's own
spans end when the model accepts a request, so this span is the one that covers the generation.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Final, Literal

from opentelemetry import trace
from opentelemetry.trace import Span, SpanKind
from opentelemetry.util.types import AttributeValue

__all__ = [
    "CONVENTIONS",
    "PROVIDER",
    "UPSTREAM_PROVIDER",
    "Operation",
    "model_call_span",
    "set_content",
    "set_error",
    "set_request",
    "set_response",
    "span_name",
]

CONVENTIONS: Final = "opentelemetry-semantic-conventions 0.66b2"
"""The version of the conventions whose names these are."""

PROVIDER: Final = "nvidia.triton"
"""Value of ``gen_ai.provider.name``; the conventions list none for Triton and allow any."""

UPSTREAM_PROVIDER: Final = "openai"
"""The same of whatever speaks OpenAI's protocol: the conventions ask for the best that is known."""

Operation = Literal["chat", "text_completion", "embeddings"]

# Attributes of the conventions.
OPERATION_NAME: Final = "gen_ai.operation.name"
PROVIDER_NAME: Final = "gen_ai.provider.name"
REQUEST_MODEL: Final = "gen_ai.request.model"
REQUEST_MAX_TOKENS: Final = "gen_ai.request.max_tokens"
REQUEST_TEMPERATURE: Final = "gen_ai.request.temperature"
REQUEST_TOP_P: Final = "gen_ai.request.top_p"
REQUEST_TOP_K: Final = "gen_ai.request.top_k"
REQUEST_SEED: Final = "gen_ai.request.seed"
REQUEST_STREAM: Final = "gen_ai.request.stream"
OUTPUT_TYPE: Final = "gen_ai.output.type"
CONVERSATION_ID: Final = "gen_ai.conversation.id"
RESPONSE_ID: Final = "gen_ai.response.id"
RESPONSE_MODEL: Final = "gen_ai.response.model"
RESPONSE_FINISH_REASONS: Final = "gen_ai.response.finish_reasons"
RESPONSE_TIME_TO_FIRST_CHUNK: Final = "gen_ai.response.time_to_first_chunk"
USAGE_INPUT_TOKENS: Final = "gen_ai.usage.input_tokens"
USAGE_OUTPUT_TOKENS: Final = "gen_ai.usage.output_tokens"
USAGE_CACHE_READ_INPUT_TOKENS: Final = "gen_ai.usage.cache_read.input_tokens"
INPUT_MESSAGES: Final = "gen_ai.input.messages"
OUTPUT_MESSAGES: Final = "gen_ai.output.messages"
ERROR_TYPE: Final = "error.type"
SERVER_ADDRESS: Final = "server.address"
SERVER_PORT: Final = "server.port"

# Metrics of the conventions; `metrics.py` exposes what they mean under Prometheus names.
METRIC_TOKEN_USAGE: Final = "gen_ai.client.token.usage"  # noqa: S105 - a metric, no secret
METRIC_OPERATION_DURATION: Final = "gen_ai.client.operation.duration"
METRIC_TIME_TO_FIRST_CHUNK: Final = "gen_ai.client.operation.time_to_first_chunk"

# Ours, beside them: how the engine spent the time, and what a resumed attempt did not repeat.
ENGINE_QUEUE_MS: Final = "overline.engine.queue_ms"
ENGINE_FIRST_TOKEN_MS: Final = "overline.engine.first_token_ms"  # noqa: S105 - a name, no secret
ENGINE_TOTAL_MS: Final = "overline.engine.total_ms"
RESUMED_TOKENS: Final = "overline.resumed_tokens"


def span_name(model: str, operation: Operation = "text_completion") -> str:
    """Return the name that the conventions give the span of a model call."""
    return f"{operation} {model}"


@contextmanager
def model_call_span(
    model: str,
    operation: Operation = "text_completion",
    *,
    server: str | None = None,
    provider: str = PROVIDER,
) -> Iterator[Span]:
    """Open the span of one model call; an exception marks it as failed and goes on.

    Args:
        model: Registered name of the model.
        operation: ``text_completion`` for token ids to Triton, ``embeddings`` for vectors.
        server: Triton replica, ``host:port``, or an upstream's URL.
        provider: Who runs the engine.
    """
    with trace.get_tracer(__name__).start_as_current_span(
        span_name(model, operation),
        kind=SpanKind.CLIENT,
        attributes={
            OPERATION_NAME: operation,
            PROVIDER_NAME: provider,
            REQUEST_MODEL: model,
            **_server(server),
        },
    ) as span:
        try:
            yield span
        except BaseException as error:
            # A cancelled call is no Exception; without this it would look like a success. A code
            # that the block set tells more than the class, so it stays.
            if not _has_error(span):
                set_error(span, type(error).__name__)
            raise


def set_request(
    span: Span,
    *,
    model: str,
    operation: Operation = "text_completion",
    max_tokens: int | None = None,
    temperature: float | None = None,
    top_p: float | None = None,
    top_k: int | None = None,
    seed: int | None = None,
    stream: bool = True,
    output_type: Literal["text", "json"] = "text",
    conversation_id: str | None = None,
    resumed_tokens: int = 0,
    provider: str = PROVIDER,
) -> None:
    """Say what was asked.

    Args:
        span: Span of the call.
        model: Registered name of the model.
        operation: What the model does.
        max_tokens: Longest answer, in tokens.
        temperature: Softmax temperature.
        top_p: Probability mass kept.
        top_k: Candidates kept, in tokens.
        seed: Seed of the sampler.
        stream: Whether tokens come as they are made.
        output_type: ``json`` if a schema or grammar binds the answer.
        conversation_id: The task's id.
        resumed_tokens: Tokens of earlier attempts that are not generated again.
        provider: Who runs the engine.
    """
    _set(
        span,
        {
            OPERATION_NAME: operation,
            PROVIDER_NAME: provider,
            REQUEST_MODEL: model,
            REQUEST_MAX_TOKENS: max_tokens,
            REQUEST_TEMPERATURE: temperature,
            REQUEST_TOP_P: top_p,
            REQUEST_TOP_K: top_k or None,
            REQUEST_SEED: seed,
            REQUEST_STREAM: stream,
            OUTPUT_TYPE: output_type,
            CONVERSATION_ID: conversation_id,
            RESUMED_TOKENS: resumed_tokens or None,
        },
    )


def set_response(
    span: Span,
    *,
    model: str,
    input_tokens: int,
    output_tokens: int,
    cached_tokens: int = 0,
    finish_reason: str | None = None,
    response_id: str | None = None,
    first_chunk_s: float | None = None,
    queue_ms: float | None = None,
    first_token_ms: float | None = None,
    total_ms: float | None = None,
) -> None:
    """Say what came back.

    Args:
        span: Span of the call.
        model: Model that answered.
        input_tokens: All prompt tokens, cached ones included, as the conventions count them.
        output_tokens: Tokens this attempt generated.
        cached_tokens: Prompt tokens the engine took from its prefix cache.
        finish_reason: ``stop``, ``length`` or ``cancelled``.
        response_id: Request id at the engine.
        first_chunk_s: Seconds from sending the request to the first chunk, seen by the client.
        queue_ms: Engine's time in queue, in milliseconds.
        first_token_ms: Engine's time to the first token, in milliseconds.
        total_ms: Engine's whole time, in milliseconds.
    """
    _set(
        span,
        {
            RESPONSE_MODEL: model,
            RESPONSE_ID: response_id,
            RESPONSE_FINISH_REASONS: (finish_reason,) if finish_reason else None,
            RESPONSE_TIME_TO_FIRST_CHUNK: first_chunk_s,
            USAGE_INPUT_TOKENS: input_tokens,
            USAGE_OUTPUT_TOKENS: output_tokens,
            USAGE_CACHE_READ_INPUT_TOKENS: cached_tokens,
            ENGINE_QUEUE_MS: queue_ms,
            ENGINE_FIRST_TOKEN_MS: first_token_ms,
            ENGINE_TOTAL_MS: total_ms,
        },
    )


def set_error(span: Span, error_type: str) -> None:
    """Mark the call as failed by an error of a bounded kind: a class name or one of our codes."""
    span.set_attribute(ERROR_TYPE, error_type)
    span.set_status(trace.StatusCode.ERROR)


def set_content(
    span: Span,
    *,
    trace_prompts: bool,
    messages: Sequence[tuple[str, str]] = (),
    answer: str | None = None,
    finish_reason: str = "stop",
) -> None:
    """Put prompt and answer on the span, if the operator opted in; else do nothing.

    Args:
        span: Span of the call.
        trace_prompts: ``settings.trace_prompts``. Required, so that no caller forgets to ask.
        messages: Role and text of each message of the prompt.
        answer: Text of the answer.
        finish_reason: Why the answer ended.
    """
    if not trace_prompts or not span.is_recording():
        return
    if messages:
        span.set_attribute(
            INPUT_MESSAGES,
            json.dumps([_message(role, text) for role, text in messages], ensure_ascii=False),
        )
    if answer is not None:
        output = {**_message("assistant", answer), "finish_reason": finish_reason}
        span.set_attribute(OUTPUT_MESSAGES, json.dumps([output], ensure_ascii=False))


def _has_error(span: Span) -> bool:
    attributes = getattr(span, "attributes", None) or {}
    return ERROR_TYPE in attributes


def _server(address: str | None) -> dict[str, AttributeValue]:
    if not address:
        return {}
    host, _, port = address.rpartition(":")
    if not port.isdigit():
        return {SERVER_ADDRESS: address}
    return {SERVER_ADDRESS: host, SERVER_PORT: int(port)}


def _message(role: str, text: str) -> dict[str, object]:
    return {"role": role, "parts": [{"type": "text", "content": text}]}


def _set(span: Span, values: Mapping[str, AttributeValue | None]) -> None:
    span.set_attributes({name: value for name, value in values.items() if value is not None})
