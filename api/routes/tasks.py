"""Agent tasks: submit, list, read, their steps, cancel."""

from __future__ import annotations

from typing import Annotated, Any
from uuid import UUID

from fastapi import APIRouter, Depends, Header, Query, Response

from api.authentication import Caller, parts_of
from api.call_endings import end_call
from api.json_body import json_body, request_body
from api.openapi import answers
from api.orchestrator import Orchestrator, task_workflow_id, web_ui_url
from api.parts import Parts
from api.problems import not_found
from api.restoring import redactions_for, restored_step, restored_task, scope_for
from api.submission import submit
from api.task_projection import Below, links_of, step_view, task_summary, task_view
from api.task_views import Cancellation, StepList, TaskAccepted, TaskPage, TaskView
from api.webhooks import start_deliveries
from safety.redactions import Redactions
from settings import Settings
from store import approvals, children, forks, maps, tasks
from store.identity import Principal
from workflows.contracts import TaskRequest, TaskStatus

__all__ = ["router"]

router = APIRouter(tags=["tasks"])

PartsOf = Annotated[Parts, Depends(parts_of)]

# As many as a task can have: who asks without a limit gets all of them.
_MOST_STEPS = 10_000

IdempotencyKey = Annotated[
    str | None,
    Header(
        alias="Idempotency-Key",
        pattern=r"^[\x21-\x7e]{1,200}$",
        description="A request sent again with the same key gets the first one's answer. Visible "
        "ASCII, at most 200 characters; kept per API key.",
    ),
]

_EXAMPLE = {
    "input": "What is 12*7? Use the calculator.",
    "tools": [{"name": "calculator"}],
    "limits": {"max_cost_usd": "0.05"},
}


@router.post(
    "/v1/tasks",
    status_code=202,
    responses=answers(402, 404, 409, body=True),
    openapi_extra=request_body(TaskRequest, _EXAMPLE),
    summary="Submit a task",
)
async def submit_task(
    caller: Caller,
    parts: PartsOf,
    body: Annotated[TaskRequest, Depends(json_body(TaskRequest))],
    response: Response,
    idempotency_key: IdempotencyKey = None,
) -> TaskAccepted:
    """Accept a task. From here on it survives every process, this one included.

    A route, model or collection that does not exist is a 404 that names those there are; a budget
    too small for one call is a 402 with the numbers. Nothing that is refused reaches Temporal.
    """
    accepted = await submit(parts, caller, body, idempotency_key)
    status = TaskStatus.ACCEPTED
    if accepted.replayed:
        record = await _find(parts, caller, accepted.task_id)
        status = TaskStatus(record.status)
        response.headers["Idempotent-Replayed"] = "true"
    response.headers["Location"] = f"/v1/tasks/{accepted.task_id}"
    return TaskAccepted(
        id=accepted.task_id,
        status=status,
        replayed=accepted.replayed,
        links=links_of(parts.settings, accepted.task_id),
    )


@router.get("/v1/tasks", responses=answers(), summary="List tasks")
async def list_tasks(
    caller: Caller,
    parts: PartsOf,
    status: Annotated[TaskStatus | None, Query(description="Only tasks in this state.")] = None,
    limit: Annotated[int, Query(ge=1, le=200, description="Tasks on a page, at most.")] = 50,
    cursor: Annotated[
        UUID | None, Query(description="`next_cursor` of the page before; none: the newest.")
    ] = None,
    parent: Annotated[
        UUID | None, Query(description="The tasks that this one started, instead of callers'.")
    ] = None,
) -> TaskPage:
    """List the tasks that callers submitted, or those that one of them started, newest first."""
    page = await tasks.list_tasks(
        parts.database,
        caller.organisation_id,
        cursor=cursor,
        limit=limit,
        status=status.value if status else None,
        parent=parent,
    )
    return TaskPage(
        tasks=tuple(task_summary(record) for record in page.tasks),
        next_cursor=str(page.next_cursor) if page.next_cursor else None,
    )


@router.get("/v1/tasks/{task_id}", responses=answers(404), summary="Read a task")
async def get_task(caller: Caller, parts: PartsOf, task_id: UUID) -> TaskView:
    """Read a task: its state, its answer, what it cost."""
    record = await _find(parts, caller, task_id)
    links = await forks.lineage(parts.database, caller.organisation_id, task_id)
    view = task_view(parts.settings, record, links, await _below(parts, caller, record))
    redactions = await _redactions(parts, caller, record, (view.answer, view.preview))
    view = restored_task(view, redactions, as_json=_answers_json(record))
    if record.finished_at is None and await approvals.are_waiting(
        parts.database, caller.organisation_id, task_id
    ):
        return view.model_copy(update={"waiting_for": "approval"})
    return view


@router.get("/v1/tasks/{task_id}/steps", responses=answers(404), summary="Read a task's steps")
async def list_steps(
    caller: Caller,
    parts: PartsOf,
    task_id: UUID,
    limit: Annotated[
        int, Query(ge=1, le=_MOST_STEPS, description="Steps on a page, at most.")
    ] = _MOST_STEPS,
    cursor: Annotated[
        int,
        Query(
            ge=0,
            le=2_000_000_000,
            description="`next_cursor` of the page before: the number of its last step.",
        ),
    ] = 0,
) -> StepList:
    """Read what every step decided, saw, said, called and cost, first to last."""
    record = await _find(parts, caller, task_id)
    # One more than asked for tells whether there are more.
    steps = await tasks.list_steps(
        parts.database, caller.organisation_id, task_id, after=cursor, limit=limit + 1
    )
    views = [step_view(step) for step in steps[:limit]]
    redactions = await _redactions(parts, caller, record, views)
    as_json = _answers_json(record)
    return StepList(
        task_id=task_id,
        web_ui=_web_ui(parts.settings, record),
        steps=tuple(restored_step(view, redactions, as_json=as_json) for view in views),
        next_cursor=steps[limit - 1].step if len(steps) > limit else None,
    )


@router.post("/v1/tasks/{task_id}/cancel", responses=answers(404), summary="Cancel a task")
async def cancel_task(caller: Caller, parts: PartsOf, task_id: UUID) -> Cancellation:
    """Ask a task to end. The engine stops generating for it; what it used until then is billed.

    Asking twice, or asking a task that has ended, is no error.
    """
    record = await _find(parts, caller, task_id)
    status = TaskStatus(record.status)
    if record.finished_at is not None:
        return Cancellation(
            id=task_id, status=status, requested=False, detail=f"It had {status.value} already."
        )
    if record.kind == "call":
        asked = await end_call(parts, caller.organisation_id, task_id)
        detail = (
            "It was asked to end; what was made until now is billed."
            if asked
            else "It has ended this moment."
        )
        return Cancellation(id=task_id, status=status, requested=asked, detail=detail)
    orchestrator = Orchestrator(parts.temporal, parts.settings)
    if await orchestrator.cancel_task(task_id):
        detail = "It was asked to end; `task.cancelled` follows in its events."
        return Cancellation(id=task_id, status=status, requested=True, detail=detail)
    # Accepted and never started, or ended this moment: there is nobody to ask, so the row ends.
    ended = await tasks.finish_task(
        parts.database,
        caller.organisation_id,
        task_id,
        status="cancelled",
    )
    if ended:
        await start_deliveries(parts, caller.organisation_id, task_id)
    detail = "It had not begun and never will." if ended else "It has ended this moment."
    return Cancellation(id=task_id, status=status, requested=bool(ended), detail=detail)


async def _below(parts: Parts, caller: Principal, record: tasks.Task) -> Below:
    organisation, db = caller.organisation_id, parts.database
    found, tree = await children.below(db, organisation, record.task_id, record.root_task_id)
    progress = (
        await maps.map_progress(db, organisation, record.task_id) if record.kind == "map" else None
    )
    return Below(found, tree, progress)


async def _find(parts: Parts, caller: Principal, task_id: UUID) -> tasks.Task:
    record = await tasks.get_task(parts.database, caller.organisation_id, task_id)
    if record is None:
        raise not_found("task")
    return record


def _answers_json(record: tasks.Task) -> bool:
    return record.input.get("output_schema") is not None


async def _redactions(
    parts: Parts, caller: Principal, record: tasks.Task, told: Any
) -> Redactions | None:
    """Return what was taken out of a task's texts, if it is told of any of them."""
    scope = scope_for(caller, record.team_id, record.input)
    return await redactions_for(parts.screening, caller.organisation_id, scope, told)


def _web_ui(settings: Settings, record: tasks.Task) -> str:
    return web_ui_url(settings, task_workflow_id(record.task_id), record.run_id)
