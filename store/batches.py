"""Batches: what was submitted, how far it is, what came of it."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime, timedelta
from decimal import Decimal
from typing import Any, Literal
from uuid import UUID

from store.database import Database
from store.identity import Principal
from store.text import jsonb

__all__ = [
    "Batch",
    "BatchPage",
    "BatchWork",
    "Filed",
    "OnBudget",
    "Stranded",
    "begin_batch",
    "begin_end",
    "cancel_batch",
    "end_batch",
    "file_batch",
    "get_batch",
    "list_batches",
    "mark_batch_started",
    "stranded_batches",
    "work_of",
]

OnBudget = Literal["fail", "wait"]
Status = Literal[
    "validating",
    "in_progress",
    "finalizing",
    "completed",
    "failed",
    "expired",
    "cancelling",
    "cancelled",
]


@dataclass(frozen=True, slots=True)
class Filed:
    """A batch is on file.

    Attributes:
        batch_id: the new one, or the first of the same idempotency key.
        created: False when this request repeats an earlier one.
        conflict: True when the idempotency key was used before for another request.
    """

    batch_id: UUID
    created: bool
    conflict: bool


@dataclass(frozen=True, slots=True)
class Batch:
    """A batch as its owner reads it.

    Attributes:
        errors: why it failed: `code`, `message`, `param`, `line`.
        total: its requests; 0 until they were looked at.
        output_file_id: what was answered, once it has ended and anything was.
        error_file_id: what was not, likewise.
    """

    batch_id: UUID
    endpoint: str
    input_file_id: UUID
    completion_window: str
    metadata: dict[str, str]
    status: Status
    errors: list[dict[str, Any]] | None
    total: int
    completed: int
    failed: int
    prompt_tokens: int
    cached_tokens: int
    completion_tokens: int
    reasoning_tokens: int
    billed_usd: Decimal
    output_file_id: UUID | None
    error_file_id: UUID | None
    created_at: datetime
    in_progress_at: datetime | None
    finalizing_at: datetime | None
    cancelling_at: datetime | None
    expires_at: datetime
    ended_at: datetime | None


@dataclass(frozen=True, slots=True)
class BatchPage:
    """A page of batches, newest first; `more` when others come after it."""

    batches: list[Batch]
    more: bool


@dataclass(frozen=True, slots=True)
class BatchWork:
    """A batch as who works on it sees it.

    Attributes:
        key_digest: of its key as it is today; None: the key is gone.
        address: where it was submitted from.
    """

    team_id: UUID
    key_id: UUID
    key_digest: bytes
    endpoint: str
    input_file_id: UUID
    metadata: dict[str, str]
    on_budget: OnBudget
    keep_output: timedelta
    address: str | None
    status: Status
    ended: bool


@dataclass(frozen=True, slots=True)
class Stranded:
    """A batch that no workflow is known to carry."""

    organisation_id: UUID
    team_id: UUID
    key_id: UUID
    batch_id: UUID
    expires_at: datetime


async def file_batch(
    db: Database,
    principal: Principal,
    *,
    batch_id: UUID,
    idempotency_key: str | None,
    request_digest: str,
    endpoint: str,
    input_file_id: UUID,
    completion_window: str,
    window: timedelta,
    metadata: dict[str, str],
    on_budget: OnBudget,
    keep_output: timedelta,
    address: str | None,
) -> Filed | None:
    """Files a batch, or finds it filed; None when the team has no such input.

    The input's row is looked at under its lock, so it is not deleted from under the batch.
    """
    organisation_id = principal.organisation_id
    async with db.transaction(organisation_id) as connection:

        async def first() -> Filed | None:
            found = await connection.execute(
                "select batch_id, request_digest <> %s as conflict from batches"
                " where organisation_id = %s and key_id = %s and idempotency_key = %s",
                (request_digest, organisation_id, principal.key_id, idempotency_key),
            )
            return Filed(**found[0], created=False) if found else None

        if idempotency_key is not None and (earlier := await first()) is not None:
            return earlier
        found = await connection.execute(
            "select file_id from files where organisation_id = %s and file_id = %s"
            " and team_id = %s and purpose = 'batch' and state = 'ready' and expires_at > now()"
            " for share",
            (organisation_id, input_file_id, principal.team_id),
        )
        if not found:
            return None
        made = await connection.execute(
            "insert into batches (organisation_id, batch_id, team_id, key_id, idempotency_key,"
            " request_digest, endpoint, input_file_id, completion_window, metadata, on_budget,"
            " keep_output, address, expires_at)"
            " values (%s, %s, %s, %s, %s, %s, %s, %s, %s, %s, %s, %s, %s, now() + %s)"
            " on conflict do nothing returning batch_id",
            (
                organisation_id,
                batch_id,
                principal.team_id,
                principal.key_id,
                idempotency_key,
                request_digest,
                endpoint,
                input_file_id,
                completion_window,
                jsonb(metadata),
                on_budget,
                keep_output,
                address,
                window,
            ),
        )
        if made:
            return Filed(batch_id, created=True, conflict=False)
        # Asked twice at the same moment.
        earlier = await first()
        assert earlier is not None
        return earlier


# While it goes on its lines are counted and summed; what it wrote is nobody's before its end.
_READ = """
select b.batch_id, b.endpoint, b.input_file_id, b.completion_window, b.metadata, b.status,
       b.errors, b.total, coalesce(l.completed, b.completed) as completed,
       coalesce(l.failed, b.failed) as failed,
       coalesce(l.prompt_tokens, b.prompt_tokens) as prompt_tokens,
       coalesce(l.cached_tokens, b.cached_tokens) as cached_tokens,
       coalesce(l.completion_tokens, b.completion_tokens) as completion_tokens,
       coalesce(l.reasoning_tokens, b.reasoning_tokens) as reasoning_tokens,
       coalesce(l.billed_usd, b.billed_usd) as billed_usd,
       case when b.ended_at is not null then b.output_file_id end as output_file_id,
       case when b.ended_at is not null then b.error_file_id end as error_file_id,
       b.created_at, b.in_progress_at, b.finalizing_at, b.cancelling_at, b.expires_at, b.ended_at
  from batches b
  left join lateral (
      select count(*) filter (where x.state = 'answered') as completed,
             count(*) filter (where x.state = 'failed') as failed,
             coalesce(sum(x.prompt_tokens), 0) as prompt_tokens,
             coalesce(sum(x.cached_tokens), 0) as cached_tokens,
             coalesce(sum(x.completion_tokens), 0) as completion_tokens,
             coalesce(sum(x.reasoning_tokens), 0) as reasoning_tokens,
             coalesce(sum(x.billed_usd), 0) as billed_usd
        from batch_lines x
       where x.organisation_id = b.organisation_id and x.batch_id = b.batch_id
  ) l on b.ended_at is null
"""


async def get_batch(db: Database, organisation_id: UUID, batch_id: UUID) -> Batch | None:
    """A batch, or None when the organisation has no such."""
    rows = await db.run(
        organisation_id,
        f"{_READ} where b.organisation_id = %s and b.batch_id = %s",
        (organisation_id, batch_id),
    )
    return Batch(**rows[0]) if rows else None


async def list_batches(
    db: Database, organisation_id: UUID, *, limit: int, after: UUID | None
) -> BatchPage:
    """A page of an organisation's batches, newest first."""
    rows = await db.run(
        organisation_id,
        f"{_READ} where b.organisation_id = %(org)s"
        " and (%(after)s::uuid is null or b.batch_id < %(after)s)"
        " order by b.batch_id desc limit %(limit)s",
        {"org": organisation_id, "after": after, "limit": limit + 1},
    )
    return BatchPage([Batch(**row) for row in rows[:limit]], len(rows) > limit)


async def cancel_batch(db: Database, organisation_id: UUID, batch_id: UUID) -> bool:
    """Has a batch begin nothing more; False when it does not any more anyhow."""
    rows = await db.run(
        organisation_id,
        "update batches set status = 'cancelling', cancelling_at = now()"
        " where organisation_id = %s and batch_id = %s and status in ('validating', 'in_progress')"
        " returning batch_id",
        (organisation_id, batch_id),
    )
    return bool(rows)


async def mark_batch_started(db: Database, organisation_id: UUID, batch_id: UUID) -> None:
    """Notes that a batch has its workflow."""
    await db.run(
        organisation_id,
        "update batches set started_at = coalesce(started_at, now())"
        " where organisation_id = %s and batch_id = %s",
        (organisation_id, batch_id),
    )


async def stranded_batches(
    db: Database, *, older_than: timedelta = timedelta(seconds=10), limit: int = 100
) -> list[Stranded]:
    """Batches of every organisation that no workflow is known to carry, oldest first."""
    rows = await db.run_untenanted("select * from stranded_batches(%s, %s)", (older_than, limit))
    return [Stranded(**row) for row in rows]


async def work_of(db: Database, organisation_id: UUID, batch_id: UUID) -> BatchWork | None:
    """A batch for who works on it, with its key as it is today; None when there is no such."""
    rows = await db.run(
        organisation_id,
        "select b.team_id, b.key_id, k.secret_hash as key_digest, b.endpoint, b.input_file_id,"
        " b.metadata, b.on_budget, b.keep_output, b.address, b.status,"
        " b.ended_at is not null as ended"
        "  from batches b"
        "  join api_keys k on k.organisation_id = b.organisation_id and k.key_id = b.key_id"
        " where b.organisation_id = %s and b.batch_id = %s",
        (organisation_id, batch_id),
    )
    return BatchWork(**rows[0]) if rows else None


async def begin_batch(db: Database, organisation_id: UUID, batch_id: UUID, total: int) -> None:
    """Says that a batch's lines are on file; it begins, unless it was cancelled meanwhile."""
    await db.run(
        organisation_id,
        "update batches set total = %s, in_progress_at = coalesce(in_progress_at, now()),"
        " status = case when status = 'validating' then 'in_progress' else status end"
        " where organisation_id = %s and batch_id = %s and ended_at is null",
        (total, organisation_id, batch_id),
    )


@dataclass(frozen=True, slots=True)
class Ending:
    """What a batch will have ended as, and the files to be written."""

    outcome: Status
    output_file_id: UUID
    error_file_id: UUID


async def begin_end(
    db: Database,
    organisation_id: UUID,
    batch_id: UUID,
    *,
    errors: list[dict[str, Any]] | None,
    output_file_id: UUID,
    error_file_id: UUID,
) -> Ending | None:
    """Has a batch begin nothing more; None when it has ended. The first outcome stands.

    Args:
        errors: why it fails, if it does.
        output_file_id: file of what was answered, and
        error_file_id: of what was not, unless they have been named before.
    """
    rows = await db.call(
        organisation_id,
        "begin_batch_end",
        "%s, %s, %s, %s",
        (batch_id, jsonb(errors), output_file_id, error_file_id),
    )
    return Ending(**rows[0]) if rows[0]["outcome"] is not None else None


async def end_batch(db: Database, organisation_id: UUID, batch_id: UUID, outcome: str) -> bool:
    """Ends a batch whose files are written; False when it had ended."""
    rows = await db.call(organisation_id, "end_batch", "%s, %s", (batch_id, outcome))
    return bool(rows[0]["f"])
