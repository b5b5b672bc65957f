"""A batch as its workflow knows it: which one, and how far. Its lines are in its rows."""

from __future__ import annotations

from typing import Literal
from uuid import UUID

from pydantic import Field

from workflows.contracts.base import Wire
from workflows.contracts.task import TaskError, Tenant

__all__ = [
    "BATCH_ENDPOINTS",
    "BatchClass",
    "BatchInput",
    "BatchOutcome",
    "BatchState",
    "BatchStep",
    "FinishBatch",
    "LinesDone",
    "LinesInput",
    "Validated",
    "batch_workflow_id",
]

#: What a line of a batch may ask for.
BATCH_ENDPOINTS = ("/v1/chat/completions", "/v1/completions", "/v1/embeddings", "/v1/responses")


def batch_workflow_id(batch_id: UUID) -> str:
    """Return the id of the workflow that carries a batch."""
    return f"batch-{batch_id}"


class BatchClass(Wire):
    """Lines that wait for the same engines."""

    name: str = Field(description="Their deployment class; empty: that of all other work.")
    lines: int


class BatchState(Wire):
    """Where a run of `Batch` goes on from."""

    classes: tuple[BatchClass, ...]
    answered: int = 0
    failed: int = 0


class BatchInput(Wire):
    """Input of `Batch`."""

    tenant: Tenant
    batch_id: UUID
    expires_at: float = Field(description="When its window ends, in seconds since 1970.")
    width: int = Field(default=16, description="Lines worked on at a time, at most.")
    run_slices: int = Field(default=400, description="Slices begun in one run, at most.")
    state: BatchState | None = None


class BatchStep(Wire):
    """Look at every line of a batch's input, and file it."""

    tenant: Tenant
    batch_id: UUID


class Validated(Wire):
    """What was found: lines by what they wait for; none: the batch failed or was cancelled."""

    total: int = 0
    classes: tuple[BatchClass, ...] = ()


class LinesInput(BatchStep):
    """Work on lines of one class for some seconds, one after the other."""

    deployment_class: str
    slot: int = Field(description="Whose lines these are, should this worker die.")


class LinesDone(Wire):
    """What a slice did.

    With `over` there is nothing left to begin; with `wait_s` nothing should be begun for so long.
    """

    answered: int = 0
    failed: int = 0
    over: bool = False
    wait_s: float | None = None
    reason: str = ""


class FinishBatch(BatchStep):
    """Write a batch's files, and end it."""

    cancelled: bool = False
    error: TaskError | None = None


class BatchOutcome(Wire):
    """Result of `Batch`."""

    batch_id: UUID
    status: Literal["completed", "failed", "expired", "cancelled"]
    answered: int = 0
    failed: int = 0
