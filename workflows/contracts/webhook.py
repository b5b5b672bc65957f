"""Telling somebody of a task's end, across the border."""

from __future__ import annotations

from typing import Annotated, Literal
from urllib.parse import urlsplit
from uuid import UUID

from pydantic import AfterValidator, Field, StringConstraints

from workflows.contracts.base import Asked, Wire

__all__ = [
    "DeliverInput",
    "DeliverOutcome",
    "Receiver",
    "Webhook",
    "WebhookEvent",
    "WebhookState",
    "webhook_workflow_id",
]

TaskEnd = Literal["task.succeeded", "task.failed", "task.cancelled"]
WebhookEvent = TaskEnd | Literal["budget.warning"]
WebhookState = Literal["pending", "delivered", "failed", "gone"]


def _told_apart(url: str) -> str:
    """Refuse what could never be reached; where it leads is looked at when it is sent."""
    try:
        parts = urlsplit(url)
        wrong = (
            parts.scheme not in ("http", "https")
            or not parts.hostname
            or parts.username is not None
            or parts.port == 0
        )
    except ValueError:
        wrong = True
    if wrong or any(character.isspace() for character in url):
        raise ValueError("give an http or https address with a host and without a user name")
    return url


class Receiver(Asked):
    """Who is told."""

    url: Annotated[
        str,
        StringConstraints(min_length=1, max_length=2_000, pattern=r"^[\x21-\x7e]+$"),
        AfterValidator(_told_apart),
    ] = Field(description="Where a POST goes, http or https; private addresses are not reached.")
    secret: Annotated[str, StringConstraints(pattern=r"^[A-Za-z0-9_]{1,64}$")] | None = Field(
        default=None,
        description="Name of a secret that the operator keeps; deliveries are signed with it.",
    )


class Webhook(Receiver):
    """Who is told when the task ends."""

    events: tuple[TaskEnd, ...] = Field(
        default=("task.succeeded", "task.failed", "task.cancelled"),
        min_length=1,
        max_length=3,
        description="Ends that are told of.",
    )


def webhook_workflow_id(delivery_id: UUID) -> str:
    """Return the id of the workflow that makes a delivery."""
    return f"webhook-{delivery_id}"


class DeliverInput(Wire):
    """Input of `DeliverWebhook`: which delivery; what it says is in its row and its task's."""

    organisation_id: UUID
    delivery_id: UUID


class DeliverOutcome(Wire):
    """What became of a delivery."""

    state: WebhookState
