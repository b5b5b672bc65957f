"""Tasks whose workflow ended past its own end: terminated, timed out, cancelled before it began.

Such a workflow closed nothing: its hold would stay held, its row would stay running. Temporal is
asked, and the rows are ended with what the journal knows.
"""

from __future__ import annotations

import asyncio
import logging
from datetime import UTC, datetime, timedelta
from uuid import UUID

from temporalio.client import WorkflowExecution, WorkflowExecutionStatus
from temporalio.service import RPCError

from api.parts import Parts
from api.webhooks import start_deliveries
from store import tasks
from store.errors import StoreError
from workflows.client import SEARCH_ORGANISATION
from workflows.contracts import TaskError
from workflows.errors import EndedOutside

__all__ = ["close_ended_outside"]

log = logging.getLogger("overline.api")

_EVERY_S = 10.0
_LOOK_BACK = timedelta(days=1)


async def close_ended_outside(parts: Parts) -> None:
    """End the rows of workflows that were ended from outside; runs for ever."""
    closed: set[str] = set()
    while True:
        await asyncio.sleep(_EVERY_S)
        try:
            found = [run async for run in parts.temporal.list_workflows(_query())]
        except (RPCError, RuntimeError):
            continue
        # What is not listed any more need not be remembered either.
        closed &= {run.run_id for run in found}
        for run in found:
            if run.run_id not in closed and await _close(parts, run):
                closed.add(run.run_id)


def _query() -> str:
    since = (datetime.now(UTC) - _LOOK_BACK).isoformat()
    # A workflow that is cancelled before its first line has run never runs it, and one whose
    # input cannot be read fails there: those still say that they run, or are paused.
    return (
        f'WorkflowType IN ("AgentTask", "MapTask", "CallTask") AND CloseTime > "{since}" AND '
        '(ExecutionStatus IN ("Terminated", "TimedOut") OR '
        '(ExecutionStatus IN ("Canceled", "Failed") AND '
        'OverlineStatus NOT IN ("succeeded", "failed", "cancelled")))'
    )


async def _close(parts: Parts, run: WorkflowExecution) -> bool:
    """Return whether there is nothing left to do for this run."""
    organisation = run.typed_search_attributes.get(SEARCH_ORGANISATION)
    if organisation is None or run.status is None:
        return True
    how = run.status.name.lower().replace("_", " ")
    try:
        newest = await parts.temporal.get_workflow_handle(run.id).describe()
    except (RPCError, RuntimeError):
        return False
    if newest.run_id != run.run_id:
        # A reset ended this run and began that one: the task goes on, or ends, with it.
        return True
    cancelled = run.status is WorkflowExecutionStatus.CANCELED
    error = TaskError(code=EndedOutside.code, message=f"the workflow was ended from outside: {how}")
    try:
        tenant, task_id = UUID(organisation), UUID(run.id.removeprefix("task-"))
        ended = await tasks.finish_task(
            parts.database,
            tenant,
            task_id,
            status="cancelled" if cancelled else "failed",
            answer=None,
            error=None if cancelled else error.model_dump(mode="json"),
        )
    except StoreError:
        return False
    except ValueError:
        return True
    if ended:
        await start_deliveries(parts, tenant, task_id)
        log.info("closed a task that was ended from outside", extra={"task_id": run.id[5:]})
    return True
