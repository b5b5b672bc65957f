"""Tokens as OpenAI's answers count them."""

from __future__ import annotations

from typing import Any

from inference.usage import TokenUsage

__all__ = ["chat_usage", "response_usage"]


def chat_usage(used: TokenUsage) -> dict[str, Any]:
    """Return `usage` of a chat completion."""
    return {
        "prompt_tokens": used.prompt_tokens,
        "completion_tokens": used.completion_tokens,
        "total_tokens": used.prompt_tokens + used.completion_tokens,
        "prompt_tokens_details": {"cached_tokens": used.cached_tokens},
        "completion_tokens_details": {"reasoning_tokens": used.reasoning_tokens},
    }


def response_usage(used: TokenUsage) -> dict[str, Any]:
    """Return `usage` of a response."""
    return {
        "input_tokens": used.prompt_tokens,
        "input_tokens_details": {"cached_tokens": used.cached_tokens, "cache_write_tokens": 0},
        "output_tokens": used.completion_tokens,
        "output_tokens_details": {"reasoning_tokens": used.reasoning_tokens},
        "total_tokens": used.prompt_tokens + used.completion_tokens,
    }
