"""An upstream's failures, typed. The key that was sent is taken out of whatever it says."""

from __future__ import annotations

import time
from collections.abc import Mapping
from email.utils import parsedate_to_datetime
from typing import Any

import msgspec

from inference.errors import (
    EngineBusy,
    EngineDenied,
    EngineError,
    EngineFailed,
    EngineUnavailable,
    RequestRefused,
    Told,
)

__all__ = ["failure_in_stream", "failure_of_status", "retry_after"]

_MAX_MESSAGE_CHARS = 500
_TOO_LONG = ("context_length_exceeded", "context_window_exceeded", "string_above_max_length")
_UNPAID = ("insufficient_quota", "billing_hard_limit_reached", "billing_not_active")
_LONGEST_WAIT_S = 3_600.0


def failure_of_status(
    name: str, status: int, headers: Mapping[str, str], body: bytes, secret: str | None
) -> EngineError:
    """Return the error of an answer whose status is not 200.

    Args:
        name: What the upstream is called here.
        status: HTTP status.
        headers: The answer's.
        body: As much of it as was read.
        secret: The key that was sent.
    """
    try:
        said = msgspec.json.decode(body)
    except (ValueError, RecursionError):
        said = None
    told = _told(status, said, retry_after(headers), secret)
    return _typed(name, told)


def failure_in_stream(name: str, said: Any, secret: str | None) -> EngineError:
    """Return the error that an event of a stream carries."""
    told = _told(None, {"error": said}, None, secret)
    return _typed(name, told)


def retry_after(headers: Mapping[str, str]) -> float | None:
    """Return how many seconds an upstream wants to be left alone, if it says so."""
    said = headers.get("retry-after-ms")
    if said is not None and (seconds := _number(said)) is not None:
        return min(seconds / 1000, _LONGEST_WAIT_S)
    said = headers.get("retry-after")
    if said is None:
        return None
    seconds = _number(said)
    if seconds is None:
        try:
            seconds = parsedate_to_datetime(said).timestamp() - time.time()
        except (ValueError, TypeError, OverflowError):
            return None
    return min(max(0.0, seconds), _LONGEST_WAIT_S)


def _number(text: str) -> float | None:
    try:
        value = float(text)
    except ValueError:
        return None
    return value if 0 <= value < float("inf") else None


def _told(status: int | None, said: Any, after: float | None, secret: str | None) -> Told:
    error = said.get("error", said) if isinstance(said, dict) else said
    fields: dict[str, Any] = error if isinstance(error, dict) else {"message": error}
    code, kind = fields.get("code"), fields.get("type")
    if status is None:
        status = _status_of(code) or _status_of(fields.get("status"))
    # Of a key that is not taken, an upstream shows its first and last letters.
    message = None if status in (401, 403) else fields.get("message")
    return Told(
        status=status,
        message=_clean(message, secret) or "",
        kind=_clean(kind, secret),
        code=_clean(code, secret),
        param=_clean(fields.get("param"), secret),
        retry_after_s=after,
    )


def _status_of(code: Any) -> int | None:
    try:
        status = int(code)
    except (TypeError, ValueError):
        return None
    return status if 400 <= status <= 599 else None


def _clean(value: Any, secret: str | None) -> str | None:
    if value is None or isinstance(value, (dict, list)):
        return None
    text = str(value)
    if secret:
        text = text.replace(secret, "[key]")
    return text[:_MAX_MESSAGE_CHARS]


def _typed(name: str, told: Told) -> EngineError:
    status, code, kind = told.status, told.code or "", told.kind or ""
    said = f"upstream {name!r} answered {status}" if status else f"upstream {name!r} failed"
    if code in _UNPAID or status == 402:
        return EngineDenied(f"{said}: its account is not paid", "unpaid", told)
    if status == 429 or code == "rate_limit_exceeded":
        return EngineBusy(f"{said}: its own limit is reached", told=told)
    if status in (401, 403):
        return EngineDenied(f"{said}: it does not take our key", "denied", told)
    if status in (404, 405, 410):
        return EngineDenied(f"{said}: no such model or address there", "unknown_model", told)
    if code in _TOO_LONG or "maximum context length" in told.message:
        return RequestRefused(
            f"{said}: the prompt is longer than its window", "prompt_too_long", told
        )
    if status == 413:
        return RequestRefused(f"{said}: the request is too large", "request_too_large", told)
    if status is not None and 300 <= status <= 399:
        return EngineDenied(f"{said}, a redirection, which is not followed", "moved", told)
    if status in (408, 409, 425, 502, 503, 504, 529):
        return EngineUnavailable(said, "unavailable", told)
    if status is not None and 400 <= status <= 499:
        return RequestRefused(f"{said}: it refuses the request", "bad_request", told)
    if status is None and kind == "invalid_request_error":
        return RequestRefused(f"{said}: it refuses the request", "bad_request", told)
    return EngineFailed(f"{said}: an error of its own", "engine_failed", told)
