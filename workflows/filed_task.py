"""A task that was filed, carried to its end by a workflow that outlives it."""

from __future__ import annotations

from temporalio import workflow
from temporalio.exceptions import ChildWorkflowError, WorkflowAlreadyStartedError

from workflows import policies
from workflows.child_task import start_child, until_ended
from workflows.contracts import TaskInput
from workflows.schedule_contracts import StartedInput

__all__ = ["carry_filed"]


async def carry_filed(task: TaskInput, headline: str) -> None:
    """Start a task, mark it as started, and wait for its end, however that is.

    Raises:
        ChildWorkflowError: Whoever waits was asked to end.
    """
    started = StartedInput(tenant=task.tenant, task_id=task.task_id)
    try:
        child = await start_child(
            task,
            headline,
            # Ended by hand, whoever waits must not take a task along that somebody pays for.
            parent_close_policy=workflow.ParentClosePolicy.ABANDON,
        )
    except WorkflowAlreadyStartedError:
        # An API process found the row waiting, and was faster.
        await until_ended(lambda: _has_ended(started))
        return
    await workflow.execute_activity(
        "schedules.started",
        started.model_copy(update={"run_id": child.first_execution_run_id}),
        summary="mark the task as started",
        **policies.MONEY,
    )
    try:
        await child
    except ChildWorkflowError:
        # Its own row says how it ended.
        if workflow.cancellation_reason() is not None:
            raise


async def _has_ended(started: StartedInput) -> bool:
    ended: bool = await workflow.execute_activity(
        "schedules.ended", started, result_type=bool, **policies.MONEY
    )
    return ended
