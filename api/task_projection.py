"""From the store's records to what callers see."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any
from uuid import UUID

from api.orchestrator import task_workflow_id, web_ui_url
from api.task_views import (
    ChildView,
    ChosenCallView,
    Failure,
    ForkView,
    MapProgress,
    ModelCallView,
    PauseReason,
    SpentBudget,
    StepView,
    TaskLinks,
    TaskSummary,
    TaskView,
    ToolCallView,
    ToolChoice,
    TreeView,
    TurnLink,
)
from settings import Settings
from store import forks, maps, tasks
from store.children import Child, Tree
from workflows.contracts import TaskStatus

__all__ = ["Below", "failure_view", "links_of", "step_view", "task_summary", "task_view"]

_PREVIEW_CHARS = 80


@dataclass(frozen=True)
class Below:
    """What stands below a task; `progress` is of maps."""

    children: Sequence[Child]
    tree: Tree
    progress: maps.MapProgress | None = None


def links_of(settings: Settings, task_id: UUID, run_id: str | None = None) -> TaskLinks:
    """Return where a task can be read."""
    path = f"/v1/tasks/{task_id}"
    return TaskLinks(
        task=path,
        steps=f"{path}/steps",
        events=f"{path}/events",
        web_ui=web_ui_url(settings, task_workflow_id(task_id), run_id),
    )


def task_summary(record: tasks.Task) -> TaskSummary:
    """Return a task as it looks in a list."""
    return TaskSummary(**_summary(record))


def task_view(
    settings: Settings,
    record: tasks.Task,
    lineage: forks.Lineage | None = None,
    below: Below | None = None,
) -> TaskView:
    """Return a task as it looks by itself."""
    return TaskView(
        **_summary(record),
        session=_turn(record),
        answer=record.answer,
        error=None if record.error is None else failure_view(record.error),
        waste_usd=record.waste_usd,
        saved_usd=record.saved_usd,
        max_cost_usd=record.max_cost_usd,
        prompt_tokens=record.prompt_tokens,
        cached_tokens=record.cached_tokens,
        completion_tokens=record.completion_tokens,
        parent=(
            _link(lineage.parent.parent_task_id, lineage.parent)
            if lineage and lineage.parent
            else None
        ),
        forks=tuple(_link(fork.task_id, fork) for fork in lineage.forks) if lineage else (),
        root_task_id=record.root_task_id,
        children=tuple(_child(child) for child in below.children) if below else (),
        tree=_tree(below.tree) if below else None,
        progress=(
            MapProgress.model_validate(below.progress, from_attributes=True)
            if below and below.progress
            else None
        ),
        links=links_of(settings, record.task_id, record.run_id),
    )


def _child(child: Child) -> ChildView:
    return ChildView(
        id=child.task_id,
        agent=f"{child.agent_name}@{child.agent_version}" if child.agent_name else None,
        step=child.parent_step,
        status=TaskStatus(child.status),
        cost_usd=child.billed_usd,
    )


def _tree(tree: Tree) -> TreeView:
    return TreeView(
        tasks=tree.tasks,
        tokens=tree.tokens,
        cost_usd=tree.billed_usd,
        waste_usd=tree.waste_usd,
        saved_usd=tree.saved_usd,
    )


def _turn(record: tasks.Task) -> TurnLink | None:
    if record.session_id is None or record.session_number is None:
        return None
    return TurnLink(id=record.session_id, number=record.session_number)


def _link(other: UUID, fork: forks.Fork) -> ForkView:
    return ForkView(
        id=other,
        from_step=fork.from_step,
        changed=tuple(fork.changed),
        created_at=fork.created_at,
    )


def _summary(record: tasks.Task) -> dict[str, Any]:
    return {
        "id": record.task_id,
        "kind": record.kind,
        "parent_task_id": record.parent_task_id,
        "status": TaskStatus(record.status),
        "agent": f"{record.agent_name}@{record.agent_version}" if record.agent_name else None,
        "route": record.route,
        "user": record.user,
        "tags": record.tags,
        "created_at": record.created_at,
        "finished_at": record.finished_at,
        "paused_at": record.paused_at if record.finished_at is None else None,
        "pause_reason": _pause_reason(record),
        "steps": record.steps,
        "cost_usd": record.billed_usd,
        "preview": _preview(record.input),
    }


def _pause_reason(record: tasks.Task) -> PauseReason | None:
    if record.paused_at is None or record.finished_at is not None:
        return None
    told = dict(record.pause_reason or {})
    if told.pop("reason", None) is None:
        return PauseReason(reason="asked")
    budget = dict.fromkeys(SpentBudget.model_fields) | {"id": told.pop("budget_id", None)} | told
    return PauseReason(reason="budget_exhausted", budget=SpentBudget.model_validate(budget))


def _preview(request: Mapping[str, Any]) -> str:
    text = request.get("input")
    if "total" in request:
        text = f"map over {request['total']:,} inputs"
    elif text is None and "prompt" in request:
        text = request["prompt"]
    elif text is None:
        messages = request.get("messages") or [{}]
        text = messages[-1].get("content", "")
    line = " ".join(str(text)[:400].split())
    return line if len(line) <= _PREVIEW_CHARS else line[: _PREVIEW_CHARS - 1] + "…"


def failure_view(error: Mapping[str, Any]) -> Failure:
    """Return why a task did not succeed."""
    return Failure(
        code=str(error.get("code") or "OVL-5000"),
        message=str(error.get("message") or "It failed."),
        step=error.get("step"),
        layer=error.get("layer"),
    )


def _tool_choice(chosen: Mapping[str, Any]) -> ToolChoice:
    return ToolChoice(
        name=str(chosen.get("name", "")), arguments=dict(chosen.get("arguments") or {})
    )


def _milliseconds(start: datetime | None, end: datetime | None) -> float | None:
    if start is None or end is None:
        return None
    return round((end - start).total_seconds() * 1000, 3)


def step_view(step: tasks.StepDetail) -> StepView:
    """Return a step with its rows of the ledger and its tool calls."""
    return StepView(
        step=step.step,
        status=step.status,
        answered=step.answered,
        inherited=step.inherited,
        model=step.model,
        cached=step.status == "cached",
        text=step.text,
        tool_call=_tool_choice(step.tool_call) if isinstance(step.tool_call, dict) else None,
        tool_result=step.tool_result,
        chosen_calls=tuple(_chosen_call(call, step.tool_calls) for call in step.chosen),
        finish_reason=step.finish_reason,
        decision=step.decision,
        provenance=step.provenance,
        prompt_tokens=step.prompt_tokens,
        cached_tokens=step.cached_tokens,
        completion_tokens=step.completion_tokens,
        cost_usd=step.billed_usd,
        waste_usd=step.waste_usd,
        started_at=step.started_at,
        finished_at=step.ended_at,
        duration_ms=_milliseconds(step.started_at, step.ended_at),
        model_calls=tuple(_model_call(row) for row in step.calls),
        tool_calls=tuple(_tool_call(row) for row in step.tool_calls),
    )


def _model_call(call: tasks.CallRecord) -> ModelCallView:
    return ModelCallView(
        model=call.model,
        deployment=call.deployment,
        candidate=call.candidate,
        attempt=call.epoch,
        outcome=call.outcome,
        waste_cause=call.waste_cause,
        uncached_input_tokens=call.uncached_input_tokens,
        cached_input_tokens=call.cached_input_tokens,
        output_tokens=call.output_tokens,
        billed_usd=call.billed_usd,
        waste_usd=call.waste_usd,
        saved_usd=call.saved_usd,
        queue_ms=call.queue_ms,
        first_token_ms=call.first_token_ms,
        duration_ms=call.duration_ms,
    )


# What a worker writes under the beginning of a long answer.
_KEPT_AS = re.compile(r"\n\[cut here: [\d,]+ characters in all, kept as blob ([0-9a-f]{64})\]$")


def _kept_as(text: str | None) -> str | None:
    found = _KEPT_AS.search(text or "")
    return found.group(1) if found else None


def _chosen_call(
    call: tasks.ChosenCall, attempts: Sequence[tasks.ToolCallRecord]
) -> ChosenCallView:
    # The only call of a step is known by its attempts: they are the step's.
    own = [each for each in attempts if call.place is None or each.call_id == call.call_id]
    last = own[-1] if own else None
    return ChosenCallView(
        id=last.call_id if last else call.call_id,
        name=call.name,
        arguments=call.arguments,
        ok=last.ok if last else call.ok,
        result=call.result,
        duration_ms=_milliseconds(own[0].started_at, own[-1].ended_at) if own else None,
    )


def _tool_call(call: tasks.ToolCallRecord) -> ToolCallView:
    return ToolCallView(
        id=call.call_id,
        name=call.name,
        attempt=call.attempt,
        arguments=call.arguments,
        ok=call.ok,
        result=call.result_text,
        blob=_kept_as(call.result_text),
        error=None if call.error is None else str(call.error.get("message") or "failed"),
        duration_ms=_milliseconds(call.started_at, call.ended_at),
    )
