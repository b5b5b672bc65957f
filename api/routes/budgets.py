"""Budgets: what may be spent, and what is spent, held and left of it."""

from __future__ import annotations

from datetime import datetime
from decimal import Decimal
from typing import Annotated, Literal
from uuid import UUID
from zoneinfo import available_timezones

from fastapi import APIRouter, Depends
from pydantic import BaseModel, ConfigDict, Field, model_validator

from api.authentication import AdminCaller, SpendCaller, parts_of
from api.openapi import answers
from api.parts import Parts
from api.problems import invalid, not_found
from api.routes.webhooks import DeliveryView, delivery_view
from api.steering import let_go_on
from api.task_views import Usd
from store import budgets, webhooks
from store.errors import TooManyBudgets, UnknownTimeZone
from store.identity import Principal
from workflows.contracts.webhook import Receiver

__all__ = ["router"]

router = APIRouter(tags=["budgets"])

PartsOf = Annotated[Parts, Depends(parts_of)]


class BudgetRequest(BaseModel):
    """Sets a budget; one there is of the same scope, subject and period gets the new cap."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    scope: budgets.RuleScope | Literal["task"] = Field(
        description="What kind of subject has it; `task`: another budget for a task that runs."
    )
    subject: str | None = Field(
        default=None,
        min_length=1,
        max_length=512,
        description="Id of the team, key or task, the user, `name=value` of a tag, or the agent's "
        "name; `*`, or `name=*`: each by itself. Not needed for the organisation.",
    )
    period: budgets.BudgetPeriod = Field(default="month", description="Over what it is.")
    time_zone: str = Field(default="UTC", description="IANA time zone in which periods begin.")
    cap_usd: Decimal = Field(ge=0, max_digits=18, decimal_places=9, description="How much, in USD.")
    hard: bool = Field(
        default=True, description="Refuse what does not fit; else warn once a period."
    )
    webhook: Receiver | None = Field(
        default=None,
        description="Of a budget that warns: who is told, once a period. Set anew each time.",
    )

    @model_validator(mode="after")
    def _complete(self) -> BudgetRequest:
        if self.scope != "organisation" and self.subject is None:
            raise ValueError(f"say the subject: which {self.scope}")
        if self.scope == "tag" and "=" not in (self.subject or ""):
            raise ValueError("the subject of a tag is name=value")
        if self.scope == "task" and not (self.hard and self.period in ("month", "total")):
            # The period that is set by default says nothing of a task.
            raise ValueError("the budget of a task is a hard one, in total")
        if self.webhook is not None and self.hard:
            raise ValueError("a webhook tells of a budget that warns: say hard: false")
        if self.time_zone not in available_timezones():
            raise ValueError("the time zone is none of the IANA's")
        return self


class BudgetView(BaseModel):
    """A budget as it stands."""

    model_config = ConfigDict(frozen=True)

    id: UUID = Field(description="Id of the budget.")
    scope: str = Field(description="What kind of subject has it.")
    subject: str = Field(description="Who; `*`: nobody in this period yet.")
    period: str = Field(description="Over what it is: day, week, month or total.")
    time_zone: str = Field(description="Time zone in which periods begin.")
    window: str = Field(description="The current one, such as `2026-12`.")
    hard: bool = Field(description="Whether it refuses; else it warns.")
    cap_usd: Usd | None = Field(description="How much, in USD; none: counted and not limited.")
    spent_usd: Usd = Field(description="Charged in this window, in USD.")
    held_usd: Usd = Field(description="Reserved by calls in flight, in USD.")
    left_usd: Usd | None = Field(description="What may still be held, in USD.")
    webhook_url: str | None = Field(description="Who is told when it is passed, if it is soft.")
    overage_usd: Usd = Field(description="Charged beyond holds, in USD; should be 0.")
    warned_at: datetime | None = Field(
        description="When it was first exceeded in this window, if it is soft; RFC 3339 in UTC."
    )


class BudgetList(BaseModel):
    """Budgets."""

    model_config = ConfigDict(frozen=True)

    budgets: tuple[BudgetView, ...] = Field(description="The budgets.")


class ShareView(BaseModel):
    """Who caused a part of it."""

    model_config = ConfigDict(frozen=True)

    key_id: UUID = Field(description="The key.")
    user: str | None = Field(description="The user that was named, if any.")
    calls: int = Field(description="Model calls.", ge=0)
    spent_usd: Usd = Field(description="Charged, in USD.")
    held_usd: Usd = Field(description="Reserved at this moment, in USD.")


class BudgetExplained(BaseModel):
    """A budget, window by window, and who spent it."""

    model_config = ConfigDict(frozen=True)

    budgets: tuple[BudgetView, ...] = Field(
        description="It; of a budget of each of many, one a subject."
    )
    by: tuple[ShareView, ...] = Field(description="By whom, most first; at most 100.")
    told: tuple[DeliveryView, ...] = Field(
        description="Deliveries of its webhook, newest first; at most 20."
    )


class RemovedBudget(BaseModel):
    """A budget that is no more."""

    model_config = ConfigDict(frozen=True)

    id: UUID = Field(description="Id it had.")


@router.get("/v1/budgets", responses=answers(), summary="List budgets")
async def list_budgets(caller: SpendCaller, parts: PartsOf) -> BudgetList:
    """List the organisation's budgets, but for those of single tasks."""
    found = await budgets.list_budgets(parts.database, caller.organisation_id)
    return BudgetList(budgets=tuple(_view(each) for each in found))


@router.get("/v1/budgets/{budget_id}", responses=answers(404), summary="Explain a budget")
async def get_budget(caller: SpendCaller, parts: PartsOf, budget_id: UUID) -> BudgetExplained:
    """Read what is spent, held and left of a budget, and by whom."""
    db = parts.database
    found = [
        each
        for each in await budgets.list_budgets(db, caller.organisation_id)
        if budget_id in (each.rule_id, each.budget_id)
    ]
    if not found and (own := await budgets.task_budget(db, caller.organisation_id, budget_id)):
        found = [own]
    if not found:
        raise not_found("budget")
    ids = [each.budget_id for each in found if each.budget_id is not None]
    shares = await budgets.by_whom(db, caller.organisation_id, ids)
    return BudgetExplained(
        budgets=tuple(_view(each) for each in found),
        by=tuple(
            ShareView(
                key_id=each.key_id,
                user=each.user,
                calls=each.calls,
                spent_usd=each.spent_usd,
                held_usd=each.held_usd,
            )
            for each in shares
        ),
        told=tuple(
            delivery_view(each)
            for each in await webhooks.of_budget(db, caller.organisation_id, budget_id)
        ),
    )


@router.post("/v1/budgets", responses=answers(404, body=True), summary="Set a budget")
async def set_budget(caller: AdminCaller, parts: PartsOf, wanted: BudgetRequest) -> BudgetExplained:
    """Set what may be spent; it holds from the next call on, and counts from there."""
    if wanted.scope == "task":
        own = await _of_task(caller, parts, wanted)
        await let_go_on(parts, caller.organisation_id)
        return await get_budget(caller, parts, own)
    try:
        made = await budgets.set_rule(
            parts.database,
            caller.organisation_id,
            actor=f"ol_{caller.key_id.hex}",
            scope=wanted.scope,
            subject=wanted.subject or str(caller.organisation_id),
            period=wanted.period,
            time_zone=wanted.time_zone,
            cap_usd=wanted.cap_usd,
            hard=wanted.hard,
            webhook=wanted.webhook.model_dump(mode="json") if wanted.webhook else None,
        )
    except UnknownTimeZone as unknown:
        raise invalid("/time_zone", "not_allowed", str(unknown)) from None
    except TooManyBudgets as full:
        raise invalid("", "too_long", str(full)) from None
    if made is None:
        raise not_found(wanted.scope)
    await let_go_on(parts, caller.organisation_id)
    return await get_budget(caller, parts, made)


@router.delete("/v1/budgets/{budget_id}", responses=answers(404), summary="Remove a budget")
async def remove_budget(caller: AdminCaller, parts: PartsOf, budget_id: UUID) -> RemovedBudget:
    """Lift a budget that was set here."""
    gone = await budgets.remove_rule(
        parts.database, caller.organisation_id, budget_id, actor=f"ol_{caller.key_id.hex}"
    )
    if not gone:
        raise not_found("budget")
    await let_go_on(parts, caller.organisation_id)
    return RemovedBudget(id=budget_id)


async def _of_task(caller: Principal, parts: Parts, wanted: BudgetRequest) -> UUID:
    try:
        task_id = UUID(wanted.subject)
    except ValueError:
        raise not_found("task") from None
    made = await budgets.set_task_budget(
        parts.database,
        caller.organisation_id,
        task_id,
        actor=f"ol_{caller.key_id.hex}",
        cap_usd=wanted.cap_usd,
    )
    if made is None:
        raise not_found("running task")
    return made


def _view(budget: budgets.Budget) -> BudgetView:
    return BudgetView.model_validate(
        {
            "id": budget.rule_id or budget.budget_id,
            "scope": budget.scope,
            "subject": budget.subject,
            "period": budget.period,
            "time_zone": budget.time_zone,
            "window": budget.window,
            "hard": budget.hard,
            "cap_usd": budget.cap_usd,
            "spent_usd": budget.spent_usd,
            "held_usd": budget.held_usd,
            "left_usd": budget.left_usd,
            "overage_usd": budget.overage_usd,
            "warned_at": budget.warned_at,
            "webhook_url": budget.webhook_url,
        }
    )
