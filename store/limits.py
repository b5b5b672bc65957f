"""Limits of rate: requests, tokens and calls at once, of organisations, teams and keys."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime
from typing import Literal
from uuid import UUID

from store.database import Database

__all__ = ["Caps", "LimitScope", "RateLimit", "list_limits", "remove_limit", "set_limit"]

LimitScope = Literal["key", "team", "organisation"]


@dataclass(frozen=True, slots=True)
class Caps:
    """How much; None does not limit."""

    requests_per_minute: int | None = None
    input_tokens_per_minute: int | None = None
    output_tokens_per_minute: int | None = None
    tokens_per_minute: int | None = None
    concurrent_calls: int | None = None


@dataclass(frozen=True, slots=True)
class RateLimit:
    """A limit, and what is used of it now.

    Attributes:
        model: a model, a route, or a name that ends in *; None: all of them together.
        used_requests: of one full minute's worth; what is used leaks away at the limit's own rate.
    """

    limit_id: UUID
    scope: LimitScope
    scope_id: UUID
    model: str | None
    caps: Caps
    used_requests: float
    used_input_tokens: float
    used_output_tokens: float
    used_tokens: float
    open_calls: int
    created_at: datetime


async def set_limit(
    db: Database,
    organisation_id: UUID,
    *,
    actor: str,
    scope: LimitScope,
    scope_id: UUID,
    model: str | None,
    caps: Caps,
) -> UUID | None:
    """Sets what a key, a team or the organisation may use of a model, or of all together.

    What is used of an earlier limit of the same stays used. The change is in the audit log.

    Returns:
        The limit's id; None: the organisation has no such key or team.
    """
    rows = await db.call(
        organisation_id,
        "set_limit",
        "%s, %s, %s, %s, %s, %s, %s, %s, %s",
        (
            actor,
            scope,
            scope_id,
            model or "",
            caps.requests_per_minute,
            caps.input_tokens_per_minute,
            caps.output_tokens_per_minute,
            caps.tokens_per_minute,
            caps.concurrent_calls,
        ),
    )
    made: UUID | None = rows[0]["f"]
    return made


async def remove_limit(db: Database, organisation_id: UUID, limit_id: UUID, *, actor: str) -> bool:
    """Lifts a limit; False: there is none. The change is in the audit log."""
    rows = await db.call(organisation_id, "remove_limit", "%s, %s", (actor, limit_id))
    return bool(rows[0]["f"])


async def list_limits(db: Database, organisation_id: UUID) -> list[RateLimit]:
    """All limits of an organisation, keys first."""
    rows = await db.run(
        organisation_id,
        "select l.limit_id, l.scope, l.scope_id, nullif(l.model, '') as model,"
        " l.requests_per_minute, l.input_tokens_per_minute, l.output_tokens_per_minute,"
        " l.tokens_per_minute, l.concurrent_calls, l.open_calls, l.created_at,"
        " leaked(l.used_requests, l.requests_per_minute, s.seconds) as used_requests,"
        " leaked(l.used_input, l.input_tokens_per_minute, s.seconds) as used_input_tokens,"
        " leaked(l.used_output, l.output_tokens_per_minute, s.seconds) as used_output_tokens,"
        " leaked(l.used_tokens, l.tokens_per_minute, s.seconds) as used_tokens"
        " from rate_limits l, lateral (select"
        " extract(epoch from clock_timestamp() - l.as_of)::float8 as seconds) s"
        " where l.organisation_id = %s order by l.depth, l.created_at, l.limit_id",
        (organisation_id,),
    )
    names = Caps.__dataclass_fields__
    return [
        RateLimit(
            caps=Caps(**{name: row[name] for name in names}),
            **{name: value for name, value in row.items() if name not in names},
        )
        for row in rows
    ]
