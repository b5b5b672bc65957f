"""Where histories come from: Temporal, a file of one, or a bundle of `overline export`."""

from __future__ import annotations

import asyncio
import base64
import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from datetime import UTC, datetime, timedelta
from pathlib import Path

from temporalio.client import Client, WorkflowExecution, WorkflowHistory
from temporalio.service import RPCError, RPCStatusCode

from api.cli.render import UNREACHABLE, fail
from settings import Settings
from workflows.client import connect_kwargs
from workflows.registry import WORKFLOWS

__all__ = ["all_runs", "connected", "download", "recent", "saved", "workflow_id_of"]

_PATIENCE_S = 15.0
_RPC_TIMEOUT = timedelta(seconds=10)


def workflow_id_of(task: str) -> str:
    """Return the workflow id that a task id, or a workflow id, stands for."""
    known = task.startswith(("task-", "ingest-", "scheduled-"))
    return task if known else f"task-{task}"


@asynccontextmanager
async def connected(settings: Settings, as_json: bool) -> AsyncIterator[Client]:
    """Connect to Temporal; what goes wrong there ends the command in words."""
    try:
        async with asyncio.timeout(_PATIENCE_S):
            client = await Client.connect(settings.temporal_address, **connect_kwargs(settings))
    except (TimeoutError, RuntimeError, RPCError):
        where = settings.temporal_address
        fail(f"Temporal does not answer at {where}.", as_json, status=UNREACHABLE)
    try:
        yield client
    except RPCError as exc:
        fail(f"Temporal refused or went away ({exc.status.name}).", as_json)


async def download(client: Client, workflow_id: str, run_id: str | None = None) -> WorkflowHistory:
    """Download the history of one run, by default the last.

    Raises:
        RPCError: There is none (`NOT_FOUND`), or Temporal does not answer.
    """
    handle = client.get_workflow_handle(workflow_id, run_id=run_id)
    return await handle.fetch_history(rpc_timeout=_RPC_TIMEOUT)


async def all_runs(client: Client, workflow_id: str, as_json: bool) -> list[WorkflowHistory]:
    """Download every run of a workflow that went on in new ones, the first one first."""
    try:
        runs = [await download(client, workflow_id)]
    except RPCError as exc:
        if exc.status is not RPCStatusCode.NOT_FOUND:
            raise
        fail(f"Temporal has no workflow {workflow_id!r}.", as_json)
    while before := _run_before(runs[0]):
        try:
            runs.insert(0, await download(client, workflow_id, before))
        except RPCError as exc:
            # An early run of a long task may be older than histories are kept.
            if exc.status is not RPCStatusCode.NOT_FOUND:
                raise
            break
    return runs


def _run_before(history: WorkflowHistory) -> str:
    started = history.events[0].workflow_execution_started_event_attributes
    return started.continued_execution_run_id


async def recent(client: Client, since: timedelta) -> list[WorkflowExecution]:
    """List the runs that ended within a period, and those that go on, however old."""
    kinds = ", ".join(f'"{getattr(workflow, "__name__")}"' for workflow in WORKFLOWS)  # noqa: B009
    after = (datetime.now(UTC) - since).strftime("%Y-%m-%dT%H:%M:%SZ")
    query = f"WorkflowType IN ({kinds}) AND (ExecutionStatus = 'Running' OR CloseTime >= '{after}')"
    return [run async for run in client.list_workflows(query)]


def saved(path: Path, as_json: bool) -> WorkflowHistory:
    """Read a history from a file of JSON."""
    text = path.read_text(encoding="utf-8")
    try:
        return WorkflowHistory.from_json(_workflow_id_in(text, path.stem), text)
    except (ValueError, AttributeError, TypeError):
        fail(f"{path} does not hold a history in JSON.", as_json)


def _workflow_id_in(text: str, default: str) -> str:
    """Payloads are bound to their workflow's id, which an exported history carries with them."""
    for event in json.loads(text).get("events", ()):
        for attributes in event.values():
            for payload in _payloads_of(attributes):
                bound = payload.get("metadata", {}).get("workflow-id")
                if bound:
                    return base64.b64decode(bound).decode()
    return default


def _payloads_of(value: object) -> list[dict[str, dict[str, str]]]:
    if isinstance(value, list):
        return [payload for item in value for payload in _payloads_of(item)]
    if not isinstance(value, dict):
        return []
    if "metadata" in value and "data" in value:
        return [value]
    return [payload for item in value.values() for payload in _payloads_of(item)]
