"""Maps: one task for each of many inputs; what they are, how far they are, what came of them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from decimal import Decimal
from typing import Any
from uuid import UUID

from store.database import Database
from store.identity import Principal
from store.refusals import Refusal, refusal_from_row
from store.screened_tasks import TaskScreening, filed
from store.tasks import Submitted
from store.text import jsonb

__all__ = [
    "FiledItem",
    "ItemResult",
    "MapProgress",
    "file_items",
    "map_progress",
    "map_request",
    "map_results",
    "submit_map",
]


@dataclass(frozen=True, slots=True)
class MapProgress:
    """How many inputs of a map are in which state; `failed` counts cancelled ones, too."""

    total: int
    waiting: int
    running: int
    done: int
    failed: int
    skipped: int


@dataclass(frozen=True, slots=True)
class FiledItem:
    """An input whose task is on file."""

    number: int
    task_id: UUID
    input: dict[str, Any]


@dataclass(frozen=True, slots=True)
class ItemResult:
    """What came of one input; `billed_usd` is that of its task and everything below it, in USD."""

    number: int
    task_id: UUID | None
    status: str
    answer: str | None
    error: dict[str, Any] | None
    billed_usd: Decimal


async def submit_map(
    db: Database,
    principal: Principal,
    *,
    task_id: UUID,
    idempotency_key: str | None,
    request_digest: str,
    input: dict[str, Any],  # noqa: A002 - the field's name on the wire
    user: str | None,
    tags: dict[str, str],
    route: str,
    worst_case_usd: Decimal,
    max_cost_usd: Decimal | None,
    items: Sequence[dict[str, Any]],
    screening: TaskScreening | None = None,
) -> Submitted | Refusal:
    """Files a map and its inputs, in one round trip.

    Args:
        input: what the map is; its member `task` is what all inputs' requests have in common.
        max_cost_usd: budget of all inputs together.
        items: what is special to each input's request.

    The other arguments, and what is raised, are those of `store.tasks.submit_task`.
    """
    organisation = principal.organisation_id
    values = (
        principal.team_id,
        principal.key_id,
        task_id,
        idempotency_key,
        request_digest,
        jsonb(input),
        user,
        jsonb(tags),
        route,
        worst_case_usd,
        max_cost_usd,
        jsonb(list(items)),
    )
    beside = [] if screening is None else [screening.statement(organisation, task_id)]
    row = await filed(db, organisation, "submit_map", values, *beside)
    refusal = refusal_from_row(row, worst_case_usd)
    return refusal or Submitted(row["task_id"], row["created"], row["conflict"])


async def map_request(db: Database, organisation_id: UUID, task_id: UUID) -> dict[str, Any]:
    """What a map is, as it was filed; empty when there is none."""
    rows = await db.run(
        organisation_id,
        "select input from tasks where organisation_id = %s and task_id = %s and kind = 'map'",
        (organisation_id, task_id),
    )
    read: dict[str, Any] = rows[0]["input"] if rows else {}
    return read


async def file_items(
    db: Database,
    organisation_id: UUID,
    task_id: UUID,
    *,
    after: int,
    most: int,
    worst_case_usd: Decimal,
    max_cost_usd: Decimal | None,
) -> list[FiledItem] | Refusal:
    """Files the tasks of the inputs after a number, each once however often it is asked.

    Args:
        most: of how many inputs, at most.
        worst_case_usd: the most one model call of one can cost, in USD.
        max_cost_usd: budget of each, in USD; None for no limit of its own.

    Returns:
        The tasks in order, none when there are no inputs left; or what refuses the next one.

    Raises:
        NotFound: the organisation has no such map.
    """
    rows = await db.call(
        organisation_id,
        "file_map_items",
        "%s, %s, %s, %s, %s",
        (task_id, after, most, worst_case_usd, max_cost_usd),
    )
    if rows and (refusal := refusal_from_row(rows[0], worst_case_usd)) is not None:
        return refusal
    return [FiledItem(row["number"], row["item_task_id"], row["input"]) for row in rows]


async def map_progress(db: Database, organisation_id: UUID, task_id: UUID) -> MapProgress:
    """How far a map is."""
    rows = await db.call(organisation_id, "map_progress", "%s", (task_id,))
    return MapProgress(**rows[0]["f"])


# What stands below an input's task is added to it: its place in the line of ancestors is that
# before the map's, which is the last.
_RESULTS = """
with page as (
    select m.number, m.item_task_id as task_id, m.status, t.answer, t.error,
           coalesce(t.billed_usd, 0) as billed_usd
      from map_items m
      left join tasks t on t.organisation_id = m.organisation_id and t.task_id = m.item_task_id
     where m.organisation_id = %(organisation)s and m.task_id = %(map)s and m.number > %(after)s
     order by m.number limit %(limit)s
), below as (
    select d.ancestors[cardinality(d.ancestors) - 1] as task_id, sum(d.billed_usd) as billed_usd
      from tasks d
     where d.organisation_id = %(organisation)s and d.root_task_id = %(map)s
       and d.parent_task_id is not null and cardinality(d.ancestors) > 1
     group by 1
)
select p.number, p.task_id, p.status, p.answer, p.error,
       p.billed_usd + coalesce(b.billed_usd, 0) as billed_usd
  from page p left join below b using (task_id) order by p.number
"""


async def map_results(
    db: Database, organisation_id: UUID, task_id: UUID, *, after: int, limit: int
) -> list[ItemResult]:
    """What came of a map's inputs, in their order."""
    rows = await db.run(
        organisation_id,
        _RESULTS,
        {"organisation": organisation_id, "map": task_id, "after": after, "limit": limit},
    )
    return [ItemResult(**row) for row in rows]
