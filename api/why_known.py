"""What the question why starts from, and the form of its answers."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import datetime
from decimal import Decimal
from typing import Any

from api.steering_views import WhyReason
from api.workflow_look import WorkflowLook
from store.progress import Progress

__all__ = ["CODES", "Known", "say", "since"]

#: Codes of reasons, most likely first.
CODES = (
    "ended",
    "orchestrator_down",
    "not_started",
    "ended_outside",
    "budget_exhausted",
    "paused",
    "no_worker",
    "version_unserved",
    "queue_limited",
    "waiting_for_slot",
    "worker_busy",
    "workflow_task_failing",
    "engine_down",
    "waiting_for_person",
    "activity_retrying",
    "engine_silent",
    "children_running",
    "moving",
    "deadline",
    "budget_held",
    "database_down",
    "api_down",
)


@dataclass(frozen=True)
class Known:
    """What is known of a task at a moment.

    Attributes:
        status: Its status, as callers see it.
        error: Code, step and layer of why it failed.
        seconds: Seconds since it was accepted.
        progress: How far it is, and its budgets.
        workflow: What Temporal says; None: Temporal knows no such workflow.
        temporal: Whether Temporal answered.
        engine: What the last look at the engine said; None: it was ready.
        deadline_seconds: The task's own limit.
        spent: The budget that it is paused for, in numbers; None: it waits for none.
        approvals: Tool calls that wait for a person: step and tool.
    """

    status: str
    ended: bool
    seconds: float
    now: datetime
    progress: Progress
    workflow: WorkflowLook | None
    temporal: bool
    engine: str | None
    error: Mapping[str, object] | None = None
    deadline_seconds: int | None = None
    spent: Mapping[str, Any] | None = None
    approvals: tuple[tuple[int, str], ...] = ()
    task_id: str = field(default="")


def since(known: Known, moment: datetime | None) -> float | None:
    """Seconds from a moment to now; negative: it is yet to come."""
    return None if moment is None else (known.now - moment).total_seconds()


def say(code: str, text: str, advice: str, **facts: object) -> WhyReason:
    """Return a reason; facts that are not known are left out."""
    said = {
        name: f"{fact:f}" if isinstance(fact, Decimal) else fact
        for name, fact in facts.items()
        if fact is not None
    }
    return WhyReason.model_validate({"code": code, "text": text, "advice": advice, "facts": said})
