"""What streams to the caller: one numbered, gapless stream of events per task.

Journal chunks and events take their numbers from the same counter in the same transaction as the
row itself, so a reader that remembers one number can resume without gap or repeat.
"""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime
from typing import Any
from uuid import UUID

from store.database import Database
from store.hub import EventHub, Wake
from store.text import jsonb

__all__ = ["Event", "EventHub", "Wake", "append_event", "last_event", "read_events"]

# Both halves are limited by themselves first: a reader far behind must not make the server sort
# the whole stream.
_READ = """
select * from (
    (select e.seq, e.step, e.type, e.payload, e.at from task_events e
      where e.organisation_id = %(org)s and e.task_id = %(task)s and e.seq > %(after)s
      order by e.seq limit %(limit)s)
    union all
    (select c.event_seq, g.step, 'text',
            jsonb_build_object('channel', g.channel, 'text', c.text, 'model', g.model), c.at
       from token_chunks c
       join generations g on g.organisation_id = c.organisation_id
                         and g.generation_key = c.step_key
      where c.organisation_id = %(org)s and c.task_id = %(task)s and c.event_seq > %(after)s
      order by c.event_seq limit %(limit)s)
) stream order by seq limit %(limit)s
"""


@dataclass(frozen=True, slots=True)
class Event:
    """One event of a task.

    Attributes:
        seq: position in the task's stream, from 1, without gaps.
        step: the step it belongs to; None for events of the task itself.
        type: `task.accepted`, `step.started`, `text`, `reset`, `tool.completed`,
            `step.completed`, `task.succeeded`, `task.failed`, `task.cancelled`, or the caller's.
        payload: what happened; amounts of money are decimal strings.
        at: when it was written.
    """

    seq: int
    step: int | None
    type: str
    payload: dict[str, Any]
    at: datetime

    @property
    def id(self) -> str:
        """The SSE id, `<step>:<seq>` (step 0 for the task itself)."""
        return f"{self.step or 0}:{self.seq}"

    @property
    def ends_task(self) -> bool:
        """True for the last event of a task."""
        return self.type in ("task.succeeded", "task.failed", "task.cancelled")


async def append_event(
    db: Database,
    organisation_id: UUID,
    task_id: UUID,
    step: int | None,
    type: str,  # noqa: A002 - the field's name on the wire
    payload: dict[str, Any],
    dedupe: str | None = None,
) -> int | None:
    """Appends one event and wakes the readers.

    Args:
        dedupe: events of a task with the same mark are written once.

    Returns:
        Its number, or None when the mark was there already.

    Raises:
        NotFound: the organisation has no such task.
    """
    rows = await db.call(
        organisation_id,
        "push_event",
        "%s, %s, %s, %s, %s",
        (task_id, step, type, jsonb(payload), dedupe),
    )
    seq: int | None = rows[0]["f"]
    return seq


async def last_event(db: Database, organisation_id: UUID, task_id: UUID) -> int:
    """Number of a task's newest event; 0 when the organisation has no such task."""
    rows = await db.run(
        organisation_id,
        "select next_event - 1 as last from tasks where organisation_id = %s and task_id = %s",
        (organisation_id, task_id),
    )
    return int(rows[0]["last"]) if rows else 0


async def read_events(
    db: Database, organisation_id: UUID, task_id: UUID, after: int = 0, limit: int = 500
) -> list[Event]:
    """Reads events in order (one round trip).

    Args:
        after: number of the last event already seen; 0 reads from the beginning.
        limit: most events to return.
    """
    rows = await db.run(
        organisation_id,
        _READ,
        {"org": organisation_id, "task": task_id, "after": after, "limit": limit},
    )
    return [Event(**row) for row in rows]
