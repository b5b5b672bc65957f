"""A task that its policy lets begin only when a model has judged it, or with a person's word."""

from __future__ import annotations

from temporalio import workflow
from temporalio.exceptions import ApplicationError

from workflows import policies
from workflows.contracts import (
    ApprovalInput,
    Call,
    Decided,
    Judged,
    JudgeInput,
    Safety,
    TaskInput,
    ToolCall,
)
from workflows.decisions import Decisions
from workflows.errors import ContentBlocked

__all__ = ["has_begun", "may_begin"]

#: What stands in the place of a tool, where a person is asked about a task itself.
REQUEST = "request"


async def may_begin(task: TaskInput, safety: Safety, decisions: Decisions) -> None:
    """Have models judge what a task is asked, and wait for a person, where its policy wants that.

    Raises:
        ApplicationError: They refused.
    """
    call = Call(tenant=task.tenant, task_id=task.task_id, step=1, call_key=f"{task.task_id}:1")
    asks = safety.asks
    if safety.judges:
        judged: Judged = await workflow.execute_activity(
            "safety.judge",
            JudgeInput(**dict(call), safety=safety),
            result_type=Judged,
            summary="have a model judge what the task is asked",
            **policies.TOOL,
        )
        if judged.screened is not None:
            if judged.screened.blocked is not None:
                raise _refused(f"rule {judged.screened.blocked!r} blocks what the task is asked")
            asks = asks or judged.screened.held
    if asks is not None:
        await _allowed(call, asks, decisions)


def has_begun(task: TaskInput) -> TaskInput:
    """Return a task whose next run has nothing to ask any more before it goes on."""
    safety = task.plan.safety
    if safety is None:
        return task
    safety = safety.model_copy(update={"asks": None, "judges": False})
    return task.model_copy(update={"plan": task.plan.model_copy(update={"safety": safety})})


async def _allowed(call: Call, rule: str, decisions: Decisions) -> None:
    question = ApprovalInput(
        **dict(call),
        call_id=f"{call.task_id}:{REQUEST}",
        tool_call=ToolCall(name=REQUEST, arguments={"rule": rule}),
    )

    async def look() -> Decided | None:
        decided: Decided = await workflow.execute_activity(
            "approvals.decided",
            question,
            result_type=Decided,
            summary="what did people decide about the task?",
            **policies.LOOKUP,
        )
        return decided if decided.decision else None

    decided = await decisions.ask(question, f"rule {rule} asks whether the task may begin", look)
    if decided.decision == "refuse":
        why = decided.reason or "no reason given"
        raise _refused(f"rule {rule!r} wanted a person asked, who refused: {why}")


def _refused(why: str) -> ApplicationError:
    return ApplicationError(why, type=ContentBlocked.type(), non_retryable=True)
