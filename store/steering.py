"""Wishes that a task pauses or goes on: noted with the row, then sent to its workflow.

A task whose next call a budget does not cover pauses itself, until there is room.
"""

from __future__ import annotations

from dataclasses import dataclass
from datetime import timedelta
from decimal import Decimal
from typing import Any
from uuid import UUID

from store.database import Database

__all__ = [
    "Steered",
    "Waiting",
    "Wish",
    "mark_sent",
    "steer_task",
    "stop_waiting",
    "tasks_with_room",
    "unsent_of_tree",
    "unsent_wishes",
    "wait_for_budget",
]


@dataclass(frozen=True, slots=True)
class Steered:
    """What became of a wish.

    Attributes:
        ended: The task had ended: there is nothing to steer.
        changed: False when the task was already as wished.
        number: Number of the task's newest wish; None when there never was one.
    """

    ended: bool
    changed: bool
    number: int | None


@dataclass(frozen=True, slots=True)
class Wish:
    """A wish that nobody has confirmed as sent."""

    organisation_id: UUID
    task_id: UUID
    paused: bool
    number: int


async def steer_task(
    db: Database, organisation_id: UUID, task_id: UUID, *, paused: bool
) -> Steered:
    """Notes that a task should pause or go on, with its event, once.

    Raises:
        NotFound: the organisation has no such task.
    """
    rows = await db.call(organisation_id, "steer_task", "%s, %s", (task_id, paused))
    return Steered(**rows[0])


@dataclass(frozen=True, slots=True)
class Waiting:
    """A task that is paused until a budget has room.

    Attributes:
        number: Number of its newest wish; None when it has ended.
        reason: Which budget, in numbers; None when a person paused it at the same time.
    """

    number: int | None
    reason: dict[str, Any] | None


async def wait_for_budget(
    db: Database, organisation_id: UUID, task_id: UUID, *, needed_usd: Decimal, scope: str
) -> Waiting:
    """Pauses a task whose next call a budget does not cover, with its event, once.

    Raises:
        NotFound: the organisation has no such task.
    """
    rows = await db.call(
        organisation_id, "wait_for_budget", "%s, %s, %s", (task_id, needed_usd, scope)
    )
    return Waiting(**rows[0])


async def stop_waiting(db: Database, organisation_id: UUID, task_id: UUID) -> bool:
    """Lets one task go on that waits for a budget, nothing below it; False: it does not wait."""
    rows = await db.call(organisation_id, "stop_waiting", "%s", (task_id,))
    return bool(rows[0]["f"])


async def tasks_with_room(
    db: Database, organisation_id: UUID | None = None, *, limit: int = 100
) -> list[tuple[UUID, UUID]]:
    """Waiting tasks whose budgets have room again, each with its organisation, oldest first.

    Args:
        db: the database.
        organisation_id: only of this one, and at once: its budgets were just changed.
        limit: most of them.
    """
    rows = await db.run_untenanted(
        "select * from tasks_with_room(%s, %s)", (organisation_id, limit)
    )
    return [(row["organisation_id"], row["task_id"]) for row in rows]


async def unsent_of_tree(db: Database, organisation_id: UUID, task_id: UUID) -> list[Wish]:
    """The newest wishes of a task and of all below it that nobody has confirmed as sent."""
    rows = await db.run(
        organisation_id,
        "select w.organisation_id, w.task_id, w.paused, w.number"
        " from tasks t join tasks a on a.organisation_id = t.organisation_id"
        " and (a.task_id = t.task_id or (a.root_task_id = t.root_task_id"
        " and a.parent_task_id is not null and t.task_id = any (a.ancestors)))"
        " join task_steering w on w.organisation_id = a.organisation_id and w.task_id = a.task_id"
        " where t.organisation_id = %s and t.task_id = %s and w.number > w.sent_number"
        " and a.finished_at is null order by w.task_id",
        (organisation_id, task_id),
    )
    return [Wish(**row) for row in rows]


async def mark_sent(db: Database, organisation_id: UUID, task_id: UUID, number: int) -> None:
    """Notes that the workflow has heard of a wish."""
    await db.run(
        organisation_id,
        "update task_steering set sent_number = greatest(sent_number, %s)"
        " where organisation_id = %s and task_id = %s",
        (number, organisation_id, task_id),
    )


async def unsent_wishes(
    db: Database, *, older_than: timedelta = timedelta(seconds=3), limit: int = 100
) -> list[Wish]:
    """Wishes of every organisation that were not sent, oldest first.

    For the sweeper: sending one twice is harmless, a workflow knows its number.
    """
    rows = await db.run_untenanted("select * from unsent_wishes(%s, %s)", (older_than, limit))
    return [Wish(**row) for row in rows]
