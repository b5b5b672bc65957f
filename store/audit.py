"""Who did what: one hash chain per organisation, append-only."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime
from typing import Any
from uuid import UUID

from store.database import Database
from store.text import jsonb, storable


@dataclass(frozen=True, slots=True)
class AuditEntry:
    """One link of the chain; `digest` covers the entry and the digest before it."""

    seq: int
    at: datetime
    actor: str
    action: str
    subject: str
    detail: dict[str, Any]
    digest: bytes


async def append(
    db: Database,
    organisation_id: UUID,
    *,
    actor: str,
    action: str,
    subject: str,
    detail: dict[str, Any] | None = None,
) -> int:
    """Adds an entry and returns its number, from 1 and without gaps.

    Args:
        actor: who did it: a key prefix, or the part of the system.
        action: what was done, `noun.verb`.
        subject: the id of what it was done to.
        detail: more facts; no secrets and no prompts.
    """
    rows = await db.run(
        organisation_id,
        "select audit_append(%s, %s, %s, %s) as seq",
        (storable(actor), storable(action), storable(subject), jsonb(detail or {})),
    )
    return int(rows[0]["seq"])


async def verify(db: Database, organisation_id: UUID) -> int | None:
    """Recomputes the chain.

    Returns:
        The first number that does not fit (changed, missing or cut off), or None.
    """
    rows = await db.run(organisation_id, "select audit_verify() as bad")
    bad: int | None = rows[0]["bad"]
    return bad


async def read(
    db: Database, organisation_id: UUID, *, after: int = 0, limit: int = 100
) -> list[AuditEntry]:
    """Entries in order, from the one after `after` on."""
    rows = await db.run(
        organisation_id,
        "select seq, at, actor, action, subject, detail, digest from audit_log"
        " where organisation_id = %s and seq > %s order by seq limit %s",
        (organisation_id, after, limit),
    )
    return [AuditEntry(**row) for row in rows]


async def find(
    db: Database,
    organisation_id: UUID,
    *,
    actor: str | None = None,
    action: str | None = None,
    subject: str | None = None,
    since: datetime | None = None,
    until: datetime | None = None,
    before: int | None = None,
    limit: int = 100,
) -> list[AuditEntry]:
    """Entries, newest first.

    Args:
        action: this one; ending with a dot, all that begin so.
        since: from this moment on.
        until: up to but not including this moment.
        before: only entries with smaller numbers.
    """
    rows = await db.run(
        organisation_id,
        "select seq, at, actor, action, subject, detail, digest from audit_log"
        " where organisation_id = %(organisation)s"
        " and (%(actor)s::text is null or actor = %(actor)s)"
        " and (%(action)s::text is null or action = %(action)s"
        "      or (right(%(action)s, 1) = '.' and starts_with(action, %(action)s)))"
        " and (%(subject)s::text is null or subject = %(subject)s)"
        " and (%(since)s::timestamptz is null or at >= %(since)s)"
        " and (%(until)s::timestamptz is null or at < %(until)s)"
        " and (%(before)s::bigint is null or seq < %(before)s)"
        " order by seq desc limit %(limit)s",
        {
            "organisation": organisation_id,
            "actor": actor,
            "action": action,
            "subject": subject,
            "since": since,
            "until": until,
            "before": before,
            "limit": limit,
        },
    )
    return [AuditEntry(**row) for row in rows]


async def length(db: Database, organisation_id: UUID) -> int:
    """How many entries the chain has."""
    rows = await db.run(
        organisation_id,
        "select coalesce(max(seq), 0) as n from audit_heads where organisation_id = %s",
        (organisation_id,),
    )
    return int(rows[0]["n"])
