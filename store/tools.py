"""Tool calls: one row per attempt, and the result on the step."""

from __future__ import annotations

from datetime import datetime
from typing import Any
from uuid import UUID

from store.database import Database
from store.text import jsonb, storable_or_none


async def record_tool_call(
    db: Database,
    *,
    organisation_id: UUID,
    task_id: UUID,
    step: int,
    call_id: str,
    name: str,
    attempt: int,
    arguments: dict[str, Any],
    result_text: str | None,
    ok: bool,
    error: str | None,
    started_at: datetime,
    ended_at: datetime,
    place: int | None = None,
) -> bool:
    """Keeps one attempt, stores its result on the step and files `tool.completed`, once.

    Args:
        result_text: what the model will read; a failure's words too.
        error: what went wrong, in words; None when it went well.
        place: which of the step's calls, from 1, where it may have several.

    Returns:
        False when this attempt was recorded before; the first record stands.

    Raises:
        NotFound: the organisation has no such task.
    """
    rows = await db.call(
        organisation_id,
        "record_tool_call",
        "%s, %s, %s, %s, %s, %s, %s, %s, %s, %s, %s, %s",
        (
            task_id,
            step,
            call_id,
            name,
            attempt,
            jsonb(arguments),
            storable_or_none(result_text),
            ok,
            None if error is None else jsonb({"message": error}),
            started_at,
            ended_at,
            place,
        ),
    )
    return bool(rows[0]["f"])


async def recorded_result(
    db: Database, organisation_id: UUID, task_id: UUID, call_id: str
) -> tuple[str, bool] | None:
    """What an earlier attempt of a call was told, and whether it went well; None before that."""
    rows = await db.run(
        organisation_id,
        "select result_text, ok from tool_calls where organisation_id = %s and task_id = %s"
        " and call_id = %s and result_text is not null order by attempt limit 1",
        (organisation_id, task_id, call_id),
    )
    return (rows[0]["result_text"], rows[0]["ok"]) if rows else None
