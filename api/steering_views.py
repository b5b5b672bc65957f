"""How steering looks to callers: pauses, comparisons, and why a task is not moving."""

from __future__ import annotations

from datetime import datetime
from typing import Any, Literal
from uuid import UUID

from pydantic import Field

from api.task_views import ToolChoice, Usd, View
from workflows.contracts import TaskStatus

__all__ = [
    "DiffCall",
    "DiffSide",
    "DiffTotals",
    "Steering",
    "StepDiff",
    "TaskDiff",
    "Why",
    "WhyReason",
]


class Steering(View):
    """Whether a task is to pause."""

    id: UUID = Field(description="The task.")
    status: TaskStatus = Field(description="State of the task.")
    paused_at: datetime | None = Field(
        description="Since when it is to pause, RFC 3339 in UTC; none: it goes on."
    )
    detail: str = Field(description="The same in words.")


class DiffCall(View):
    """One of several tool calls of a step; its id is the task's own, and so none of it."""

    name: str = Field(description="The tool.")
    arguments: dict[str, Any] = Field(description="Its arguments.")
    result: str | None = Field(description="What the model was told.")


class DiffSide(View):
    """A step of one of two tasks that are compared."""

    status: str = Field(description="running, succeeded, cached, failed or cancelled.")
    inherited: bool = Field(description="Taken over from the task it was forked from, unbilled.")
    model: str | None = Field(description="Model that answered.")
    text: str | None = Field(description="What the model said.")
    tool_call: ToolChoice | None = Field(description="The tool the model chose.")
    tool_result: str | None = Field(description="What the tool answered.")
    chosen_calls: tuple[DiffCall, ...] = Field(
        default=(), description="Where the model could choose several tools at once: all of them."
    )
    prompt_tokens: int = Field(description="Prompt tokens billed, in tokens.", ge=0)
    completion_tokens: int = Field(description="Output tokens billed, in tokens.", ge=0)
    cost_usd: Usd = Field(description="Billed, in USD.")
    duration_ms: float | None = Field(description="Time of the step, in milliseconds.")


class StepDiff(View):
    """One step of both tasks."""

    step: int = Field(description="Number of the step, from 1.", ge=1)
    state: Literal["same", "changed", "only_left", "only_right"] = Field(
        description="`same`: model, text, tool call and tool result are equal."
    )
    differs: tuple[str, ...] = Field(
        description="Which of status, model, text, tool_call, tool_result and chosen_calls differ."
    )
    left: DiffSide | None = Field(description="The step in the task of the path.")
    right: DiffSide | None = Field(description="The step in the other task.")
    prompt_tokens: int = Field(description="Prompt tokens, right minus left, in tokens.")
    completion_tokens: int = Field(description="Output tokens, right minus left, in tokens.")
    cost_usd: Usd = Field(description="Billed, right minus left, in USD.")
    duration_ms: float | None = Field(
        description="Time, right minus left, in milliseconds; none where one has not ended."
    )


class DiffTotals(View):
    """One of the two tasks in numbers."""

    id: UUID = Field(description="The task.")
    status: TaskStatus = Field(description="State of the task.")
    steps: int = Field(description="Its steps, inherited ones too.", ge=0)
    inherited: int = Field(description="Those it has inherited.", ge=0)
    prompt_tokens: int = Field(description="Prompt tokens billed, in tokens.", ge=0)
    completion_tokens: int = Field(description="Output tokens billed, in tokens.", ge=0)
    cost_usd: Usd = Field(description="Billed, in USD.")
    waste_usd: Usd = Field(description="Cost of tokens made and thrown away, in USD.")
    duration_ms: float | None = Field(
        description="From its acceptance to its end, in milliseconds; none: it has not ended."
    )
    answer: str | None = Field(description="The answer, once it succeeded.")


class TaskDiff(View):
    """Two tasks, step by step."""

    left: DiffTotals = Field(description="The task of the path.")
    right: DiffTotals = Field(description="The other task.")
    same_answer: bool = Field(description="Whether both have succeeded with the same answer.")
    first_difference: int | None = Field(
        description="Number of the first step that is not the same; none: all are."
    )
    steps: tuple[StepDiff, ...] = Field(description="The steps, first to last.")


class WhyReason(View):
    """One reason why a task is where it is."""

    code: str = Field(description="Stable code to branch on; docs/04-orchestrator.md.")
    text: str = Field(description="The reason, in words. Nothing of what the task says.")
    advice: str = Field(description="What to do about it.")
    facts: dict[str, str | int | float | bool] = Field(
        description="Names, numbers (in the unit their name ends with) and types."
    )


class Why(View):
    """Why a task is not moving, or that it is."""

    status: TaskStatus = Field(description="State of the task.")
    moving: bool = Field(description="Whether nothing stands in its way.")
    reasons: tuple[WhyReason, ...] = Field(description="The reasons, most likely first.")
