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
from temporalio.api.deployment.v1 import WorkerDeploymentVersion
from temporalio.api.enums.v1 import (
    PendingActivityState,
    PendingWorkflowTaskState,
    TaskQueueType,
    VersioningBehavior,
    WorkerVersioningMode,
    WorkflowExecutionStatus,
)
from temporalio.api.failure.v1 import Failure
from temporalio.api.taskqueue.v1 import TaskQueue
from temporalio.api.workflow.v1 import (
    PendingActivityInfo,
    WorkflowExecutionVersioningInfo,
)
from temporalio.api.workflowservice.v1 import (
    DescribeTaskQueueRequest,
    DescribeWorkflowExecutionRequest,
)
from temporalio.client import Client
from temporalio.service import RPCError, RPCStatusCode

from api.worker_life import silent_workers

__all__ = [
    "Asker",
    "PendingActivity",
    "PendingWorkflowTask",
    "Poller",
    "Version",
    "WorkflowLook",
    "look_at",
]


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
class Version:
    """A build of a worker deployment."""

    deployment: str
    build: str


@dataclass(frozen=True)
class Asker:
    """One worker process that asks a task queue for work.

    Attributes:
        identity: What it is called, the same on all its queues.
        version: Build it is of; None: it takes part in no versioning.
        last_seen: When it asked last.
    """

    identity: str
    version: Version | None
    last_seen: datetime


@dataclass(frozen=True)
class Poller:
    """A task queue: who asks it for work, and what lies in it.

    Attributes:
        kind: `workflow` or `activity`.
        askers: Every worker process that did within some minutes.
        waiting: Tasks that lie in it, about.
        limit_per_s: What somebody limited it to, in tasks a second.
        current: Build that work without a version of its own goes to.
    """

    queue: str
    kind: str
    askers: tuple[Asker, ...] = ()
    waiting: int = 0
    limit_per_s: float | None = None
    current: Version | None = None


@dataclass(frozen=True)
class WorkflowLook:
    """A workflow at a moment.

    Attributes:
        status: Temporal's own word, such as `running` or `terminated`.
        problems: What the server reports of it, such as a category of workflow task failures.
        children: Ids of the tasks that it started and waits for.
        pinned: Build it stays with.
    """

    status: str
    run_id: str
    queue: str
    workflow_task: PendingWorkflowTask | None
    activities: tuple[PendingActivity, ...]
    pollers: tuple[Poller, ...]
    problems: tuple[str, ...] = ()
    children: tuple[str, ...] = ()
    pinned: Version | None = None

    def poller(self, queue: str, kind: str) -> Poller:
        """What is known of a queue, for one kind of work."""
        known = ((poller.queue, poller.kind) for poller in self.pollers)
        found = dict(zip(known, self.pollers, strict=True))
        return found.get((queue, kind), Poller(queue, kind))


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
    # The first also tells of workers that ask nothing else, because all their slots are taken.
    queues = dict.fromkeys(
        [(queue, "workflow"), *((each.queue, "activity") for each in activities)]
    )
    silent = await silent_workers(client, limit=limit)
    pollers = await asyncio.gather(
        *(_poller(client, name, kind, silent, limit=limit) for name, kind in queues)
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
        children=tuple(
            child.workflow_id.removeprefix("task-") for child in described.pending_children
        ),
        pinned=_pinned(info.versioning_info),
    )


def _pinned(versioning: WorkflowExecutionVersioningInfo) -> Version | None:
    """The build a workflow stays with: by what an operator said, else by its own definition."""
    override = versioning.versioning_override
    if override.HasField("pinned"):
        return _version(override.pinned.version)
    if versioning.behavior == VersioningBehavior.VERSIONING_BEHAVIOR_PINNED:
        return _version(versioning.deployment_version)
    return None


def _version(version: WorkerDeploymentVersion) -> Version | None:
    return Version(version.deployment_name, version.build_id) if version.build_id else None


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


async def _poller(
    client: Client, queue: str, kind: str, silent: frozenset[str], *, limit: timedelta
) -> Poller:
    answer = await client.workflow_service.describe_task_queue(
        DescribeTaskQueueRequest(
            namespace=client.namespace,
            task_queue=TaskQueue(name=queue),
            task_queue_type=(
                TaskQueueType.TASK_QUEUE_TYPE_WORKFLOW
                if kind == "workflow"
                else TaskQueueType.TASK_QUEUE_TYPE_ACTIVITY
            ),
            report_stats=True,
            report_config=True,
        ),
        timeout=limit,
    )
    limits = answer.config.queue_rate_limit
    askers = tuple(
        Asker(
            identity=each.identity,
            version=_version(
                WorkerDeploymentVersion(
                    deployment_name=each.deployment_options.deployment_name,
                    build_id=each.deployment_options.build_id,
                )
                if each.deployment_options.worker_versioning_mode
                == WorkerVersioningMode.WORKER_VERSIONING_MODE_VERSIONED
                else WorkerDeploymentVersion()
            ),
            last_seen=each.last_access_time.ToDatetime(tzinfo=UTC),
        )
        for each in answer.pollers
        if each.identity not in silent
    )
    return Poller(
        queue,
        kind,
        askers=askers,
        waiting=answer.stats.approximate_backlog_count,
        limit_per_s=(
            limits.rate_limit.requests_per_second if limits.HasField("rate_limit") else None
        ),
        current=_version(answer.versioning_info.current_deployment_version),
    )


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
