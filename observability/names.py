"""The names that logs and spans share, so that one search finds both.

An identifier is called ``task_id`` in a log line and ``overline.task_id`` on a span. What is not
listed here does not get into either: an allowlist keeps prompts out where a blocklist would leak.
"""

from __future__ import annotations

__all__ = ["ID_FIELDS", "SPAN_PREFIX"]

SPAN_PREFIX = "overline."

ID_FIELDS = frozenset(
    {
        # who
        "organisation_id",
        "team_id",
        "key_id",
        # which piece of work
        "task_id",
        "step",
        "call_key",
        "candidate",
        "generation_key",
        "epoch",
        "attempt",
        "request_id",
        "workflow_id",
        "run_id",
        "activity_type",
        "collection_id",
        "document_id",
        "version",
        # where it ran
        "model",
        "deployment",
        "replica",
        "part",
        "pid",
        "port",
        "url",
        # how it went
        "outcome",
        "status",
        "code",
        "scope",
        "cause",
        "finish_reason",
        "duration_ms",
        "first_token_ms",
        "queue_ms",
        "prompt_tokens",
        "cached_tokens",
        "completion_tokens",
        "resumed_tokens",
        "spans",
        "count",
    }
)
"""Fields of ``extra=`` that get into a log line, and keyword arguments of ``spans.identify``."""
