"""Webhook deliveries: who is to be told of a task's end, or that a budget is passed.

The rows are filed by triggers, in the transaction that ends the task, or warns.
"""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime, timedelta
from decimal import Decimal
from typing import Any, Literal
from uuid import UUID

from store.database import Database

__all__ = [
    "Delivery",
    "EndedTask",
    "Unstarted",
    "Warned",
    "begin_attempt",
    "end_delivery",
    "get_delivery",
    "is_own",
    "list_deliveries",
    "mark_started",
    "note_failure",
    "of_budget",
    "of_task_unstarted",
    "redeliver",
    "unstarted",
]


@dataclass(frozen=True, slots=True)
class Delivery:
    """A delivery as whoever asked for it may see it.

    Attributes:
        attempts: how often it was sent, or begun to be.
        last_error: why the newest attempt did not go well, in our own words.
        next_attempt_at: when it is sent again; None when it is not, or not known yet.
    """

    delivery_id: UUID
    event: str
    url: str
    state: str
    attempts: int
    last_attempt_at: datetime | None
    last_status: int | None
    last_error: str | None
    next_attempt_at: datetime | None
    created_at: datetime
    ended_at: datetime | None


@dataclass(frozen=True, slots=True)
class EndedTask:
    """What a delivery says, and where it goes.

    Attributes:
        secret: name of the secret it is signed with.
        attempts: which attempt this is.
    """

    task_id: UUID
    event: str
    url: str
    secret: str | None
    attempts: int
    status: str
    answer: str | None
    error: dict[str, Any] | None
    steps: int
    prompt_tokens: int
    completion_tokens: int
    cached_tokens: int
    billed_usd: Decimal
    waste_usd: Decimal
    saved_usd: Decimal
    user_id: str | None
    tags: dict[str, str]
    created_at: datetime
    finished_at: datetime


@dataclass(frozen=True, slots=True)
class Warned:
    """What a delivery says that is not about a task's end.

    Attributes:
        secret: name of the secret it is signed with.
        attempts: which attempt this is.
        said: what happened.
    """

    event: str
    url: str
    secret: str | None
    attempts: int
    said: dict[str, Any]
    filed_at: datetime


@dataclass(frozen=True, slots=True)
class Unstarted:
    """A delivery that no workflow is known to work at."""

    organisation_id: UUID
    delivery_id: UUID


_MOST_TOLD = 20
_COLUMNS = ", ".join(Delivery.__dataclass_fields__)


async def list_deliveries(db: Database, organisation_id: UUID, task_id: UUID) -> list[Delivery]:
    """A task's deliveries, first to last."""
    rows = await db.run(
        organisation_id,
        f"select {_COLUMNS} from webhook_deliveries"
        " where organisation_id = %s and task_id = %s order by delivery_id",
        (organisation_id, task_id),
    )
    return [Delivery(**row) for row in rows]


async def get_delivery(
    db: Database, organisation_id: UUID, task_id: UUID, delivery_id: UUID
) -> Delivery | None:
    """One delivery of a task."""
    rows = await db.run(
        organisation_id,
        f"select {_COLUMNS} from webhook_deliveries"
        " where organisation_id = %s and task_id = %s and delivery_id = %s",
        (organisation_id, task_id, delivery_id),
    )
    return Delivery(**rows[0]) if rows else None


async def is_own(db: Database, organisation_id: UUID, delivery_id: UUID) -> bool:
    """Whether a delivery is one of the organisation's."""
    rows = await db.run(
        organisation_id,
        "select 1 from webhook_deliveries where organisation_id = %s and delivery_id = %s",
        (organisation_id, delivery_id),
    )
    return bool(rows)


async def of_budget(db: Database, organisation_id: UUID, rule_id: UUID) -> list[Delivery]:
    """What was told of a budget, newest first."""
    rows = await db.run(
        organisation_id,
        f"select {_COLUMNS} from webhook_deliveries where organisation_id = %s and rule_id = %s"
        " order by delivery_id desc limit %s",
        (organisation_id, rule_id, _MOST_TOLD),
    )
    return [Delivery(**row) for row in rows]


async def begin_attempt(
    db: Database, organisation_id: UUID, delivery_id: UUID
) -> EndedTask | Warned | None:
    """Counts an attempt and says what to send; None when there is nothing to send any more."""
    rows = await db.call(organisation_id, "begin_webhook", "%s", (delivery_id,))
    if not rows:
        return None
    kind = EndedTask if rows[0]["said"] is None else Warned
    return kind(**{name: rows[0][name] for name in kind.__dataclass_fields__})


async def end_delivery(
    db: Database,
    organisation_id: UUID,
    delivery_id: UUID,
    state: Literal["delivered", "failed", "gone"],
    *,
    status: int | None = None,
    error: str | None = None,
) -> str:
    """Ends a delivery, once; returns the state it is in afterwards.

    Without `status` and `error`, what the newest attempt left stays.
    """
    rows = await db.run(
        organisation_id,
        "with ended as (update webhook_deliveries set state = %(state)s, ended_at = now(),"
        "  next_attempt_at = null, last_status = coalesce(%(status)s, last_status),"
        "  last_error = case when %(state)s = 'delivered' then null"
        "                    else coalesce(%(error)s, last_error) end"
        "  where organisation_id = %(org)s and delivery_id = %(delivery)s and state = 'pending'"
        "  returning state)"
        " select coalesce((select state from ended), (select state from webhook_deliveries"
        "  where organisation_id = %(org)s and delivery_id = %(delivery)s)) as state",
        {
            "org": organisation_id,
            "delivery": delivery_id,
            "state": state,
            "status": status,
            "error": error,
        },
    )
    return str(rows[0]["state"] or state)


async def note_failure(
    db: Database,
    organisation_id: UUID,
    delivery_id: UUID,
    *,
    status: int | None,
    error: str,
    next_attempt_in: timedelta,
) -> None:
    """Notes why an attempt did not go well, and when the next one is due."""
    await db.run(
        organisation_id,
        "update webhook_deliveries set last_status = %s, last_error = %s,"
        " next_attempt_at = now() + %s"
        " where organisation_id = %s and delivery_id = %s and state = 'pending'",
        (status, error, next_attempt_in, organisation_id, delivery_id),
    )


async def redeliver(
    db: Database, organisation_id: UUID, task_id: UUID, delivery_id: UUID
) -> Delivery | None:
    """Has a delivery that has ended made once more; one that goes on stays as it is.

    Returns:
        The delivery; None when the task has none of this id.
    """
    await db.run(
        organisation_id,
        "update webhook_deliveries set state = 'pending', started_at = null, ended_at = null,"
        " next_attempt_at = null"
        " where organisation_id = %s and task_id = %s and delivery_id = %s"
        " and state <> 'pending'",
        (organisation_id, task_id, delivery_id),
    )
    return await get_delivery(db, organisation_id, task_id, delivery_id)


async def of_task_unstarted(db: Database, organisation_id: UUID, task_id: UUID) -> list[UUID]:
    """Deliveries of a task that no workflow is known to work at."""
    rows = await db.run(
        organisation_id,
        "select delivery_id from webhook_deliveries where organisation_id = %s and task_id = %s"
        " and state = 'pending' and started_at is null",
        (organisation_id, task_id),
    )
    return [row["delivery_id"] for row in rows]


async def mark_started(db: Database, organisation_id: UUID, delivery_id: UUID) -> None:
    """Notes that a workflow was started for a delivery."""
    await db.run(
        organisation_id,
        "update webhook_deliveries set started_at = now()"
        " where organisation_id = %s and delivery_id = %s",
        (organisation_id, delivery_id),
    )


async def unstarted(
    db: Database, *, older_than: timedelta = timedelta(seconds=5), limit: int = 100
) -> list[Unstarted]:
    """Deliveries of every organisation that no workflow is known to work at, oldest first.

    For the sweeper: starting one twice is harmless, the workflow's id is the delivery's.
    """
    rows = await db.run_untenanted("select * from unstarted_webhooks(%s, %s)", (older_than, limit))
    return [Unstarted(**row) for row in rows]
