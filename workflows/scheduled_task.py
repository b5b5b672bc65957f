"""`ScheduledTask`: files the task that is due, starts it, and lasts as long as it does.

It lasts, so that Temporal's overlap policy sees whether the last time is over.
"""

from __future__ import annotations

from temporalio import workflow

with workflow.unsafe.imports_passed_through():
    from workflows import policies
    from workflows.filed_task import carry_filed
    from workflows.schedule_contracts import Filed, Fire, ScheduledOutcome

__all__ = ["ScheduledTask"]


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
        await carry_filed(filed.task, filed.headline)
        return ScheduledOutcome(task_id=filed.task.task_id)
