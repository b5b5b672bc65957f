"""What is too long for a step: the whole answer of a tool."""

from __future__ import annotations

from typing import Annotated
from uuid import UUID

from fastapi import APIRouter, Depends, Path, Response

from api.authentication import Caller, parts_of
from api.openapi import answers
from api.parts import Parts
from api.problems import not_found
from api.restoring import holds_token, redactions_for, restored, scope_for
from store import approvals, blobs, tasks
from store.held_texts import CONTENT_TYPE
from store.identity import Principal

__all__ = ["router"]

router = APIRouter(tags=["tasks"])

TEXT = "text/plain; charset=utf-8"

PartsOf = Annotated[Parts, Depends(parts_of)]


@router.get(
    "/v1/tasks/{task_id}/blobs/{sha256}",
    responses=answers(404)
    | {
        200: {
            "description": "The bytes, with the content type they were kept with.",
            "content": {"application/octet-stream": {}},
        }
    },
    response_class=Response,
    summary="Read a long answer of a tool",
)
async def read_blob(
    caller: Caller,
    parts: PartsOf,
    task_id: UUID,
    sha256: Annotated[
        str, Path(pattern=r"^[0-9a-f]{64}$", description="`blob` of one of the task's tool calls.")
    ],
) -> Response:
    """Read bytes that one of your tasks points to, for as long as they are kept.

    An answer that a person is asked about is for keys of the task's team, unless it was refused.
    """
    found = await blobs.of_task(parts.database, caller.organisation_id, task_id, sha256)
    if found is None:
        raise not_found("blob of this task")
    data, content_type = found
    if content_type == CONTENT_TYPE:
        if not await _may_open(parts, caller, task_id, sha256):
            raise not_found("blob of this task")
        held = parts.held.opened(caller.organisation_id, task_id, data)
        data, content_type = str(held["text"]).encode("utf-8", "replace"), TEXT
    if content_type == TEXT and holds_token(text := data.decode("utf-8", "replace")):
        data = (await _restored(parts, caller, task_id, text)).encode("utf-8", "replace")
    return Response(
        data,
        media_type=content_type,
        headers={
            "ETag": f'"{sha256}"',
            # A stranger's text: a browser must neither guess what it is nor show it as a page.
            "X-Content-Type-Options": "nosniff",
            "Content-Disposition": f'attachment; filename="{sha256}"',
        },
    )


async def _may_open(parts: Parts, caller: Principal, task_id: UUID, sha256: str) -> bool:
    """Tell whether a caller may read what is sealed: it is asked about, and was not refused."""
    organisation = caller.organisation_id
    asked = await approvals.about_answer(parts.database, organisation, task_id, sha256)
    if asked is None or asked.decision == "refuse":
        return False
    task = await tasks.get_task(parts.database, organisation, task_id)
    return task is not None and task.team_id == caller.team_id


async def _restored(parts: Parts, caller: Principal, task_id: UUID, text: str) -> str:
    """Return a text with what was taken out of it."""
    task = await tasks.get_task(parts.database, caller.organisation_id, task_id)
    scope = scope_for(caller, task.team_id, task.input) if task is not None else None
    redactions = await redactions_for(parts.screening, caller.organisation_id, scope, text)
    return restored(text, redactions)
