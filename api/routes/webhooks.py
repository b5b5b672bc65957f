"""Who was told of a task's end, and once more."""

from __future__ import annotations

from datetime import datetime
from typing import Annotated
from uuid import UUID

from fastapi import APIRouter, Depends
from pydantic import BaseModel, ConfigDict, Field

from api.authentication import Caller, parts_of
from api.openapi import answers
from api.parts import Parts
from api.problems import not_found
from api.webhooks import start_delivery
from store import tasks, webhooks
from workflows.contracts import WebhookEvent, WebhookState

__all__ = ["DeliveryView", "delivery_view", "router"]

router = APIRouter(tags=["tasks"])

PartsOf = Annotated[Parts, Depends(parts_of)]


class DeliveryView(BaseModel):
    """One delivery of a webhook."""

    model_config = ConfigDict(frozen=True)

    id: UUID = Field(description="Id of the delivery: the `webhook-id` of every attempt.")
    event: WebhookEvent = Field(description="What is told.")
    url: str = Field(description="Where it goes.")
    state: WebhookState = Field(
        description="`pending`: it is, or will be, sent. `delivered`: the receiver answered 2xx. "
        "`gone`: it answered 410. `failed`: it was given up, or may not be reached."
    )
    attempts: int = Field(description="How often it was sent.", ge=0)
    last_attempt_at: datetime | None = Field(description="When last, RFC 3339 in UTC.")
    last_status: int | None = Field(description="HTTP status of the newest answer.")
    last_error: str | None = Field(description="Why the newest attempt did not go well.")
    next_attempt_at: datetime | None = Field(description="When next, RFC 3339 in UTC.")
    created_at: datetime = Field(description="When it happened, RFC 3339 in UTC.")
    ended_at: datetime | None = Field(description="When it ended, RFC 3339 in UTC.")


class DeliveryList(BaseModel):
    """The deliveries of a task."""

    model_config = ConfigDict(frozen=True)

    deliveries: tuple[DeliveryView, ...] = Field(description="The deliveries, first to last.")


@router.get(
    "/v1/tasks/{task_id}/webhooks", responses=answers(404), summary="Read a task's deliveries"
)
async def list_deliveries(caller: Caller, parts: PartsOf, task_id: UUID) -> DeliveryList:
    """Read who was told of the task's end, and what came of it."""
    if await tasks.get_task(parts.database, caller.organisation_id, task_id) is None:
        raise not_found("task")
    found = await webhooks.list_deliveries(parts.database, caller.organisation_id, task_id)
    return DeliveryList(deliveries=tuple(delivery_view(item) for item in found))


@router.post(
    "/v1/tasks/{task_id}/webhooks/{delivery_id}/redeliver",
    responses=answers(404),
    summary="Deliver once more",
)
async def redeliver(
    caller: Caller, parts: PartsOf, task_id: UUID, delivery_id: UUID
) -> DeliveryView:
    """Have a delivery that has ended made once more, under the same id.

    One that still goes on stays as it is.
    """
    found = await webhooks.redeliver(parts.database, caller.organisation_id, task_id, delivery_id)
    if found is None:
        raise not_found("delivery")
    if found.state == "pending":
        await start_delivery(parts, caller.organisation_id, delivery_id)
    return delivery_view(found)


def delivery_view(item: webhooks.Delivery) -> DeliveryView:
    """Return a delivery as callers see it."""
    return DeliveryView.model_validate(
        {
            "id": item.delivery_id,
            "event": item.event,
            "url": item.url,
            "state": item.state,
            "attempts": item.attempts,
            "last_attempt_at": item.last_attempt_at,
            "last_status": item.last_status,
            "last_error": item.last_error,
            "next_attempt_at": item.next_attempt_at,
            "created_at": item.created_at,
            "ended_at": item.ended_at,
        }
    )
