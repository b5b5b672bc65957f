"""What Temporal says about one workflow: what it waits for, and who would do it.

Names, numbers and times only: no payload is read, and of a failure only its type.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta

from google.protobuf.timestamp_pb2 import Timestamp
from temporalio.api.common.v1 import WorkflowExecution
from temporalio.api.enums.v1 import (
    PendingActivityState,
    PendingWorkflowTaskState,
    TaskQueueType,
    WorkflowExecutionStatus,
)
from temporalio.api.failure.v1 import Failure
from temporalio.api.taskqueue.v1 import TaskQueue
from temporalio.api.workflow.v1 import PendingActivityInfo
from temporalio.api.workflowservice.v1 import (
    DescribeTaskQueueRequest,
    DescribeWorkflowExecutionRequest,
)
from temporalio.client import Client
from temporalio.service import RPCError, RPCStatusCode

__all__ = ["PendingActivity", "PendingWorkflowTask", "Poller", "WorkflowLook", "look_at"]


@dataclass(frozen=True)
class PendingActivity:
    """An activity that was asked for and is not done.

    Attributes:
        name: Its type, such as `generation.generate`.
        started: Whether a worker has it.
        attempt: Which attempt this is, from 1.
        last_failure: Type of the failure of the attempt before.
        waiting_since: When it became free to be taken; in the future: when it is tried again.
        queue: Task queue it waits in.
    """

    name: str
    started: bool
    attempt: int
    last_failure: str | None
    waiting_since: datetime | None
    queue: str


@dataclass(frozen=True)
class PendingWorkflowTask:
    """A decision the workflow's code has to make.

    Attributes:
        started: Whether a worker has it.
        attempt: Which attempt this is, from 1.
        waiting_since: When it became free to be taken.
    """

    started: bool
    attempt: int
    waiting_since: datetime | None


@dataclass(frozen=True)
class Poller:
    """Who asks a task queue for work.

    Attributes:
        kind: `workflow` or `activity`.
        last_seen: When a worker asked last; None: nobody does.
    """

    queue: str
    kind: str
    last_seen: datetime | None


@dataclass(frozen=True)
class WorkflowLook:
    """A workflow at a moment.

    Attributes:
        status: Temporal's own word, such as `running` or `terminated`.
        problems: What the server reports of it, such as a category of workflow task failures.
    """

    status: str
    run_id: str
    queue: str
    workflow_task: PendingWorkflowTask | None
    activities: tuple[PendingActivity, ...]
    pollers: tuple[Poller, ...]
    problems: tuple[str, ...] = ()

    def last_seen(self, queue: str, kind: str) -> datetime | None:
        """When a worker last asked a queue for that kind of work."""
        return next(
            (
                poller.last_seen
                for poller in self.pollers
                if (poller.queue, poller.kind) == (queue, kind)
            ),
            None,
        )


async def look_at(client: Client, workflow_id: str, *, limit: timedelta) -> WorkflowLook | None:
    """Ask Temporal about a workflow; None when it knows none of that id.

    Raises:
        RPCError: Temporal does not answer.
    """
    try:
        described = await client.workflow_service.describe_workflow_execution(
            DescribeWorkflowExecutionRequest(
                namespace=client.namespace, execution=WorkflowExecution(workflow_id=workflow_id)
            ),
            timeout=limit,
        )
    except RPCError as error:
        if error.status is RPCStatusCode.NOT_FOUND:
            return None
        raise
    info = described.workflow_execution_info
    queue = info.task_queue or described.execution_config.task_queue.name
    activities = tuple(_activity(pending, queue) for pending in described.pending_activities)
    task = described.pending_workflow_task if described.HasField("pending_workflow_task") else None
    queues = dict.fromkeys(
        [(queue, "workflow"), *((each.queue, "activity") for each in activities)]
    )
    pollers = await asyncio.gather(
        *(_poller(client, name, kind, limit=limit) for name, kind in queues)
    )
    problems = info.search_attributes.indexed_fields.get("TemporalReportedProblems")
    return WorkflowLook(
        status=WorkflowExecutionStatus.Name(info.status)
        .removeprefix("WORKFLOW_EXECUTION_STATUS_")
        .lower(),
        run_id=info.execution.run_id,
        queue=queue,
        workflow_task=(
            PendingWorkflowTask(
                started=task.state == PendingWorkflowTaskState.PENDING_WORKFLOW_TASK_STATE_STARTED,
                attempt=task.attempt,
                waiting_since=_time(task.scheduled_time),
            )
            if task is not None
            else None
        ),
        activities=activities,
        pollers=tuple(pollers),
        problems=_words(problems.data) if problems is not None else (),
    )


def _activity(pending: PendingActivityInfo, workflow_queue: str) -> PendingActivity:
    options = pending.activity_options
    waiting = (
        pending.next_attempt_schedule_time
        if pending.HasField("next_attempt_schedule_time")
        else pending.scheduled_time
    )
    return PendingActivity(
        name=pending.activity_type.name,
        started=pending.state != PendingActivityState.PENDING_ACTIVITY_STATE_SCHEDULED,
        attempt=max(pending.attempt, 1),
        last_failure=_kind(pending.last_failure) if pending.HasField("last_failure") else None,
        waiting_since=_time(waiting),
        queue=options.task_queue.name or workflow_queue,
    )


def _kind(failure: Failure) -> str:
    """The type of a failure; its words are not for everybody."""
    if failure.HasField("application_failure_info"):
        return failure.application_failure_info.type or "ApplicationError"
    if failure.HasField("timeout_failure_info"):
        return "Timeout"
    return "Failure"


async def _poller(client: Client, queue: str, kind: str, *, limit: timedelta) -> Poller:
    answer = await client.workflow_service.describe_task_queue(
        DescribeTaskQueueRequest(
            namespace=client.namespace,
            task_queue=TaskQueue(name=queue),
            task_queue_type=(
                TaskQueueType.TASK_QUEUE_TYPE_WORKFLOW
                if kind == "workflow"
                else TaskQueueType.TASK_QUEUE_TYPE_ACTIVITY
            ),
        ),
        timeout=limit,
    )
    seen = [_time(poller.last_access_time) for poller in answer.pollers]
    return Poller(queue, kind, max((time for time in seen if time), default=None))


def _time(stamp: Timestamp) -> datetime | None:
    return stamp.ToDatetime(tzinfo=UTC) if stamp.seconds else None


def _words(data: bytes) -> tuple[str, ...]:
    """The server's own keywords; never a text of ours."""
    try:
        read = json.loads(data)
    except ValueError:
        return ()
    words: Sequence[object] = read if isinstance(read, list) else [read]
    return tuple(str(word) for word in words)
