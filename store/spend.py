"""Sums over the ledger, by whom or what the money went to."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime
from decimal import Decimal
from typing import Any, Literal
from uuid import UUID

from store.database import Database

GroupBy = Literal[
    "organisation",
    "team",
    "key",
    "user",
    "tag",
    "model",
    "route",
    "agent",
    "task",
    "step",
    "day",
    "month",
    "waste_cause",
]

# Only these expressions ever reach SQL; what callers send chooses among them or is a parameter.
_GROUPS: Mapping[str, str] = {
    "organisation": "organisation_id::text",
    "team": "team_id::text",
    "key": "key_id::text",
    "user": "user_id",
    "tag": "tag.key || '=' || tag.value",
    "model": "model",
    "route": "route",
    "agent": "agent.name",
    "task": "task_id::text",
    "step": "task_id || ':' || step",
    "day": "to_char(started_at at time zone 'UTC', 'YYYY-MM-DD')",
    "month": "to_char(started_at at time zone 'UTC', 'YYYY-MM')",
    "waste_cause": "waste_cause",
}
_FILTERS: Mapping[str, str] = {
    "team": "team_id",
    "key": "key_id",
    "user": "user_id",
    "model": "model",
    "route": "route",
    "task": "task_id",
}


@dataclass(frozen=True, slots=True)
class SpendRow:
    """One group's sums.

    Attributes:
        group: id, name, day, `name=value` of a tag; None where the request named none.
        calls: model calls; `attempts` counts their ledger rows.
    """

    group: str | None
    calls: int
    attempts: int
    uncached_input_tokens: int
    cached_input_tokens: int
    output_tokens: int
    billed_usd: Decimal
    waste_usd: Decimal
    saved_usd: Decimal


async def query(
    db: Database,
    organisation_id: UUID,
    *,
    group_by: GroupBy,
    since: datetime,
    until: datetime,
    filters: Mapping[str, Any] | None = None,
    limit: int = 1000,
) -> list[SpendRow]:
    """Adds up an organisation's ledger, dearest group first.

    Args:
        group_by: what to add up by. By `tag`, a call with several tags counts under each.
        since: from this moment on, by the start of the attempt.
        until: up to but not including this moment.
        filters: equal values of `team`, `key`, `user`, `model`, `route` or `task`.
        limit: most groups to return.

    Raises:
        ValueError: an unknown group or filter.
    """
    unknown = set(filters or {}) - set(_FILTERS)
    if group_by not in _GROUPS or unknown:
        raise ValueError(f"cannot group by {group_by!r} or filter by {sorted(unknown)}")
    source = "model_calls"
    if group_by == "tag":
        source += ", jsonb_each_text(tags) as tag (key, value)"
    if group_by == "agent":
        source += (
            ", lateral (select t.agent_name as name from tasks t"
            " where t.organisation_id = model_calls.organisation_id"
            " and t.task_id = model_calls.task_id) as agent"
        )
    conditions = ["organisation_id = %s", "started_at >= %s", "started_at < %s"]
    params: list[Any] = [organisation_id, since, until]
    for name, value in (filters or {}).items():
        conditions.append(f"{_FILTERS[name]} = %s")
        params.append(value)
    rows = await db.run(
        organisation_id,
        f'select {_GROUPS[group_by]} as "group", count(distinct call_key) as calls,'
        " count(*) as attempts,"
        " sum(uncached_input_tokens)::bigint as uncached_input_tokens,"
        " sum(cached_input_tokens)::bigint as cached_input_tokens,"
        " sum(output_tokens)::bigint as output_tokens,"
        " sum(billed_usd) as billed_usd, sum(waste_usd) as waste_usd,"
        " sum(saved_usd) as saved_usd"
        f" from {source} where {' and '.join(conditions)}"
        " group by 1 order by billed_usd desc, 1 limit %s",
        [*params, limit],
    )
    return [SpendRow(**row) for row in rows]
