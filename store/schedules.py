"""Schedules: what is asked again and again, by whom, and what came of each time."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime
from typing import Any
from uuid import UUID

from store.database import Database
from store.identity import Principal
from store.text import jsonb

__all__ = [
    "Due",
    "Run",
    "Schedule",
    "add_schedule",
    "delete_schedule",
    "due",
    "get_schedule",
    "list_runs",
    "list_schedules",
    "record_run",
]


@dataclass(frozen=True, slots=True)
class Schedule:
    """A schedule as its owner made it.

    Attributes:
        timing: cron or interval, time zone and overlap policy, as the caller wrote them.
        request: the request as the caller wrote it.
    """

    schedule_id: UUID
    key_id: UUID
    name: str
    timing: dict[str, Any]
    request: dict[str, Any]
    created_at: datetime


@dataclass(frozen=True, slots=True)
class Due:
    """What a task needs that is due now.

    Attributes:
        principal: who asks and pays; with the scopes its key has now.
        resolved: the request with every name looked up when the schedule was made.
        first_max_tokens: longest first answer, in tokens.
        key_stands: False when the key was disabled or has expired since.
    """

    principal: Principal
    resolved: dict[str, Any]
    first_max_tokens: int
    key_stands: bool


@dataclass(frozen=True, slots=True)
class Run:
    """What came of one time.

    Attributes:
        fire: which time; Temporal's name of it.
        task_id: the task that was filed; None when it was refused.
        code: why it was refused; None when it was not.
    """

    fire: str
    at: datetime
    task_id: UUID | None
    code: str | None
    detail: str | None


_COLUMNS = ", ".join(Schedule.__dataclass_fields__)
_RUN_COLUMNS = ", ".join(Run.__dataclass_fields__)


async def add_schedule(
    db: Database,
    owner: Principal,
    *,
    schedule_id: UUID,
    name: str,
    timing: dict[str, Any],
    request: dict[str, Any],
    resolved: dict[str, Any],
    first_max_tokens: int,
) -> bool:
    """Puts a schedule on file; False when the organisation has one of this name."""
    rows = await db.run(
        owner.organisation_id,
        "insert into schedules (organisation_id, schedule_id, team_id, key_id, name, timing,"
        " request, resolved, first_max_tokens) values (%s, %s, %s, %s, %s, %s, %s, %s, %s)"
        " on conflict do nothing returning schedule_id",
        (
            owner.organisation_id,
            schedule_id,
            owner.team_id,
            owner.key_id,
            name,
            jsonb(timing),
            jsonb(request),
            jsonb(resolved),
            first_max_tokens,
        ),
    )
    return bool(rows)


async def get_schedule(db: Database, organisation_id: UUID, schedule_id: UUID) -> Schedule | None:
    """One schedule of the organisation."""
    rows = await db.run(
        organisation_id,
        f"select {_COLUMNS} from schedules where organisation_id = %s and schedule_id = %s",
        (organisation_id, schedule_id),
    )
    return Schedule(**rows[0]) if rows else None


async def list_schedules(db: Database, organisation_id: UUID) -> list[Schedule]:
    """All schedules of the organisation, by name; at most 1,000."""
    rows = await db.run(
        organisation_id,
        f"select {_COLUMNS} from schedules where organisation_id = %s order by name limit 1000",
        (organisation_id,),
    )
    return [Schedule(**row) for row in rows]


async def delete_schedule(db: Database, organisation_id: UUID, schedule_id: UUID) -> bool:
    """Forgets a schedule and what came of it; its tasks stay. False when there was none."""
    rows = await db.run(
        organisation_id,
        "delete from schedules where organisation_id = %s and schedule_id = %s"
        " returning schedule_id",
        (organisation_id, schedule_id),
    )
    return bool(rows)


async def due(db: Database, organisation_id: UUID, schedule_id: UUID) -> Due | None:
    """What to file now; None when the schedule is gone."""
    rows = await db.run(
        organisation_id,
        "select s.team_id, s.key_id, s.resolved, s.first_max_tokens, k.scopes,"
        " k.enabled and coalesce(k.expires_at > now(), true) as key_stands"
        " from schedules s join api_keys k"
        " on k.organisation_id = s.organisation_id and k.key_id = s.key_id"
        " where s.organisation_id = %s and s.schedule_id = %s",
        (organisation_id, schedule_id),
    )
    if not rows:
        return None
    row = rows[0]
    return Due(
        Principal(organisation_id, row["team_id"], row["key_id"], tuple(row["scopes"])),
        row["resolved"],
        row["first_max_tokens"],
        row["key_stands"],
    )


async def record_run(
    db: Database,
    organisation_id: UUID,
    schedule_id: UUID,
    fire: str,
    *,
    task_id: UUID | None = None,
    code: str | None = None,
    detail: str | None = None,
) -> None:
    """Notes what came of one time, once; nothing when the schedule is gone."""
    await db.run(
        organisation_id,
        "insert into schedule_runs (organisation_id, schedule_id, fire, task_id, code, detail)"
        " select organisation_id, schedule_id, %s, %s, %s, %s from schedules"
        " where organisation_id = %s and schedule_id = %s on conflict do nothing",
        (fire, task_id, code, detail, organisation_id, schedule_id),
    )


async def list_runs(
    db: Database, organisation_id: UUID, schedule_id: UUID, limit: int = 20
) -> list[Run]:
    """What came of the last times, newest first."""
    rows = await db.run(
        organisation_id,
        f"select {_RUN_COLUMNS} from schedule_runs"
        " where organisation_id = %s and schedule_id = %s order by at desc, fire desc limit %s",
        (organisation_id, schedule_id, limit),
    )
    return [Run(**row) for row in rows]
