"""What is said to a running task."""

from __future__ import annotations

from typing import Annotated
from uuid import UUID

from fastapi import APIRouter, Depends, Query, Response

from api.authentication import Caller, parts_of
from api.json_body import json_body, request_body
from api.message_views import MessageAccepted, MessageRequest, TaskMessageList, TaskMessageView
from api.messaging import say_to_task
from api.openapi import answers
from api.parts import Parts
from api.problems import ProblemError, not_found
from api.restoring import redactions_for, restored, scope_for
from api.routes.tasks import IdempotencyKey
from store import messages, tasks
from store.identity import Principal
from workflows import errors

__all__ = ["router"]

router = APIRouter(tags=["tasks"])

PartsOf = Annotated[Parts, Depends(parts_of)]

_EXAMPLE = {"content": "And in euros, please."}


@router.post(
    "/v1/tasks/{task_id}/messages",
    status_code=202,
    responses=answers(404, 409, body=True),
    openapi_extra=request_body(MessageRequest, _EXAMPLE),
    summary="Say something to a running task",
)
async def send_message(
    caller: Caller,
    parts: PartsOf,
    task_id: UUID,
    body: Annotated[MessageRequest, Depends(json_body(MessageRequest))],
    response: Response,
    idempotency_key: IdempotencyKey = None,
) -> MessageAccepted:
    """Queue a message. The task reads what is queued, in order, before its next step.

    An answer that is being made meanwhile does not end the task: it becomes part of the
    conversation, and the message is answered too. A task that has ended is a 409.
    """
    task = await _find(parts, caller, task_id)
    if task.kind == "map":
        raise ProblemError(errors.Conflict, "A map reads no messages; its items are tasks that do.")
    sent = await say_to_task(parts, caller, task, body.content, idempotency_key)
    if not sent.created:
        response.headers["Idempotent-Replayed"] = "true"
    return MessageAccepted(task_id=task_id, number=sent.number or 0, replayed=not sent.created)


@router.get(
    "/v1/tasks/{task_id}/messages",
    responses=answers(404),
    summary="Read what was said to a task",
)
async def list_messages(
    caller: Caller,
    parts: PartsOf,
    task_id: UUID,
    limit: Annotated[int, Query(ge=1, le=200, description="Messages on a page, at most.")] = 50,
    cursor: Annotated[
        int, Query(ge=0, le=2**31 - 1, description="`next_cursor` of the page before.")
    ] = 0,
) -> TaskMessageList:
    """Read what was said to a task while it ran, and which step saw it first."""
    task = await _find(parts, caller, task_id)
    found = await messages.list_messages(
        parts.database, caller.organisation_id, task_id, after=cursor, limit=limit + 1
    )
    ended = task.finished_at is not None
    redactions = await redactions_for(
        parts.screening,
        caller.organisation_id,
        scope_for(caller, task.team_id, task.input),
        [each.content for each in found],
    )
    return TaskMessageList(
        task_id=task_id,
        messages=tuple(
            TaskMessageView(
                number=each.number,
                content=restored(each.content, redactions),
                state="taken" if each.at_step else ("unread" if ended else "queued"),
                at_step=each.at_step,
                created_at=each.created_at,
                taken_at=each.taken_at,
            )
            for each in found[:limit]
        ),
        next_cursor=found[limit - 1].number if len(found) > limit else None,
    )


async def _find(parts: Parts, caller: Principal, task_id: UUID) -> tasks.Task:
    record = await tasks.get_task(parts.database, caller.organisation_id, task_id)
    if record is None:
        raise not_found("task")
    return record
