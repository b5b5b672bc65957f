"""The organisation's audit log, and whether its chain is whole."""

from __future__ import annotations

from datetime import datetime
from typing import Annotated, Any

from fastapi import APIRouter, Depends, Query
from pydantic import AwareDatetime, BaseModel, ConfigDict, Field

from api.authentication import AdminCaller, parts_of
from api.openapi import answers
from api.parts import Parts
from store import audit

__all__ = ["router"]

router = APIRouter(tags=["identity"])

PartsOf = Annotated[Parts, Depends(parts_of)]
_Text = Annotated[str, Query(min_length=1, max_length=200, pattern=r"^[^\x00-\x1f\x7f]+$")]


class AuditEntryView(BaseModel):
    """One link of the chain."""

    model_config = ConfigDict(frozen=True)

    number: int = Field(description="From 1, without gaps.", ge=1)
    at: datetime = Field(description="When, RFC 3339 in UTC.")
    actor: str = Field(description="Who: the prefix of a key, `operator`, or a part of ours.")
    action: str = Field(description="What was done, `noun.verb`.", examples=["key.disabled"])
    subject: str = Field(description="To what: its id.")
    detail: dict[str, Any] = Field(description="More facts; of a change, `before` and `after`.")
    digest: str = Field(description="SHA-256 over this entry and the digest before it, in hex.")


class AuditPage(BaseModel):
    """A page of the log."""

    model_config = ConfigDict(frozen=True)

    entries: tuple[AuditEntryView, ...] = Field(description="Newest first.")
    next_cursor: int | None = Field(description="`cursor` of the next page; none: the last one.")


class AuditVerdict(BaseModel):
    """Whether the chain is whole."""

    model_config = ConfigDict(frozen=True)

    intact: bool = Field(description="Whether every entry fits the one before it.")
    entries: int = Field(description="How many entries there should be.", ge=0)
    first_broken: int | None = Field(
        description="Number of the first entry that was changed, is missing or was cut off."
    )


@router.get("/v1/audit", responses=answers(), summary="Read the audit log")
async def list_audit(
    caller: AdminCaller,
    parts: PartsOf,
    actor: Annotated[_Text | None, Query(description="Only what this one did.")] = None,
    action: Annotated[
        _Text | None, Query(description="Only this; `key.` stands for all that begin so.")
    ] = None,
    subject: Annotated[_Text | None, Query(description="Only what was done to this.")] = None,
    since: Annotated[
        AwareDatetime | None, Query(description="From this moment on, RFC 3339.")
    ] = None,
    until: Annotated[
        AwareDatetime | None, Query(description="Up to but not including it, RFC 3339.")
    ] = None,
    limit: Annotated[int, Query(ge=1, le=500, description="Entries on a page, at most.")] = 100,
    cursor: Annotated[
        int | None,
        Query(ge=1, lt=2**63, description="`next_cursor` of the page before; none: the newest."),
    ] = None,
) -> AuditPage:
    """Read who did what in the organisation, newest first."""
    found = await audit.find(
        parts.database,
        caller.organisation_id,
        actor=actor,
        action=action,
        subject=subject,
        since=since,
        until=until,
        before=cursor,
        limit=limit + 1,
    )
    return AuditPage(
        entries=tuple(
            AuditEntryView(
                number=entry.seq,
                at=entry.at,
                actor=entry.actor,
                action=entry.action,
                subject=entry.subject,
                detail=entry.detail,
                digest=entry.digest.hex(),
            )
            for entry in found[:limit]
        ),
        next_cursor=found[limit - 1].seq if len(found) > limit else None,
    )


@router.get("/v1/audit/verify", responses=answers(), summary="Verify the audit log")
async def verify_audit(caller: AdminCaller, parts: PartsOf) -> AuditVerdict:
    """Compute the hash chain anew, from its first entry to its head."""
    broken = await audit.verify(parts.database, caller.organisation_id)
    entries = await audit.length(parts.database, caller.organisation_id)
    return AuditVerdict(intact=broken is None, entries=entries, first_broken=broken)
