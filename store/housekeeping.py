"""What is kept no longer, in batches: each is one short transaction, and safe to repeat."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import timedelta

from store.database import Database

__all__ = [
    "Content",
    "OldPayloads",
    "end_payloads",
    "old_payloads",
    "remove_blobs",
    "remove_content",
]


@dataclass(frozen=True, slots=True)
class Content:
    """What streamed of tasks that ended long ago."""

    tasks: int
    chunks: int
    events: int
    prompts: int
    uses: int


@dataclass(frozen=True, slots=True)
class OldPayloads:
    """Payloads of a workflow that nobody has read for long."""

    workflow_id: str
    blobs: int
    bytes: int


async def remove_content(
    db: Database, *, older_than: timedelta, limit: int, dry: bool = False
) -> Content:
    """Removes journal, events but the last, prompts and uses of blobs of some tasks.

    Args:
        older_than: how long ago they ended, at least.
        limit: most tasks.
        dry: counts what all of them have, and removes nothing.
    """
    rows = await db.run_untenanted(
        "select * from remove_content(%s, %s, %s)", (older_than, limit, dry)
    )
    return Content(**rows[0])


async def remove_blobs(db: Database, *, limit: int, dry: bool = False) -> tuple[int, int]:
    """Removes blobs past their time that no task points to; returns how many and their bytes."""
    rows = await db.run_untenanted("select * from remove_blobs(%s, %s)", (limit, dry))
    return int(rows[0]["blobs"]), int(rows[0]["bytes"])


async def old_payloads(db: Database, *, after: str, limit: int) -> list[OldPayloads]:
    """Workflows with payloads past their time, by id, after one of them."""
    rows = await db.run_untenanted(
        "select * from workflows_with_old_payloads(%s, %s)", (after, limit)
    )
    return [OldPayloads(**row) for row in rows]


async def end_payloads(
    db: Database, workflow_id: str, *, keep: timedelta | None
) -> tuple[int, int]:
    """Removes a workflow's payloads that are past their time, or keeps them for a while longer.

    Returns:
        How many were removed, and their bytes.
    """
    rows = await db.run_untenanted("select * from end_payloads(%s, %s)", (workflow_id, keep))
    return int(rows[0]["blobs"]), int(rows[0]["bytes"])
