"""What people decide about tool calls: the row is the truth, a workflow only hears of it."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any, Literal
from uuid import UUID

from store.database import Database
from store.text import jsonb, storable_or_none

Verdict = Literal["decided", "same", "other", "finished", "no call", "no task"]


@dataclass(frozen=True, slots=True)
class Approval:
    """A call that a person decides about; `decision` is None until then."""

    call_id: str
    step: int
    tool: str
    arguments: dict[str, Any]
    arguments_digest: str
    requested_at: datetime
    decision: Literal["approve", "refuse"] | None
    decided_arguments: dict[str, Any] | None
    reason: str | None
    decided_by: UUID | None
    decided_at: datetime | None

    @property
    def effective(self) -> dict[str, Any]:
        """The arguments the call is made with: the person's, where they changed them."""
        return self.arguments if self.decided_arguments is None else self.decided_arguments


@dataclass(frozen=True, slots=True)
class Untold:
    """A decision that nobody has confirmed as told to its workflow."""

    organisation_id: UUID
    task_id: UUID
    call_id: str


_COLUMNS = (
    "call_id, step, tool, arguments, arguments_digest, requested_at, decision, decided_arguments,"
    " reason, decided_by, decided_at"
)


async def request_approval(
    db: Database,
    organisation_id: UUID,
    task_id: UUID,
    *,
    step: int,
    call_id: str,
    tool: str,
    arguments: dict[str, Any],
    arguments_digest: str,
) -> None:
    """Asks people about a call and files `approval.requested`, once.

    Raises:
        NotFound: the organisation has no such task.
    """
    await db.call(
        organisation_id,
        "request_approval",
        "%s, %s, %s, %s, %s, %s",
        (task_id, step, call_id, tool, jsonb(arguments), arguments_digest),
    )


async def decide(
    db: Database,
    organisation_id: UUID,
    task_id: UUID,
    call_id: str,
    *,
    decision: Literal["approve", "refuse"],
    arguments: dict[str, Any] | None,
    reason: str | None,
    key_id: UUID,
) -> Verdict:
    """Takes a decision; the first one stands."""
    rows = await db.call(
        organisation_id,
        "decide_approval",
        "%s, %s, %s, %s, %s, %s",
        (
            task_id,
            call_id,
            decision,
            None if arguments is None else jsonb(arguments),
            storable_or_none(reason),
            key_id,
        ),
    )
    verdict: Verdict = rows[0]["f"]
    return verdict


async def get(db: Database, organisation_id: UUID, task_id: UUID, call_id: str) -> Approval | None:
    """One approval, if there is one."""
    rows = await db.run(
        organisation_id,
        f"select {_COLUMNS} from approvals"
        " where organisation_id = %s and task_id = %s and call_id = %s",
        (organisation_id, task_id, call_id),
    )
    return Approval(**rows[0]) if rows else None


async def of_task(db: Database, organisation_id: UUID, task_id: UUID) -> list[Approval]:
    """The approvals of a task, first to last."""
    rows = await db.run(
        organisation_id,
        f"select {_COLUMNS} from approvals where organisation_id = %s and task_id = %s"
        " order by step, requested_at",
        (organisation_id, task_id),
    )
    return [Approval(**row) for row in rows]


async def about_answer(
    db: Database, organisation_id: UUID, task_id: UUID, sha256: str
) -> Approval | None:
    """The approval of a sealed answer, by the blob it is in, if people are asked about it."""
    rows = await db.run(
        organisation_id,
        f"select {_COLUMNS} from approvals where organisation_id = %s and task_id = %s"
        " and arguments ->> 'answer' = %s and call_id like '%%:answer'",
        (organisation_id, task_id, sha256),
    )
    return Approval(**rows[0]) if rows else None


async def are_waiting(db: Database, organisation_id: UUID, task_id: UUID) -> bool:
    """Whether a call of a task waits for a person."""
    rows = await db.run(
        organisation_id,
        "select exists (select from approvals where organisation_id = %s and task_id = %s"
        " and decision is null) as waiting",
        (organisation_id, task_id),
    )
    return bool(rows[0]["waiting"])


async def mark_told(db: Database, organisation_id: UUID, task_id: UUID, call_id: str) -> None:
    """Notes that the workflow has heard of a decision."""
    await db.run(
        organisation_id,
        "update approvals set told = true where organisation_id = %s and task_id = %s"
        " and call_id = %s and decision is not null",
        (organisation_id, task_id, call_id),
    )


async def untold_decisions(
    db: Database, *, older_than: timedelta = timedelta(seconds=3), limit: int = 100
) -> list[Untold]:
    """Decisions of every organisation that were not told, oldest first.

    For the sweeper: telling one twice is harmless, a workflow looks at the row.
    """
    rows = await db.run_untenanted("select * from untold_decisions(%s, %s)", (older_than, limit))
    return [Untold(**row) for row in rows]
