"""A task that a rule of its policy lets begin only with a person's word."""

from __future__ import annotations

from temporalio import workflow
from temporalio.exceptions import ApplicationError

from workflows import policies
from workflows.contracts import ApprovalInput, Decided, TaskInput, ToolCall
from workflows.decisions import Decisions
from workflows.errors import ContentBlocked

__all__ = ["may_begin"]

#: What stands in the place of a tool, where a person is asked about a task itself.
REQUEST = "request"


async def may_begin(task: TaskInput, rule: str, decisions: Decisions) -> None:
    """Wait until a person lets a task begin; a run that goes on from another asks again.

    Raises:
        ApplicationError: They refused.
    """
    question = ApprovalInput(
        tenant=task.tenant,
        task_id=task.task_id,
        step=1,
        call_key=f"{task.task_id}:1",
        call_id=f"{task.task_id}:{REQUEST}",
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
        raise ApplicationError(
            f"rule {rule!r} wanted a person asked, who refused: "
            f"{decided.reason or 'no reason given'}",
            type=ContentBlocked.type(),
            non_retryable=True,
        )
