"""Wishes that a task pauses or goes on: noted with the row, then sent to its workflow."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import timedelta
from uuid import UUID

from store.database import Database

__all__ = ["Steered", "Wish", "mark_sent", "steer_task", "unsent_of_tree", "unsent_wishes"]


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
