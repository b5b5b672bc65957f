"""What the API asks of Temporal: start a task, start an ingestion, cancel. One call each.

Every call has a deadline, and a Temporal that is down becomes the 503 that names it.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Mapping
from dataclasses import dataclass
from datetime import timedelta
from uuid import UUID

from pydantic import BaseModel
from temporalio.client import Client, WorkflowFailureError
from temporalio.common import (
    Priority,
    SearchAttributePair,
    TypedSearchAttributes,
    WorkflowIDConflictPolicy,
    WorkflowIDReusePolicy,
)
from temporalio.exceptions import ActivityError, ApplicationError, WorkflowAlreadyStartedError
from temporalio.service import RPCError, RPCStatusCode
from uuid_utils.compat import uuid7

from api.problems import ProblemError, unavailable
from api.workflow_look import WorkflowLook, look_at
from settings import Settings
from workflows import errors
from workflows.client import SEARCH_ORGANISATION, SEARCH_STATUS, SEARCH_TEAM
from workflows.contracts import (
    DeliverInput,
    IngestInput,
    Registered,
    RegisterInput,
    SessionInput,
    TaskInput,
    Tenant,
    session_workflow_id,
    webhook_workflow_id,
)
from workflows.contracts.batch import BatchInput, batch_workflow_id
from workflows.queueing import task_turn

__all__ = ["Orchestrator", "answering", "task_workflow_id", "web_ui_url"]

_DEADLINE = timedelta(seconds=5)
# A source has twenty seconds, a worker that is replaced meanwhile has the rest.
_REGISTRATION = timedelta(seconds=60)

#: What Temporal answers when it is down, starting, or too busy.
_OUTAGES = frozenset(
    {
        RPCStatusCode.CANCELLED,
        RPCStatusCode.DEADLINE_EXCEEDED,
        RPCStatusCode.INTERNAL,
        RPCStatusCode.RESOURCE_EXHAUSTED,
        RPCStatusCode.UNAVAILABLE,
        RPCStatusCode.UNKNOWN,
    }
)


def task_workflow_id(task_id: UUID) -> str:
    """Return the workflow id of a task."""
    return f"task-{task_id}"


def web_ui_url(settings: Settings, workflow_id: str, run_id: str | None = None) -> str:
    """Return the address of a workflow in Temporal's Web UI."""
    base = settings.temporal_ui_url.rstrip("/")
    url = f"{base}/namespaces/{settings.temporal_namespace}/workflows/{workflow_id}"
    return f"{url}/{run_id}/history" if run_id else url


@contextlib.asynccontextmanager
async def answering() -> AsyncIterator[None]:
    """Turn every way in which Temporal can be away into one 503."""
    try:
        async with asyncio.timeout(_DEADLINE.total_seconds() + 1):
            yield
    except TimeoutError:
        raise unavailable("temporal") from None
    except RPCError as exc:
        if exc.status in _OUTAGES:
            raise unavailable("temporal") from None
        raise
    except RuntimeError as exc:
        # The client connects on first use and reports a failed connection this way.
        if "connect" in str(exc).lower():
            raise unavailable("temporal") from None
        raise


@dataclass(frozen=True)
class Orchestrator:
    """Temporal as the API uses it.

    Args:
        client: The connected (or lazily connecting) client.
        settings: Settings of the process.
    """

    client: Client
    settings: Settings

    async def start_task(self, task: TaskInput, *, headline: str) -> str:
        """Start a task's workflow, or find it started; return the id of its run.

        Args:
            task: Input of the workflow.
            headline: One line for the Web UI; names and numbers only, it is not for prompts.

        Raises:
            ProblemError: Temporal does not answer (503).
        """
        return await self.start_once(
            "AgentTask",
            task,
            task_id=task.task_id,
            tenant=task.tenant,
            headline=headline[:180],
            details=_details(task),
            priority=task_turn(task.tenant, task.plan.priority),
        )

    async def start_once(
        self,
        workflow: str,
        argument: BaseModel,
        *,
        task_id: UUID,
        tenant: Tenant,
        headline: str,
        details: str | None = None,
        priority: Priority = Priority.default,
    ) -> str:
        """Start the workflow that carries a task, once ever; return the id of its run.

        Args:
            workflow: Its type.
            argument: Its input.
            task_id: The task.
            tenant: Who asks and pays.
            headline: One line for the Web UI; names and numbers only, it is not for prompts.
            details: More of the same.
            priority: Whose turn its activities take.

        Raises:
            ProblemError: Temporal does not answer (503).
        """
        async with answering():
            try:
                handle = await self.client.start_workflow(
                    workflow,
                    argument,
                    id=task_workflow_id(task_id),
                    task_queue=self.settings.task_queue,
                    id_reuse_policy=WorkflowIDReusePolicy.REJECT_DUPLICATE,
                    id_conflict_policy=WorkflowIDConflictPolicy.FAIL,
                    static_summary=headline,
                    static_details=details,
                    priority=priority,
                    search_attributes=_found_by(tenant.organisation_id, tenant.team_id, "running"),
                    rpc_timeout=_DEADLINE,
                )
            except WorkflowAlreadyStartedError as exc:
                return exc.run_id or ""
        return handle.result_run_id or ""

    async def cancel_task(self, task_id: UUID) -> bool:
        """Ask a task to end; return whether there was a running workflow to ask.

        Raises:
            ProblemError: Temporal does not answer (503).
        """
        async with answering():
            try:
                await self.client.get_workflow_handle(task_workflow_id(task_id)).cancel(
                    rpc_timeout=_DEADLINE
                )
            except RPCError as exc:
                if exc.status is RPCStatusCode.NOT_FOUND:
                    return False
                raise
        return True

    async def steer_task(self, task_id: UUID, *, paused: bool, number: int) -> bool:
        """Tell a task to pause or to go on; return whether there was a running workflow to tell.

        Args:
            task_id: The task.
            paused: Pause, or go on.
            number: Number of the wish: an older one that arrives later is left aside.

        Raises:
            ProblemError: Temporal does not answer (503).
        """
        return await self._signal(
            task_workflow_id(task_id), "pause" if paused else "resume", number
        )

    async def tell_message(self, task_id: UUID, number: int) -> bool:
        """Tell a task of a message; return whether there was a running workflow to tell.

        Raises:
            ProblemError: Temporal does not answer (503).
        """
        return await self._signal(task_workflow_id(task_id), "message", number)

    async def tell_decided(self, task_id: UUID, call_id: str) -> bool:
        """Tell a task that a person decided; return whether there was a workflow to tell.

        Raises:
            ProblemError: Temporal does not answer (503).
        """
        return await self._signal(task_workflow_id(task_id), "decided", call_id)

    async def _signal(self, workflow_id: str, signal: str, *what: int | str) -> bool:
        async with answering():
            try:
                await self.client.get_workflow_handle(workflow_id).signal(
                    signal, args=what, rpc_timeout=_DEADLINE
                )
            except RPCError as exc:
                if exc.status is RPCStatusCode.NOT_FOUND:
                    return False
                raise
        return True

    async def tell_session(self, session_id: UUID) -> bool:
        """Have a session's workflow look what is new; return whether there was one to tell.

        Raises:
            ProblemError: Temporal does not answer (503).
        """
        return await self._signal(session_workflow_id(session_id), "message", 0)

    async def wake_session(self, session: SessionInput, number: int, *, team_id: UUID) -> None:
        """Tell a session's workflow of a message, and start it if it has ended.

        Raises:
            ProblemError: Temporal does not answer (503).
        """
        async with answering():
            await self.client.start_workflow(
                "Session",
                session,
                id=session_workflow_id(session.session_id),
                task_queue=self.settings.task_queue,
                id_reuse_policy=WorkflowIDReusePolicy.ALLOW_DUPLICATE,
                id_conflict_policy=WorkflowIDConflictPolicy.USE_EXISTING,
                start_signal="message",
                start_signal_args=[number],
                static_summary="sees to the turns of a session",
                search_attributes=_found_by(session.organisation_id, team_id),
                rpc_timeout=_DEADLINE,
            )

    async def register_tools(self, request: RegisterInput) -> Registered:
        """Have a worker read a source of tools, and wait for what comes of it.

        Raises:
            ProblemError: The source cannot be used (422), or nobody answers (503).
        """
        async with answering():
            handle = await self.client.start_workflow(
                "RegisterTools",
                request,
                id=f"tools-{uuid7()}",
                task_queue=self.settings.task_queue,
                result_type=Registered,
                execution_timeout=_REGISTRATION,
                static_summary="register tools",
                search_attributes=_found_by(request.tenant.organisation_id, request.tenant.team_id),
                rpc_timeout=_DEADLINE,
            )
        try:
            async with asyncio.timeout(_REGISTRATION.total_seconds()):
                registered: Registered = await handle.result()
        except (TimeoutError, RPCError):
            raise unavailable("temporal") from None
        except WorkflowFailureError as failed:
            raise _registration_problem(failed) from None
        return registered

    async def start_batch(self, batch: BatchInput) -> None:
        """Start the workflow that carries a batch, or find it going.

        One that was ended from outside is started again: all there is of the batch is on file.

        Raises:
            ProblemError: Temporal does not answer (503).
        """
        tenant = batch.tenant
        async with answering():
            with contextlib.suppress(WorkflowAlreadyStartedError):
                await self.client.start_workflow(
                    "Batch",
                    batch,
                    id=batch_workflow_id(batch.batch_id),
                    task_queue=self.settings.task_queue,
                    id_reuse_policy=WorkflowIDReusePolicy.ALLOW_DUPLICATE,
                    id_conflict_policy=WorkflowIDConflictPolicy.FAIL,
                    static_summary=f"a batch, {batch.width} lines at a time",
                    priority=task_turn(tenant, "batch"),
                    search_attributes=_found_by(tenant.organisation_id, tenant.team_id, "running"),
                    rpc_timeout=_DEADLINE,
                )

    async def cancel_batch(self, batch_id: UUID) -> bool:
        """Tell a batch's workflow to begin nothing more; return whether there was one to tell.

        Raises:
            ProblemError: Temporal does not answer (503).
        """
        return await self._signal(batch_workflow_id(batch_id), "cancel")

    async def start_webhook(self, organisation_id: UUID, delivery_id: UUID) -> bool:
        """Start a delivery; False when a workflow works at it, or is just about to end.

        Raises:
            ProblemError: Temporal does not answer (503).
        """
        async with answering():
            try:
                await self.client.start_workflow(
                    "DeliverWebhook",
                    DeliverInput(organisation_id=organisation_id, delivery_id=delivery_id),
                    id=webhook_workflow_id(delivery_id),
                    task_queue=self.settings.task_queue,
                    # A delivery that has ended may be made once more.
                    id_reuse_policy=WorkflowIDReusePolicy.ALLOW_DUPLICATE,
                    id_conflict_policy=WorkflowIDConflictPolicy.FAIL,
                    static_summary="tell of a task's end",
                    search_attributes=_found_by(organisation_id),
                    rpc_timeout=_DEADLINE,
                )
            except WorkflowAlreadyStartedError:
                return False
        return True

    async def look_at(self, task_id: UUID) -> WorkflowLook | None:
        """Return what Temporal knows of a task's workflow; None when it has none.

        Raises:
            ProblemError: Temporal does not answer (503).
        """
        async with answering():
            return await look_at(self.client, task_workflow_id(task_id), limit=_DEADLINE)

    async def start_ingestion(self, document: IngestInput, *, headline: str) -> str:
        """Start the ingestion of a version of a document, or find it going; return its id.

        Raises:
            ProblemError: Temporal does not answer (503).
        """
        workflow_id = f"ingest-{document.document_id}-{document.version}"
        async with answering():
            with contextlib.suppress(WorkflowAlreadyStartedError):
                await self.client.start_workflow(
                    "IngestDocument",
                    document,
                    id=workflow_id,
                    task_queue=self.settings.task_queue,
                    # One that failed may be tried again by sending the document again.
                    id_reuse_policy=WorkflowIDReusePolicy.ALLOW_DUPLICATE_FAILED_ONLY,
                    id_conflict_policy=WorkflowIDConflictPolicy.USE_EXISTING,
                    static_summary=headline[:180],
                    search_attributes=_found_by(
                        document.tenant.organisation_id, document.tenant.team_id
                    ),
                    rpc_timeout=_DEADLINE,
                )
        return workflow_id


def _found_by(
    organisation_id: UUID, team_id: UUID | None = None, status: str | None = None
) -> TypedSearchAttributes:
    """Return what a workflow is found by in Temporal's lists."""
    pairs = [SearchAttributePair(SEARCH_ORGANISATION, str(organisation_id))]
    if team_id is not None:
        pairs.append(SearchAttributePair(SEARCH_TEAM, str(team_id)))
    if status is not None:
        pairs.append(SearchAttributePair(SEARCH_STATUS, status))
    return TypedSearchAttributes(pairs)


def _registration_problem(failed: WorkflowFailureError) -> ProblemError:
    """Say why tools could not be registered; only our own words are repeated."""
    cause = failed.cause.cause if isinstance(failed.cause, ActivityError) else failed.cause
    if isinstance(cause, ApplicationError) and cause.type == errors.ToolSourceRefused.type():
        return ProblemError(errors.ToolSourceRefused, f"{cause.message}.")
    if isinstance(cause, ApplicationError) and cause.type == errors.DatabaseDown.type():
        return unavailable("database")
    if isinstance(cause, ApplicationError):
        return ProblemError(errors.Internal, "The source could not be read, for a defect of ours.")
    return unavailable("temporal")


def _details(task: TaskInput) -> str:
    plan = task.plan
    facts: Mapping[str, object] = {
        "route": plan.route,
        "model": plan.model or "chosen by the route",
        "tools": ", ".join(tool.name for tool in plan.tools) or "none",
        "collections": len(plan.collections),
        "prompt": f"{task.prompt_chars:,} characters",
        "at most": f"{plan.limits.max_steps} steps"
        + (f", ${plan.limits.max_cost_usd:f}" if plan.limits.max_cost_usd else ""),
    }
    return "\n".join(f"- {name}: {value}" for name, value in facts.items())
