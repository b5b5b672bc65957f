"""What was spent: sums over the ledger, by whoever or whatever it was spent on."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from decimal import Decimal
from typing import Annotated
from uuid import UUID

from fastapi import APIRouter, Depends, Query
from pydantic import AwareDatetime, BaseModel, ConfigDict, Field

from api.authentication import SpendCaller, parts_of
from api.openapi import answers
from api.parts import Parts
from api.problems import invalid
from api.task_views import Usd
from store import spend

__all__ = ["router"]

router = APIRouter(tags=["spend"])

_DEFAULT_DAYS = 30
_LONGEST_DAYS = 400


class SpendLine(BaseModel):
    """What was spent on one group."""

    model_config = ConfigDict(frozen=True)

    group: str | None = Field(
        description="The group: an id, a name, a day (`2026-12-01`), `name=value` of a tag, or "
        "none where the request named no user."
    )
    calls: int = Field(description="Model calls.", ge=0)
    attempts: int = Field(description="Attempts of them: rows of the ledger.", ge=0)
    uncached_input_tokens: int = Field(description="Prompt tokens computed, in tokens.", ge=0)
    cached_input_tokens: int = Field(
        description="Prompt tokens from the engine's prefix cache, in tokens.", ge=0
    )
    output_tokens: int = Field(description="Tokens generated, in tokens.", ge=0)
    billed_usd: Usd = Field(description="Billed, in USD.")
    waste_usd: Usd = Field(description="Paid for, thrown away and not billed, in USD.")
    saved_usd: Usd = Field(description="Saved by Overline's cache, in USD.")


class Spend(BaseModel):
    """Spend by group, dearest first."""

    model_config = ConfigDict(frozen=True)

    group_by: spend.GroupBy = Field(description="What a line is about.")
    since: datetime = Field(description="From this moment on, RFC 3339 in UTC.")
    until: datetime = Field(description="Up to but not including this moment, RFC 3339 in UTC.")
    lines: tuple[SpendLine, ...] = Field(description="The lines; at most 1,000.")
    billed_usd: Usd = Field(
        description="Billed in all lines, in USD. A call with several tags "
        "counts under each, so by `tag` this is no total."
    )


@router.get("/v1/spend", responses=answers(), summary="What was spent")
async def get_spend(
    caller: SpendCaller,
    parts: Annotated[Parts, Depends(parts_of)],
    group_by: Annotated[spend.GroupBy, Query(description="What to add up by.")] = "model",
    since: Annotated[
        AwareDatetime | None, Query(description="RFC 3339; default: 30 days before `until`.")
    ] = None,
    until: Annotated[AwareDatetime | None, Query(description="RFC 3339; default: now.")] = None,
    team: Annotated[UUID | None, Query(description="Only this team.")] = None,
    key: Annotated[UUID | None, Query(description="Only this API key.")] = None,
    task: Annotated[UUID | None, Query(description="Only this task.")] = None,
    model: Annotated[
        str | None, Query(min_length=1, max_length=128, description="Only this model.")
    ] = None,
    route: Annotated[
        str | None, Query(min_length=1, max_length=128, description="Only this route.")
    ] = None,
    user: Annotated[
        str | None, Query(min_length=1, max_length=200, description="Only this end user.")
    ] = None,
) -> Spend:
    """Add up the organisation's ledger over a period, by one property, dearest group first."""
    end = (until or datetime.now(UTC)).astimezone(UTC)
    start = (since or end - timedelta(days=_DEFAULT_DAYS)).astimezone(UTC)
    if start >= end:
        raise invalid("/since", "too_large", "It must be before `until`.", where="query")
    if end - start > timedelta(days=_LONGEST_DAYS):
        detail = f"At most {_LONGEST_DAYS} days before `until`."
        raise invalid("/since", "too_small", detail, where="query")
    filters = {
        "team": team,
        "key": key,
        "task": task,
        "model": model,
        "route": route,
        "user": user,
    }
    rows = await spend.query(
        parts.database,
        caller.organisation_id,
        group_by=group_by,
        since=start,
        until=end,
        filters={name: value for name, value in filters.items() if value is not None},
    )
    lines = tuple(SpendLine.model_validate(row, from_attributes=True) for row in rows)
    return Spend(
        group_by=group_by,
        since=start,
        until=end,
        lines=lines,
        billed_usd=sum((line.billed_usd for line in lines), start=Decimal(0)),
    )
