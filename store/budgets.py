"""Budgets: what may be spent, by whom, over which period; and what is spent, held and left."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime
from decimal import Decimal
from typing import Any, Literal
from uuid import UUID

from store.database import Database
from store.text import jsonb

__all__ = [
    "Budget",
    "BudgetPeriod",
    "BudgetShare",
    "RuleScope",
    "by_whom",
    "list_budgets",
    "remove_rule",
    "set_rule",
    "set_task_budget",
    "task_budget",
]

RuleScope = Literal["organisation", "team", "key", "user", "tag", "agent"]
BudgetPeriod = Literal["day", "week", "month", "total"]

_MOST_SHARES = 100


@dataclass(frozen=True, slots=True)
class Budget:
    """A budget as it stands.

    Attributes:
        budget_id: of the row that is held against; None: no call was made under the rule yet.
        rule_id: of the rule that made it; None: made with its organisation, team, key or task.
        subject: of whom: an id, a user, `name=value`, an agent's name; `*`: each by itself.
        window: the current day, week or month; `total`.
        cap_usd: None: counted and not limited.
        hard: it refuses; else it warns.
        webhook_url: who is told when a soft one is passed.
    """

    budget_id: UUID | None
    rule_id: UUID | None
    scope: str
    subject: str
    period: str
    time_zone: str
    window: str
    hard: bool
    cap_usd: Decimal | None
    spent_usd: Decimal
    held_usd: Decimal
    overage_usd: Decimal
    warned_at: datetime | None
    webhook_url: str | None

    @property
    def left_usd(self) -> Decimal | None:
        """What may still be held; None: as much as one likes."""
        if self.cap_usd is None:
            return None
        return max(self.cap_usd - self.spent_usd - self.overage_usd - self.held_usd, Decimal(0))


@dataclass(frozen=True, slots=True)
class BudgetShare:
    """A part of what is spent and held, by who caused it."""

    key_id: UUID
    user: str | None
    calls: int
    spent_usd: Decimal
    held_usd: Decimal


# A budget without a rule: for ever, and hard.
_PLAIN = """
select g.budget_id, null::uuid as rule_id, g.scope, g.scope_id::text as subject,
       'total' as period, 'UTC' as time_zone, 'total' as "window", true as hard, g.cap_usd,
       g.spent_usd, g.held_usd, g.overage_usd, g.warned_at, null as webhook_url
  from budgets g"""
_LIST = f"""{_PLAIN}
 where g.organisation_id = %(organisation)s and g.window_key = '' and g.scope <> 'task'
union all
select g.budget_id, r.rule_id, r.scope,
       coalesce((window_of(g.window_key)).subject, r.subject), r.period, r.time_zone,
       budget_window(r.period, r.time_zone, now()), r.hard,
       coalesce(g.cap_usd, r.cap_usd), coalesce(g.spent_usd, 0), coalesce(g.held_usd, 0),
       coalesce(g.overage_usd, 0), g.warned_at, r.webhook ->> 'url'
  from budget_rules r
  left join budgets g
    on g.organisation_id = r.organisation_id and g.scope_id = r.rule_id
   and (window_of(g.window_key))."window" = budget_window(r.period, r.time_zone, now())
 where r.organisation_id = %(organisation)s
 order by 2 nulls first, 3, 4
"""


async def set_rule(
    db: Database,
    organisation_id: UUID,
    *,
    actor: str,
    scope: RuleScope,
    subject: str,
    period: BudgetPeriod,
    time_zone: str,
    cap_usd: Decimal,
    hard: bool,
    webhook: dict[str, Any] | None = None,
) -> UUID | None:
    """Sets a budget, or changes the cap of one; the change is in the audit log.

    Args:
        webhook: who is told that a soft one is passed: `url` and `secret`.

    Returns:
        The rule's id; None: the organisation has no such team or key.

    Raises:
        UnknownTimeZone: the database knows none of this name.
        TooManyBudgets: there may be no more of them.
    """
    rows = await db.call(
        organisation_id,
        "set_budget_rule",
        "%s, %s, %s, %s, %s, %s, %s, %s",
        (actor, scope, subject, period, time_zone, cap_usd, hard, jsonb(webhook)),
    )
    made: UUID | None = rows[0]["f"]
    return made


async def set_task_budget(
    db: Database, organisation_id: UUID, task_id: UUID, *, actor: str, cap_usd: Decimal
) -> UUID | None:
    """Gives a task that runs another budget of its own.

    Returns:
        The budget's id; None: there is no such task, or it has ended.
    """
    rows = await db.call(
        organisation_id, "set_task_budget", "%s, %s, %s", (actor, task_id, cap_usd)
    )
    made: UUID | None = rows[0]["f"]
    return made


async def task_budget(db: Database, organisation_id: UUID, budget_id: UUID) -> Budget | None:
    """The budget of a single task, by its own id."""
    rows = await db.run(
        organisation_id,
        f"{_PLAIN} where g.organisation_id = %s and g.budget_id = %s and g.scope = 'task'",
        (organisation_id, budget_id),
    )
    return Budget(**rows[0]) if rows else None


async def remove_rule(db: Database, organisation_id: UUID, rule_id: UUID, *, actor: str) -> bool:
    """Lifts a budget; False: there is none."""
    rows = await db.call(organisation_id, "remove_budget_rule", "%s, %s", (actor, rule_id))
    return bool(rows[0]["f"])


async def list_budgets(db: Database, organisation_id: UUID) -> list[Budget]:
    """The budgets of an organisation, but for those of single tasks; of rules, today's windows."""
    rows = await db.run(organisation_id, _LIST, {"organisation": organisation_id})
    return [Budget(**row) for row in rows]


async def by_whom(db: Database, organisation_id: UUID, budget_ids: list[UUID]) -> list[BudgetShare]:
    """Who spent and holds what of some budgets, most first."""
    rows: list[dict[str, Any]] = await db.run(
        organisation_id,
        'select h.key_id, t.user_id as "user", count(*)::int as calls,'
        " coalesce(sum(h.billed_usd), 0) as spent_usd,"
        " coalesce(sum(h.amount_usd) filter (where h.state = 'held'), 0) as held_usd"
        " from holds h join tasks t on t.organisation_id = h.organisation_id"
        " and t.task_id = h.task_id"
        " where h.organisation_id = %s and h.budget_ids && %s"
        " group by h.key_id, t.user_id order by 4 desc, 5 desc limit %s",
        (organisation_id, budget_ids, _MOST_SHARES),
    )
    return [BudgetShare(**row) for row in rows]
