"""Wishes that a task pauses or goes on: noted with the row, then sent to its workflow."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import timedelta
from uuid import UUID

from store.database import Database

__all__ = ["Steered", "Wish", "mark_sent", "steer_task", "unsent_wish", "unsent_wishes"]


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


async def unsent_wish(db: Database, organisation_id: UUID, task_id: UUID) -> Wish | None:
    """The task's newest wish, if nobody has confirmed it as sent."""
    rows = await db.run(
        organisation_id,
        "select organisation_id, task_id, paused, number from task_steering"
        " where organisation_id = %s and task_id = %s and number > sent_number",
        (organisation_id, task_id),
    )
    return Wish(**rows[0]) if rows else None


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
