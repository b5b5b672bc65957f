"""Tasks: filed, started, finished. A projection for readers; the workflow is the truth.

Reading them back lives in `store.task_reads`; its names are exported here too.
"""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime, timedelta
from decimal import Decimal
from typing import Any, Literal
from uuid import UUID

from store.database import Database
from store.identity import Principal
from store.refusals import Refusal, refusal_from_row
from store.screened_tasks import TaskScreening, filed
from store.step_calls import ChosenCall
from store.task_reads import (
    CallRecord,
    StepDetail,
    StepRecord,
    Task,
    TaskPage,
    ToolCallRecord,
    Transcript,
    get_task,
    list_steps,
    list_tasks,
    load_output_schema,
    load_transcript,
)
from store.text import jsonb, storable_or_none

__all__ = [
    "CallRecord",
    "ChosenCall",
    "StepDetail",
    "StepRecord",
    "Submitted",
    "Task",
    "TaskPage",
    "ToolCallRecord",
    "Transcript",
    "UnstartedTask",
    "discard_task",
    "finish_task",
    "get_task",
    "list_steps",
    "list_tasks",
    "load_output_schema",
    "load_transcript",
    "mark_started",
    "submit_task",
    "unstarted_tasks",
]


@dataclass(frozen=True, slots=True)
class Submitted:
    """A task is on file.

    Attributes:
        task_id: the new task, or the first one filed under the same idempotency key.
        created: False when this request repeats an earlier one.
        conflict: True when the idempotency key was used before with another request.
    """

    task_id: UUID
    created: bool
    conflict: bool


@dataclass(frozen=True, slots=True)
class UnstartedTask:
    """An accepted task whose workflow nobody has confirmed as started."""

    organisation_id: UUID
    team_id: UUID
    key_id: UUID
    task_id: UUID
    kind: str
    route: str
    input: dict[str, Any]
    user: str | None
    tags: dict[str, str]
    created_at: datetime


async def submit_task(
    db: Database,
    principal: Principal,
    *,
    task_id: UUID,
    idempotency_key: str | None,
    request_digest: str,
    input: dict[str, Any],  # noqa: A002 - the field's name on the wire
    user: str | None,
    tags: dict[str, str],
    route: str,
    worst_case_usd: Decimal,
    max_cost_usd: Decimal | None,
    screening: TaskScreening | None = None,
) -> Submitted | Refusal:
    """Files a task in one round trip, unless its first call could not be paid for.

    Args:
        idempotency_key: the same key of the same API key returns the first task.
        request_digest: digest of the request; tells a repetition from a conflict.
        input: the validated request.
        worst_case_usd: the most one model call of it can cost, in USD.
        max_cost_usd: the task's own budget in USD; None for no limit of its own.
        screening: what a safety policy decided about it, filed with it.

    Raises:
        DatabaseUnavailable: not known whether it was filed; file it again with the same id.
        PolicyChanged: another safety policy holds than the one the request says it was screened by.
    """
    values = (
        principal.team_id,
        principal.key_id,
        task_id,
        idempotency_key,
        request_digest,
        jsonb(input),
        user,
        jsonb(tags),
        route,
        worst_case_usd,
        max_cost_usd,
    )
    organisation = principal.organisation_id
    beside = [] if screening is None else [screening.statement(organisation, task_id)]
    row = await filed(db, organisation, "submit_task", values, *beside)
    refusal = refusal_from_row(row, worst_case_usd)
    return refusal or Submitted(row["task_id"], row["created"], row["conflict"])


async def was_filed_with(
    db: Database, organisation_id: UUID, task_id: UUID, request_digest: str
) -> bool:
    """Whether a task was filed with a digest that is not made with a key, as they once were."""
    rows = await db.run(
        organisation_id,
        "select 1 from tasks where organisation_id = %s and task_id = %s and request_digest = %s",
        (organisation_id, task_id, request_digest),
    )
    return bool(rows)


async def free_idempotency_key(db: Database, organisation_id: UUID, task_id: UUID) -> None:
    """Takes the idempotency key from a task that ended without success: the next one has it."""
    await db.run(
        organisation_id,
        "update tasks set idempotency_key = null where organisation_id = %s and task_id = %s"
        " and status in ('failed', 'cancelled')",
        (organisation_id, task_id),
    )


async def discard_task(db: Database, organisation_id: UUID, task_id: UUID) -> bool:
    """Takes back a task whose start failed, and frees its idempotency key.

    Should its workflow run after all, its first admission is refused with `task_discarded`.

    Returns:
        False when it had started, or does not exist.
    """
    rows = await db.run(
        organisation_id,
        "update tasks set status = 'discarded', idempotency_key = null, finished_at = now()"
        " where organisation_id = %s and task_id = %s and status = 'accepted' and run_id is null"
        " returning task_id",
        (organisation_id, task_id),
    )
    return bool(rows)


async def mark_started(db: Database, organisation_id: UUID, task_id: UUID, run_id: str) -> None:
    """Notes the workflow run of a task: it is no longer waiting to be started."""
    await db.run(
        organisation_id,
        "update tasks set run_id = %s where organisation_id = %s and task_id = %s",
        (run_id, organisation_id, task_id),
    )


async def unstarted_tasks(
    db: Database, *, older_than: timedelta = timedelta(seconds=10), limit: int = 100
) -> list[UnstartedTask]:
    """Tasks of every organisation that were accepted but not started, oldest first.

    For the sweeper: starting one twice is harmless, the workflow id is the task's.
    """
    rows = await db.run_untenanted("select * from unstarted_tasks(%s, %s)", (older_than, limit))
    for row in rows:
        row["user"] = row.pop("user_id")
    return [UnstartedTask(**row) for row in rows]


async def finish_task(
    db: Database,
    organisation_id: UUID,
    task_id: UUID,
    *,
    status: Literal["succeeded", "failed", "cancelled"],
    answer: str | None = None,
    error: dict[str, Any] | None = None,
) -> bool:
    """Ends a task, once, with its `task.<status>` event. Calls still open are settled unbilled.

    Args:
        error: what went wrong, as the caller will read it.

    Returns:
        False when it had ended before; the first ending stands.

    Raises:
        NotFound: the organisation has no such task.
    """
    rows = await db.call(
        organisation_id,
        "finish_task",
        "%s, %s, %s, %s",
        (task_id, status, storable_or_none(answer), jsonb(error)),
    )
    return bool(rows[0]["f"])
