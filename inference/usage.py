"""Tokens of one attempt, as an engine without a meter tells them, or as they are estimated."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

__all__ = ["TokenUsage"]


@dataclass(frozen=True, slots=True)
class TokenUsage:
    """What one attempt used.

    Attributes:
        prompt_tokens: All that was read, `cached_tokens` among them.
        completion_tokens: All that was written, `reasoning_tokens` among them.
        source: `upstream`: its own count. `estimate`: it gave none, or was cut off before.
    """

    prompt_tokens: int = 0
    completion_tokens: int = 0
    cached_tokens: int = 0
    reasoning_tokens: int = 0
    source: Literal["upstream", "estimate"] = "estimate"
