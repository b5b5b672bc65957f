"""What is said to a task that runs: queued in order, taken in between two steps."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime, timedelta
from uuid import UUID

from store.database import Database
from store.text import storable

__all__ = [
    "Sent",
    "TaskMessage",
    "Unsent",
    "list_messages",
    "mark_sent",
    "send_message",
    "take_messages",
    "unsent_messages",
]


@dataclass(frozen=True, slots=True)
class Sent:
    """What became of a message.

    Attributes:
        number: its place among the task's messages, from 1; None when it was not queued.
        created: False when this request repeats an earlier one.
        conflict: True when the idempotency key was used before for another text.
        ended: True when the task had ended: there is nobody to read it.
    """

    number: int | None
    created: bool
    conflict: bool
    ended: bool


@dataclass(frozen=True, slots=True)
class TaskMessage:
    """A message of a task.

    Attributes:
        at_step: the first step that saw it; None: none has yet.
    """

    number: int
    key_id: UUID
    content: str
    at_step: int | None
    created_at: datetime
    taken_at: datetime | None


@dataclass(frozen=True, slots=True)
class Unsent:
    """Messages up to a number that no workflow has heard of."""

    organisation_id: UUID
    task_id: UUID
    number: int


_COLUMNS = ", ".join(TaskMessage.__dataclass_fields__)


async def send_message(
    db: Database,
    organisation_id: UUID,
    key_id: UUID,
    task_id: UUID,
    *,
    content: str,
    idempotency_key: str | None,
) -> Sent:
    """Queues a message, with its event, unless the task has ended.

    Args:
        idempotency_key: the same key of the same API key queues it once.

    Raises:
        NotFound: the organisation has no such task.
        DatabaseUnavailable: not known whether it was queued.
    """
    rows = await db.call(
        organisation_id,
        "send_message",
        "%s, %s, %s, %s",
        (key_id, task_id, storable(content), idempotency_key),
    )
    return Sent(**rows[0])


async def mark_sent(db: Database, organisation_id: UUID, task_id: UUID, number: int) -> None:
    """Notes that the workflow has heard of the messages up to a number."""
    await db.run(
        organisation_id,
        "update task_messages set sent = true"
        " where organisation_id = %s and task_id = %s and number <= %s and not sent",
        (organisation_id, task_id, number),
    )


async def unsent_messages(
    db: Database, *, older_than: timedelta = timedelta(seconds=3), limit: int = 100
) -> list[Unsent]:
    """Queued messages of every organisation that no workflow has heard of, oldest first.

    For the sweeper: telling a workflow twice is harmless.
    """
    rows = await db.run_untenanted("select * from unsent_messages(%s, %s)", (older_than, limit))
    return [Unsent(**row) for row in rows]


async def take_messages(
    db: Database, organisation_id: UUID, task_id: UUID, *, step: int, after: int
) -> list[tuple[int, str]]:
    """Takes what is queued into the conversation, right before a step, with its event.

    Args:
        step: the first step that sees it.
        after: number of the newest message that was taken before.

    Returns:
        Number and text of each message after that, oldest first; asked again for the same step,
        the same ones and those that came since.
    """
    rows = await db.call(organisation_id, "take_messages", "%s, %s, %s", (task_id, step, after))
    return [(row["number"], row["content"]) for row in rows]


async def list_messages(
    db: Database,
    organisation_id: UUID,
    task_id: UUID,
    *,
    after: int = 0,
    limit: int = 1_000_000,
) -> list[TaskMessage]:
    """A task's messages in order.

    Args:
        after: number of the last one that was read before.
        limit: most messages to return.
    """
    rows = await db.run(
        organisation_id,
        f"select {_COLUMNS} from task_messages where organisation_id = %s and task_id = %s"
        " and number > %s order by number limit %s",
        (organisation_id, task_id, after, limit),
    )
    return [TaskMessage(**row) for row in rows]
