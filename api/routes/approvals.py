"""Tool calls that wait for a person: see them, approve them, refuse them."""

from __future__ import annotations

from datetime import datetime
from typing import Annotated, Any, Literal
from uuid import UUID

from fastapi import APIRouter, Depends
from pydantic import BaseModel, ConfigDict, Field, model_validator

from api.authentication import Caller, parts_of
from api.deciding import tell
from api.json_body import json_body, request_body
from api.openapi import answers
from api.parts import Parts
from api.problems import ProblemError, not_found
from store import approvals, tasks
from store.identity import Principal
from workflows import errors

__all__ = ["router"]

router = APIRouter(tags=["tasks"])

PartsOf = Annotated[Parts, Depends(parts_of)]


class Decision(BaseModel):
    """What a person decides about a tool call."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    decision: Literal["approve", "refuse"] = Field(description="`approve` or `refuse`.")
    arguments: dict[str, Any] | None = Field(
        default=None,
        max_length=100,
        description="With `approve`: make the call with these arguments instead of the model's.",
    )
    reason: str | None = Field(
        default=None, max_length=1_000, description="With `refuse`: why, for the model to read."
    )

    @model_validator(mode="after")
    def _fitting(self) -> Decision:
        if self.decision == "refuse" and self.arguments is not None:
            raise ValueError("a refused call has no arguments")
        return self


class ApprovalView(BaseModel):
    """A tool call that waits, or waited, for a person."""

    model_config = ConfigDict(frozen=True)

    call_id: str = Field(description="Id of the call; it ends in the hash of its arguments.")
    step: int = Field(description="Step it belongs to.", ge=1)
    tool: str = Field(description="The tool.")
    arguments: dict[str, Any] = Field(description="Arguments the model chose.")
    arguments_sha256: str = Field(description="SHA-256 of them, canonical JSON.")
    requested_at: datetime = Field(description="Since when it waits, RFC 3339 in UTC.")
    status: Literal["waiting", "approved", "refused"] = Field(description="How far it is.")
    decided_arguments: dict[str, Any] | None = Field(
        description="Arguments it is made with instead; none: the model's."
    )
    reason: str | None = Field(description="Reason that was given.")
    decided_by: UUID | None = Field(description="Key of whoever decided.")
    decided_at: datetime | None = Field(description="When, RFC 3339 in UTC.")


class ApprovalList(BaseModel):
    """The approvals of a task."""

    model_config = ConfigDict(frozen=True)

    approvals: tuple[ApprovalView, ...] = Field(description="The approvals, first to last.")


@router.get(
    "/v1/tasks/{task_id}/approvals", responses=answers(404), summary="Read a task's approvals"
)
async def list_approvals(caller: Caller, parts: PartsOf, task_id: UUID) -> ApprovalList:
    """Read which calls of a task wait, or waited, for a person, with their arguments."""
    if await tasks.get_task(parts.database, caller.organisation_id, task_id) is None:
        raise not_found("task")
    found = await approvals.of_task(parts.database, caller.organisation_id, task_id)
    return ApprovalList(approvals=tuple(_view(item) for item in found))


@router.post(
    "/v1/tasks/{task_id}/approvals/{call_id}",
    responses=answers(404, 409, body=True),
    openapi_extra=request_body(Decision, {"decision": "approve"}),
    summary="Decide about a tool call",
)
async def decide(
    caller: Caller,
    parts: PartsOf,
    task_id: UUID,
    call_id: str,
    body: Annotated[Decision, Depends(json_body(Decision))],
) -> ApprovalView:
    """Approve a call or refuse it. The first decision stands.

    The same decision again is the same answer; another one, or one about a task that has ended, is
    a 409.
    """
    verdict = await approvals.decide(
        parts.database,
        caller.organisation_id,
        task_id,
        call_id,
        decision=body.decision,
        arguments=body.arguments,
        reason=body.reason,
        key_id=caller.key_id,
    )
    if verdict in ("no task", "no call"):
        raise not_found("task" if verdict == "no task" else "call that waits for a person")
    if verdict == "finished":
        raise ProblemError(errors.Conflict, "The task has ended; its call will never be made.")
    if verdict == "other":
        raise ProblemError(errors.Conflict, "This call was decided otherwise already.")
    # Also when it was decided before: whoever decided may have died before they could tell.
    await tell(parts, caller.organisation_id, task_id, call_id)
    return _view(await _decided(parts, caller, task_id, call_id))


async def _decided(
    parts: Parts, caller: Principal, task_id: UUID, call_id: str
) -> approvals.Approval:
    found = await approvals.get(parts.database, caller.organisation_id, task_id, call_id)
    if found is None:
        raise not_found("call that waits for a person")
    return found


def _view(item: approvals.Approval) -> ApprovalView:
    status: dict[str | None, Literal["waiting", "approved", "refused"]] = {
        None: "waiting",
        "approve": "approved",
        "refuse": "refused",
    }
    return ApprovalView(
        call_id=item.call_id,
        step=item.step,
        tool=item.tool,
        arguments=item.arguments,
        arguments_sha256=item.arguments_digest,
        requested_at=item.requested_at,
        status=status[item.decision],
        decided_arguments=item.decided_arguments,
        reason=item.reason,
        decided_by=item.decided_by,
        decided_at=item.decided_at,
    )
