"""Tasks that go on from a step of another one: filed with what they inherit, read both ways."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime
from decimal import Decimal
from typing import Any
from uuid import UUID

from store.database import Database
from store.identity import Principal
from store.refusals import Refusal, refusal_from_row
from store.screened_tasks import TaskScreening
from store.tasks import Submitted
from store.text import jsonb, storable_or_none

__all__ = ["Fork", "Lineage", "fork_task", "lineage", "state_of"]


@dataclass(frozen=True, slots=True)
class Fork:
    """One link between two tasks; `task_id` is the younger one."""

    task_id: UUID
    parent_task_id: UUID
    from_step: int
    changed: list[str]
    created_at: datetime


@dataclass(frozen=True, slots=True)
class Lineage:
    """Where a task comes from, and what came from it, oldest first."""

    parent: Fork | None
    forks: list[Fork]


async def fork_task(
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
    parent_task_id: UUID,
    from_step: int,
    changed: list[str],
    state: dict[str, Any] | None,
    tool_result: str | None,
    tool_place: int | None = None,
    message: str | None = None,
    screening: TaskScreening | None = None,
) -> Submitted | Refusal:
    """Files a task with the finished steps of its parent, in one round trip.

    Args:
        parent_task_id: the task it goes on from; its steps before `from_step` must be finished.
        changed: names of what the caller changed.
        state: where the loop starts; None for the beginning.
        tool_result: takes the place of what the tool of the last inherited step answered.
        tool_place: which of its tools, from 1, where it may call several.
        message: takes the place of what was last said to the parent before that step.

    The other arguments, and what is raised, are those of `store.tasks.submit_task`.
    """
    values = (
        principal.organisation_id,
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
        parent_task_id,
        from_step,
        changed,
        jsonb(state),
        storable_or_none(tool_result),
        tool_place,
    )
    rows, *_ = await db.run_many(
        principal.organisation_id,
        [
            (
                (
                    "select * from fork_task(%s, %s, %s, %s, %s, %s, %s, %s, %s, %s, %s, %s, %s,"
                    " %s, %s::text[], %s, %s, %s)"
                ),
                values,
            ),
            (
                "select inherit_conversation(%s, %s, %s)",
                (principal.organisation_id, task_id, storable_or_none(message)),
            ),
            *([screening.statement(principal.organisation_id, task_id)] if screening else []),
        ],
    )
    row = rows[0]
    refusal = refusal_from_row(row, worst_case_usd)
    return refusal or Submitted(row["task_id"], row["created"], row["conflict"])


async def lineage(db: Database, organisation_id: UUID, task_id: UUID) -> Lineage:
    """The task's links, in both directions, in one round trip."""
    rows = await db.run(
        organisation_id,
        "select f.task_id, f.parent_task_id, f.from_step, f.changed, f.created_at"
        " from task_forks f join tasks t using (organisation_id, task_id)"
        " where f.organisation_id = %s and (f.task_id = %s or f.parent_task_id = %s)"
        " and t.status <> 'discarded' order by f.task_id",
        (organisation_id, task_id, task_id),
    )
    links = [Fork(**row) for row in rows]
    return Lineage(
        parent=next((link for link in links if link.task_id == task_id), None),
        forks=[link for link in links if link.task_id != task_id],
    )


async def state_of(db: Database, organisation_id: UUID, task_id: UUID) -> dict[str, Any] | None:
    """Where the loop of a task starts; None for the beginning."""
    rows = await db.run(
        organisation_id,
        "select state from task_forks where organisation_id = %s and task_id = %s",
        (organisation_id, task_id),
    )
    state: dict[str, Any] | None = rows[0]["state"] if rows else None
    return state
