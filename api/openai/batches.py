"""`POST /v1/batches`: what may be asked, and how a batch is told of."""

from __future__ import annotations

import re
from datetime import datetime, timedelta
from typing import Any
from uuid import UUID

from pydantic import Field

from api.openai.errors import OpenAIError
from api.openai.fields import Asked, Metadata, read
from api.openai.files import file_id_of
from store.batches import Batch
from workflows.contracts.batch import BATCH_ENDPOINTS

__all__ = ["BatchRequest", "batch_id_of", "batch_object", "read_batch", "window_of"]

_WINDOW = re.compile(r"([1-9][0-9]{0,5})([smhd])")
_UNITS = {"s": 1, "m": 60, "h": 3_600, "d": 86_400}
_LONGEST = timedelta(days=7)


class ExpiresAfter(Asked):
    """How long a file is kept."""

    anchor: Any = Field(default=None, description="`created_at`.")
    seconds: Any = Field(default=None, description="3,600 to 2,592,000.")


class BatchRequest(Asked):
    """A batch."""

    input_file_id: str = Field(max_length=64, description="A file of purpose `batch`.")
    endpoint: str = Field(
        max_length=64, description="What every line asks for: " + ", ".join(BATCH_ENDPOINTS)
    )
    completion_window: str = Field(
        max_length=16,
        description="Until when it is worked on: a number of `s`, `m`, `h` or `d`, up to `7d`.",
    )
    metadata: Metadata | None = Field(default=None, description="Tags of every line's call.")
    output_expires_after: ExpiresAfter | None = Field(
        default=None, description="How long what it writes is kept."
    )


def read_batch(document: Any) -> BatchRequest:
    """Read a parsed body.

    Raises:
        OpenAIError: It cannot be used (400).
    """
    request = read(BatchRequest, document)
    if request.endpoint not in BATCH_ENDPOINTS:
        raise OpenAIError(
            400,
            f"Invalid value for 'endpoint': expected one of {', '.join(BATCH_ENDPOINTS)}.",
            code="invalid_value",
            param="endpoint",
        )
    window_of(request.completion_window)
    if file_id_of(request.input_file_id) is None:
        raise no_such_input()
    return request


def no_such_input() -> OpenAIError:
    """Return the refusal of an input that is none, or another team's."""
    return OpenAIError(
        400,
        "Your team has no such file of purpose 'batch'.",
        code="file_not_found",
        param="input_file_id",
    )


def window_of(text: str) -> timedelta:
    """Return a completion window.

    Raises:
        OpenAIError: It is none (400).
    """
    match = _WINDOW.fullmatch(text)
    window = timedelta(seconds=int(match[1]) * _UNITS[match[2]]) if match else timedelta(0)
    if not timedelta(0) < window <= _LONGEST:
        raise OpenAIError(
            400,
            "'completion_window' must be a number of 's', 'm', 'h' or 'd', up to '7d': '24h'.",
            code="invalid_value",
            param="completion_window",
        )
    return window


def batch_id_of(text: str) -> UUID | None:
    """Return a batch's id; None for what is none."""
    try:
        return UUID(hex=text.removeprefix("batch_")) if text.startswith("batch_") else None
    except ValueError:
        return None


def batch_object(batch: Batch) -> dict[str, Any]:
    """Return the document of a batch."""
    ended = batch.ended_at
    return {
        "id": f"batch_{batch.batch_id.hex}",
        "object": "batch",
        "endpoint": batch.endpoint,
        "errors": (
            None
            if batch.errors is None
            else {
                "object": "list",
                "data": [
                    {"code": None, "message": None, "param": None, "line": None} | error
                    for error in batch.errors
                ],
            }
        ),
        "input_file_id": _file(batch.input_file_id),
        "completion_window": batch.completion_window,
        "status": batch.status,
        "output_file_id": _file(batch.output_file_id),
        "error_file_id": _file(batch.error_file_id),
        "created_at": _seconds(batch.created_at),
        "in_progress_at": _seconds(batch.in_progress_at),
        "expires_at": _seconds(batch.expires_at),
        "finalizing_at": _seconds(batch.finalizing_at),
        "completed_at": _seconds(ended if batch.status == "completed" else None),
        "failed_at": _seconds(ended if batch.status == "failed" else None),
        "expired_at": _seconds(ended if batch.status == "expired" else None),
        "cancelling_at": _seconds(batch.cancelling_at),
        "cancelled_at": _seconds(ended if batch.status == "cancelled" else None),
        "request_counts": {
            "total": batch.total,
            "completed": batch.completed,
            "failed": batch.failed,
        },
        "usage": {
            "input_tokens": batch.prompt_tokens,
            "input_tokens_details": {"cached_tokens": batch.cached_tokens},
            "output_tokens": batch.completion_tokens,
            "output_tokens_details": {"reasoning_tokens": batch.reasoning_tokens},
            "total_tokens": batch.prompt_tokens + batch.completion_tokens,
        },
        "metadata": batch.metadata,
        "cost_usd": f"{batch.billed_usd:f}",
    }


def _file(file_id: UUID | None) -> str | None:
    return None if file_id is None else f"file-{file_id.hex}"


def _seconds(at: datetime | None) -> int | None:
    return None if at is None else int(at.timestamp())
