"""Whose an open call is: the process that makes it, or its workflow; and wishes that it end."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal
from uuid import UUID

from store.database import Database

__all__ = [
    "OrphanedCall",
    "calls_to_end",
    "disown",
    "end_is_wished",
    "forget_process",
    "hand_over",
    "orphaned_calls",
    "renew_process",
    "wish_end",
]


async def disown(db: Database, organisation_id: UUID, task_id: UUID) -> None:
    """Makes an open call nobody's, as if its process had died: its workflow will end it."""
    await db.run(
        organisation_id,
        "update calls set process_id = gen_random_uuid()"
        " where organisation_id = %s and task_id = %s and ended_at is null"
        " and process_id is not null",
        (organisation_id, task_id),
    )


async def renew_process(db: Database, process_id: UUID, seconds: float) -> None:
    """Says that a process lives, and that its calls are its own, for so many seconds."""
    await db.run_untenanted("select renew_process(%s, %s)", (process_id, seconds))


async def forget_process(db: Database, process_id: UUID) -> None:
    """Says that a process ends: what it has left open is taken over at once."""
    await db.run_untenanted("delete from lane_processes where process_id = %s", (process_id,))


@dataclass(frozen=True, slots=True)
class OrphanedCall:
    """A call whose process has died."""

    organisation_id: UUID
    team_id: UUID
    key_id: UUID
    task_id: UUID


async def orphaned_calls(db: Database, *, limit: int = 100) -> list[OrphanedCall]:
    """Calls of every organisation whose process died, oldest first.

    For the sweeper: taking one over twice is harmless, the workflow id is the task's.
    """
    rows = await db.run_untenanted("select * from orphaned_calls(%s)", (limit,))
    return [OrphanedCall(**row) for row in rows]


async def hand_over(db: Database, organisation_id: UUID, task_id: UUID, run_id: str) -> None:
    """Notes that a call is its workflow's now."""
    await db.call(organisation_id, "hand_over_call", "%s, %s", (task_id, run_id))


async def wish_end(
    db: Database, organisation_id: UUID, task_id: UUID
) -> Literal["process", "workflow"] | None:
    """Asks a call to end; says whose it is to do so, or None: it has ended."""
    rows = await db.call(organisation_id, "wish_call_ended", "%s", (task_id,))
    whose: Literal["process", "workflow"] | None = rows[0]["f"]
    return whose


async def end_is_wished(db: Database, organisation_id: UUID, task_id: UUID) -> bool:
    """Whether a call was asked to end."""
    rows = await db.run(
        organisation_id,
        "select end_wished_at is not null as wished from calls"
        " where organisation_id = %s and task_id = %s",
        (organisation_id, task_id),
    )
    return bool(rows and rows[0]["wished"])


async def calls_to_end(db: Database, process_id: UUID) -> list[UUID]:
    """Calls of a process that were asked to end."""
    rows = await db.run_untenanted("select task_id from calls_to_end(%s)", (process_id,))
    return [row["task_id"] for row in rows]
