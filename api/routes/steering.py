"""Steering a task: pause, resume, fork, compare, and why it is not moving."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Annotated
from uuid import UUID

from fastapi import APIRouter, Depends, Response

from api.authentication import Caller, parts_of
from api.forking import ForkRequest, fork
from api.json_body import json_body, request_body
from api.openapi import answers
from api.orchestrator import Orchestrator
from api.parts import Parts
from api.problems import ProblemError, not_found
from api.routes.tasks import IdempotencyKey
from api.steering import steer
from api.steering_views import Steering, TaskDiff, Why
from api.task_diff import compare
from api.task_projection import links_of
from api.task_views import TaskAccepted
from api.why import explain
from api.why_known import Known
from store import approvals, tasks
from store.identity import Principal
from store.progress import progress_of
from workflows import errors
from workflows.contracts import TaskStatus

__all__ = ["router"]

router = APIRouter(tags=["tasks"])

PartsOf = Annotated[Parts, Depends(parts_of)]

_EXAMPLE = {"from_step": 2, "model": "smollm2-135m-instruct"}


@router.post("/v1/tasks/{task_id}/pause", responses=answers(404, 409), summary="Pause a task")
async def pause_task(caller: Caller, parts: PartsOf, task_id: UUID) -> Steering:
    """Have a task wait before its next step. The step that runs is finished, and billed.

    Asking twice gives the same answer; a task that has ended is a 409. A paused task keeps its
    deadline.
    """
    return await _steer(parts, caller, task_id, paused=True)


@router.post("/v1/tasks/{task_id}/resume", responses=answers(404, 409), summary="Resume a task")
async def resume_task(caller: Caller, parts: PartsOf, task_id: UUID) -> Steering:
    """Let a paused task go on; one that is not paused is no error, one that has ended a 409."""
    return await _steer(parts, caller, task_id, paused=False)


@router.post(
    "/v1/tasks/{task_id}/fork",
    status_code=202,
    responses=answers(402, 404, 409, body=True),
    openapi_extra=request_body(ForkRequest, _EXAMPLE),
    summary="Fork a task",
)
async def fork_task(
    caller: Caller,
    parts: PartsOf,
    task_id: UUID,
    body: Annotated[ForkRequest, Depends(json_body(ForkRequest))],
    response: Response,
    idempotency_key: IdempotencyKey = None,
) -> TaskAccepted:
    """Rerun a task from one of its steps, with a change: a new task, linked to this one.

    The finished steps before `from_step` are inherited and not billed again. It works on tasks in
    any state. A step that does not exist, or one before it that has not finished, is a 422.
    """
    parent = await _find(parts, caller, task_id)
    accepted = await fork(parts, caller, parent, body, idempotency_key)
    status = TaskStatus.ACCEPTED
    if accepted.replayed:
        status = TaskStatus((await _find(parts, caller, accepted.task_id)).status)
        response.headers["Idempotent-Replayed"] = "true"
    response.headers["Location"] = f"/v1/tasks/{accepted.task_id}"
    return TaskAccepted(
        id=accepted.task_id,
        status=status,
        replayed=accepted.replayed,
        links=links_of(parts.settings, accepted.task_id),
    )


@router.get("/v1/tasks/{task_id}/diff/{other}", responses=answers(404), summary="Compare two tasks")
async def diff_tasks(caller: Caller, parts: PartsOf, task_id: UUID, other: UUID) -> TaskDiff:
    """Compare two tasks step by step: what was said, called, answered, spent and waited for."""
    left = await _find(parts, caller, task_id)
    right = await _find(parts, caller, other)
    organisation = caller.organisation_id
    return compare(
        left,
        await tasks.list_steps(parts.database, organisation, task_id),
        right,
        await tasks.list_steps(parts.database, organisation, other),
    )


@router.get("/v1/tasks/{task_id}/why", responses=answers(404), summary="Why is it not moving?")
async def why_task(caller: Caller, parts: PartsOf, task_id: UUID) -> Why:
    """Say why a task is not moving, most likely reason first, or that it is, or how it ended.

    It asks Temporal and the database at this moment, and answers without Temporal too.
    """
    record = await _find(parts, caller, task_id)
    progress = await progress_of(parts.database, caller.organisation_id, record)
    look, reached, asked = None, True, []
    if record.finished_at is None:
        asked = await approvals.of_task(parts.database, caller.organisation_id, task_id)
        try:
            look = await Orchestrator(parts.temporal, parts.settings).look_at(task_id)
        except ProblemError as problem:
            if problem.kind is not errors.OrchestratorDown:
                raise
            reached = False
    engine = parts.states["triton"]
    now = datetime.now(UTC)
    began = record.started_at or record.created_at
    return explain(
        Known(
            task_id=str(task_id),
            status=record.status,
            ended=record.finished_at is not None,
            seconds=(now - began).total_seconds(),
            now=now,
            progress=progress,
            workflow=look,
            temporal=reached,
            engine=None if engine.ready else engine.detail,
            error=record.error,
            spent=record.pause_reason,
            approvals=tuple((each.step, each.tool) for each in asked if each.decision is None),
            deadline_seconds=record.input.get("limits", {}).get("deadline_seconds"),
        )
    )


async def _steer(parts: Parts, caller: Principal, task_id: UUID, *, paused: bool) -> Steering:
    await _find(parts, caller, task_id)
    await steer(parts, caller.organisation_id, task_id, paused=paused)
    record = await _find(parts, caller, task_id)
    return Steering(
        id=task_id,
        status=TaskStatus(record.status),
        paused_at=record.paused_at if record.finished_at is None else None,
        detail=(
            "It pauses before its next step; the step that runs is finished."
            if paused
            else "It goes on."
        ),
    )


async def _find(parts: Parts, caller: Principal, task_id: UUID) -> tasks.Task:
    record = await tasks.get_task(parts.database, caller.organisation_id, task_id)
    if record is None:
        raise not_found("task")
    return record
