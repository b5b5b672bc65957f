"""A task as a child workflow: started once, and waited for to its end whatever happens."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from datetime import timedelta
from typing import Any

from temporalio import workflow
from temporalio.common import SearchAttributePair, TypedSearchAttributes, WorkflowIDReusePolicy
from temporalio.exceptions import (
    ApplicationError,
    ChildWorkflowError,
    WorkflowAlreadyStartedError,
    is_cancelled_exception,
)

from workflows import policies
from workflows.child_contracts import EndChildInput
from workflows.client import SEARCH_ORGANISATION, SEARCH_STATUS, SEARCH_TEAM
from workflows.contracts import TaskInput
from workflows.queueing import task_turn

__all__ = ["carry", "start_child", "until_ended"]

_LONGEST_PAUSE = timedelta(minutes=5)

Child = workflow.ChildWorkflowHandle[Any, Any]


async def start_child(
    task: TaskInput, headline: str, *, parent_close_policy: workflow.ParentClosePolicy
) -> Child:
    """Start a filed task's workflow.

    Raises:
        WorkflowAlreadyStartedError: It runs, or has run.
    """
    return await workflow.start_child_workflow(
        "AgentTask",
        task,
        id=f"task-{task.task_id}",
        id_reuse_policy=WorkflowIDReusePolicy.REJECT_DUPLICATE,
        parent_close_policy=parent_close_policy,
        static_summary=headline,
        priority=task_turn(task.tenant, task.plan.priority),
        search_attributes=TypedSearchAttributes(
            [
                SearchAttributePair(SEARCH_ORGANISATION, str(task.tenant.organisation_id)),
                SearchAttributePair(SEARCH_TEAM, str(task.tenant.team_id)),
                SearchAttributePair(SEARCH_STATUS, "running"),
            ]
        ),
    )


async def until_ended(has_ended: Callable[[], Awaitable[bool]]) -> None:
    """Look after a task that is nobody's child, sooner first, until it has ended."""
    pause = timedelta(seconds=2)
    while not await has_ended():
        await workflow.sleep(pause)
        pause = min(pause * 2, _LONGEST_PAUSE)


async def carry(task: TaskInput, headline: str) -> bool:
    """Start a child and wait for its end; a wish to cancel is the child's, and is waited for, too.

    Its row says how it ended.

    Returns:
        Whether it succeeded.

    Raises:
        asyncio.CancelledError: The parent is to end; by now the child has.
    """
    closing = EndChildInput(tenant=task.tenant, task_id=task.task_id)
    try:
        child = await start_child(
            task,
            headline,
            # Ended from outside, a parent takes its children along; asked to, they settle.
            parent_close_policy=workflow.ParentClosePolicy.REQUEST_CANCEL,
        )
        await child
    except WorkflowAlreadyStartedError:
        # The parent's workflow was reset: its task was a child of the run before.
        succeeded = await _ended_well(closing)
    except ChildWorkflowError as error:
        succeeded = False
        if not isinstance(error.cause, ApplicationError) and not is_cancelled_exception(error):
            # Terminated, or timed out: it did not close its row itself.
            await workflow.execute_activity(
                "children.end",
                closing,
                summary="end the row of a child that was ended from outside",
                **policies.MONEY,
            )
    else:
        succeeded = True
    current = asyncio.current_task()
    if workflow.cancellation_reason() is not None or (current and current.cancelling()):
        raise asyncio.CancelledError
    return succeeded


async def _ended_well(task: EndChildInput) -> bool:
    status = ""

    async def has_ended() -> bool:
        nonlocal status
        status = await workflow.execute_activity(
            "children.ended_as", task, result_type=str, **policies.MONEY
        )
        return bool(status)

    await until_ended(has_ended)
    return status == "succeeded"
