"""OpenAI's headers of limits: how much, how much is left, and when all of it is there again."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

__all__ = ["UNLIMITED", "rate_headers"]

#: What a key without limits is told: there is always more.
UNLIMITED = 1_000_000_000


def rate_headers(rate: Mapping[str, Any] | None) -> dict[str, str]:
    """Return the headers.

    Args:
        rate: For `requests` and `tokens`: `limit`, `remaining` and `reset_s`, where there is one.
    """
    headers = {}
    for what in ("requests", "tokens"):
        told = (rate or {}).get(what) or {}
        headers[f"x-ratelimit-limit-{what}"] = str(told.get("limit", UNLIMITED))
        headers[f"x-ratelimit-remaining-{what}"] = str(told.get("remaining", UNLIMITED))
        headers[f"x-ratelimit-reset-{what}"] = _span(float(told.get("reset_s", 0)))
    return headers


def _span(seconds: float) -> str:
    """Return a time as OpenAI writes it: `120ms`, `6.5s`, `1m30s`."""
    if 0 < seconds < 1:
        return f"{max(1, round(seconds * 1000))}ms"
    minutes, rest = divmod(round(seconds, 3), 60)
    return f"{minutes:.0f}m{rest:g}s" if minutes else f"{rest:g}s"
