"""How far a task is at this moment, and what money stands in its way. One round trip."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime
from decimal import Decimal
from typing import Any
from uuid import UUID

from store.database import Database
from store.task_reads import Task

__all__ = ["BudgetLeft", "Progress", "progress_of"]

_NEWEST_STEP = """
select s.step, s.status, s.started_at, g.model, g.state as generation, g.epoch,
       (select a.started_at from generation_attempts a
         where a.organisation_id = g.organisation_id and a.generation_key = g.generation_key
           and a.epoch = g.epoch) as attempt_started_at,
       coalesce(c.tokens, 0) as tokens, c.last_token_at
  from steps s
  left join lateral (
       select x.* from generations x
        where x.organisation_id = s.organisation_id and x.task_id = s.task_id
          and x.call_key = s.call_key
        order by x.candidate desc limit 1) g on true
  left join lateral (
       select sum(cardinality(y.token_ids)) as tokens, max(y.at) as last_token_at
         from token_chunks y
        where y.organisation_id = g.organisation_id and y.step_key = g.generation_key
          and y.epoch > g.restarted_after) c on true
 where s.organisation_id = %s and s.task_id = %s
 order by s.step desc limit 1
"""


_BUDGETS = """
select case when g.scope = 'task' and g.scope_id <> t.task_id then 'parent' else g.scope end
         as scope,
       g.cap_usd, g.spent_usd + g.overage_usd as spent_usd, g.held_usd
  from tasks t
  join budgets g on g.organisation_id = t.organisation_id
   and g.scope_id = any (array[t.task_id, t.key_id, t.team_id, t.organisation_id] || t.ancestors)
 where t.organisation_id = %s and t.task_id = %s and g.cap_usd is not null
 order by g.depth
"""
_HOLD = """
select t.worst_case_usd as needed,
       (select coalesce(sum(h.amount_usd), 0) from holds h
         where h.organisation_id = t.organisation_id and h.task_id = t.task_id
           and h.state = 'held') as held
  from tasks t where t.organisation_id = %s and t.task_id = %s
"""


@dataclass(frozen=True, slots=True)
class BudgetLeft:
    """A capped budget above a task, in USD; `held_usd` is that of calls in flight, all tasks."""

    scope: str
    cap_usd: Decimal
    spent_usd: Decimal
    held_usd: Decimal


@dataclass(frozen=True, slots=True)
class Progress:
    """The newest step of a task and the budgets above it.

    Attributes:
        step: Its number; 0 before the first.
        tokens: What its generation has made so far, in tokens.
        budgets: From the task's own up to the organisation's.
        own_hold_usd: Held for the task's own call in flight.
        needed_usd: What one call can cost at worst.
    """

    step: int
    step_status: str | None
    model: str | None
    generation: str | None
    attempt: int
    tokens: int
    step_started_at: datetime | None
    attempt_started_at: datetime | None
    last_token_at: datetime | None
    budgets: tuple[BudgetLeft, ...]
    own_hold_usd: Decimal
    needed_usd: Decimal


async def progress_of(db: Database, organisation_id: UUID, task: Task) -> Progress:
    """Reads how far a task is."""
    steps, budgets, holds = await db.run_many(
        organisation_id,
        [
            (_NEWEST_STEP, (organisation_id, task.task_id)),
            (_BUDGETS, (organisation_id, task.task_id)),
            (_HOLD, (organisation_id, task.task_id)),
        ],
    )
    newest: dict[str, Any] = steps[0] if steps else {}
    return Progress(
        step=newest.get("step", 0),
        step_status=newest.get("status"),
        model=newest.get("model"),
        generation=newest.get("generation"),
        attempt=newest.get("epoch") or 0,
        tokens=int(newest.get("tokens") or 0),
        step_started_at=newest.get("started_at"),
        attempt_started_at=newest.get("attempt_started_at"),
        last_token_at=newest.get("last_token_at"),
        budgets=tuple(BudgetLeft(**row) for row in budgets),
        own_hold_usd=holds[0]["held"] if holds else Decimal(0),
        needed_usd=holds[0]["needed"] if holds else Decimal(0),
    )
