"""A call's usage in its three forms: an attempt's in the books, the kept one, the caller's."""

from __future__ import annotations

from typing import Any

from inference.usage import TokenUsage
from store.journal import AttemptUsage

__all__ = ["told_usage", "usage_document", "usage_of"]


def usage_document(used: AttemptUsage) -> dict[str, int]:
    """Return what is kept of a call's usage, as its caller is told it."""
    return {
        "prompt_tokens": used.prompt_tokens,
        "completion_tokens": used.completion_tokens,
        "cached_tokens": used.cached_tokens,
        "reasoning_tokens": used.reasoning_tokens,
    }


def usage_of(kept: dict[str, Any] | None) -> TokenUsage:
    """Return a kept usage."""
    return TokenUsage(**(kept or {}))


def told_usage(used: AttemptUsage) -> TokenUsage:
    """Return what a caller is told of an attempt's usage."""
    return usage_of(usage_document(used))
