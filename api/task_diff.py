"""Two tasks compared, step by step. Pure."""

from __future__ import annotations

from collections.abc import Sequence
from decimal import Decimal

from api.steering_views import DiffCall, DiffSide, DiffTotals, StepDiff, TaskDiff
from api.task_projection import step_view
from api.task_views import StepView
from store import tasks
from workflows.contracts import TaskStatus

__all__ = ["compare"]

_SAID = ("model", "text", "tool_call", "tool_result", "chosen_calls")


def compare(
    left: tasks.Task,
    left_steps: Sequence[tasks.StepDetail],
    right: tasks.Task,
    right_steps: Sequence[tasks.StepDetail],
) -> TaskDiff:
    """Compare two tasks; what is subtracted is right minus left."""
    first = {step.step: _side(step_view(step)) for step in left_steps}
    second = {step.step: _side(step_view(step)) for step in right_steps}
    steps = tuple(
        _step(number, first.get(number), second.get(number))
        for number in sorted(first.keys() | second.keys())
    )
    return TaskDiff(
        left=_totals(left, left_steps),
        right=_totals(right, right_steps),
        same_answer=left.status == right.status == "succeeded" and left.answer == right.answer,
        first_difference=next((step.step for step in steps if step.state != "same"), None),
        steps=steps,
    )


def _step(number: int, left: DiffSide | None, right: DiffSide | None) -> StepDiff:
    differs: tuple[str, ...] = ()
    if left is not None and right is not None:
        differs = tuple(name for name in _SAID if getattr(left, name) != getattr(right, name))
        # From the cache or not is no difference in what was said.
        if _ended(left) != _ended(right):
            differs = ("status", *differs)
    times = [None if side is None else side.duration_ms for side in (left, right)]
    return StepDiff(
        step=number,
        state=(
            "only_right"
            if left is None
            else "only_left"
            if right is None
            else "changed"
            if differs
            else "same"
        ),
        differs=differs,
        left=left,
        right=right,
        prompt_tokens=_of(right, "prompt_tokens") - _of(left, "prompt_tokens"),
        completion_tokens=_of(right, "completion_tokens") - _of(left, "completion_tokens"),
        cost_usd=_cost(right) - _cost(left),
        duration_ms=(
            round(times[1] - times[0], 3) if times[0] is not None and times[1] is not None else None
        ),
    )


def _ended(side: DiffSide) -> str:
    return "succeeded" if side.status == "cached" else side.status


def _of(side: DiffSide | None, name: str) -> int:
    return 0 if side is None else int(getattr(side, name))


def _cost(side: DiffSide | None) -> Decimal:
    return Decimal(0) if side is None else side.cost_usd


def _side(step: StepView) -> DiffSide:
    told = {name: getattr(step, name) for name in DiffSide.model_fields}
    # The only call of a step is its `tool_call`.
    several = () if step.tool_call is not None else step.chosen_calls
    told["chosen_calls"] = tuple(
        DiffCall(name=call.name, arguments=call.arguments, result=call.result) for call in several
    )
    return DiffSide(**told)


def _totals(task: tasks.Task, steps: Sequence[tasks.StepDetail]) -> DiffTotals:
    ended = task.finished_at
    return DiffTotals(
        id=task.task_id,
        status=TaskStatus(task.status),
        steps=len(steps),
        inherited=sum(step.inherited for step in steps),
        prompt_tokens=task.prompt_tokens,
        completion_tokens=task.completion_tokens,
        cost_usd=task.billed_usd,
        waste_usd=task.waste_usd,
        duration_ms=(
            None if ended is None else round((ended - task.created_at).total_seconds() * 1000, 3)
        ),
        answer=task.answer,
    )
