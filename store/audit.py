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
