"""`ScheduledTask`: files the task that is due, starts it, and lasts as long as it does.

It lasts, so that Temporal's overlap policy sees whether the last time is over.
"""

from __future__ import annotations

from datetime import timedelta

from temporalio import workflow
from temporalio.common import (
    SearchAttributePair,
    TypedSearchAttributes,
    WorkflowIDReusePolicy,
)
from temporalio.exceptions import ChildWorkflowError, WorkflowAlreadyStartedError

with workflow.unsafe.imports_passed_through():
    from workflows import policies
    from workflows.client import SEARCH_ORGANISATION, SEARCH_STATUS, SEARCH_TEAM
    from workflows.contracts import TaskInput
    from workflows.queueing import task_turn
    from workflows.schedule_contracts import Filed, Fire, ScheduledOutcome, StartedInput

__all__ = ["ScheduledTask"]

_LONGEST_PAUSE = timedelta(minutes=5)


@workflow.defn(name="ScheduledTask")
class ScheduledTask:
    """One time of a schedule."""

    @workflow.run
    async def run(self) -> ScheduledOutcome:
        """File the task and carry it to its end; a refusal is an outcome, not a failure."""
        fire = Fire.of(workflow.info().workflow_id)
        filed = await workflow.execute_activity(
            "schedules.file",
            fire,
            result_type=Filed,
            summary=f"file the task of {fire.fire}",
            **policies.MONEY,
        )
        if filed.task is None:
            return ScheduledOutcome(code=filed.code)
        await self._carry(filed.task, filed.headline)
        return ScheduledOutcome(task_id=filed.task.task_id)

    async def _carry(self, task: TaskInput, headline: str) -> None:
        started = StartedInput(tenant=task.tenant, task_id=task.task_id)
        try:
            child = await workflow.start_child_workflow(
                "AgentTask",
                task,
                id=f"task-{task.task_id}",
                id_reuse_policy=WorkflowIDReusePolicy.REJECT_DUPLICATE,
                # Ended by hand, this must not take a task along that somebody pays for.
                parent_close_policy=workflow.ParentClosePolicy.ABANDON,
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
        except WorkflowAlreadyStartedError:
            # An API process found the row waiting, and was faster.
            await self._until_ended(started)
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

    async def _until_ended(self, started: StartedInput) -> None:
        pause = timedelta(seconds=2)
        while not await workflow.execute_activity(
            "schedules.ended", started, result_type=bool, **policies.MONEY
        ):
            await workflow.sleep(pause)
            pause = min(pause * 2, _LONGEST_PAUSE)
