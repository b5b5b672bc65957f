"""`overline replay`: does a finished task's history still run through today's workflow code?"""

from __future__ import annotations

import asyncio
import base64
import json
import logging
from dataclasses import asdict, dataclass
from datetime import timedelta
from pathlib import Path
from typing import Annotated

import typer
from temporalio.client import Client, WorkflowHistory
from temporalio.contrib.pydantic import pydantic_data_converter
from temporalio.converter import DataConverter
from temporalio.runtime import LoggingConfig, Runtime, TelemetryConfig
from temporalio.service import RPCError, RPCStatusCode
from temporalio.worker import Replayer
from temporalio.worker.workflow_sandbox import SandboxedWorkflowRunner, SandboxRestrictions

from api.cli.render import console, fail
from settings import Settings, load_settings
from workflows.agent_task import AgentTask
from workflows.client import connect_kwargs, data_converter
from workflows.codec import ENCODING
from workflows.ingest import IngestDocument

__all__ = ["Replay", "replay", "replay_history"]

# As the workers have it: reading these again for every workflow costs time and proves nothing.
_PASSED_THROUGH = ("pydantic", "pydantic_core", "annotated_types", "settings", "cryptography")

_ENCRYPTED = base64.b64encode(ENCODING).decode()


@dataclass(frozen=True)
class Replay:
    """What a replay showed.

    Attributes:
        workflow_id: Workflow the history is of.
        events: Number of events in it.
        replays: Whether today's code makes the same decisions.
        divergence: Where it does not, in Temporal's words; None when it replays.
    """

    workflow_id: str
    events: int
    replays: bool
    divergence: str | None = None


def replay(
    task: Annotated[
        str, typer.Argument(help="Task id, workflow id, or the file of a history in JSON.")
    ],
    save: Annotated[
        Path | None, typer.Option(help="Also write the history, still encrypted, to this file.")
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON object.")] = False,
) -> None:
    """Replay a task's history against today's code; exit 1 if it diverges."""
    settings = load_settings()
    if task.endswith(".json") and Path(task).is_file():
        text = Path(task).read_text(encoding="utf-8")
        history = WorkflowHistory.from_json(_workflow_id_in(text, Path(task).stem), text)
    else:
        history = asyncio.run(_download(settings, task, as_json))
    if save is not None:
        save.write_text(history.to_json(), encoding="utf-8")
    result = asyncio.run(replay_history(settings, history))
    if as_json:
        print(json.dumps(asdict(result)))
    elif result.replays:
        console.print(
            f"[green]replays[/green]: {result.workflow_id}, {result.events} events, every decision "
            "the same as recorded"
        )
    else:
        console.print(f"[red]diverges[/red]: {result.workflow_id}, {result.events} events")
        console.print(result.divergence or "", highlight=False, markup=False)
    if not result.replays:
        raise typer.Exit(1)


async def replay_history(settings: Settings, history: WorkflowHistory) -> Replay:
    """Replay one history.

    Args:
        settings: The key ring decrypts the payloads.
        history: The history, encrypted or in clear.
    """
    replayer = Replayer(
        workflows=[AgentTask, IngestDocument],
        # Payloads are bound to their namespace.
        namespace=settings.temporal_namespace,
        data_converter=_converter(settings, history),
        workflow_runner=SandboxedWorkflowRunner(
            restrictions=SandboxRestrictions.default.with_passthrough_modules(*_PASSED_THROUGH)
        ),
        # What went wrong is in the result; the core would print it as well.
        runtime=Runtime(telemetry=TelemetryConfig(logging=LoggingConfig(filter="off"))),
    )
    logger = logging.getLogger("temporalio")
    level = logger.level
    logger.setLevel(logging.CRITICAL + 1)
    try:
        result = await replayer.replay_workflow(history, raise_on_replay_failure=False)
    finally:
        logger.setLevel(level)
    failure = result.replay_failure
    return Replay(
        workflow_id=history.workflow_id,
        events=len(history.events),
        replays=failure is None,
        divergence=None if failure is None else f"{type(failure).__name__}: {failure}",
    )


def _converter(settings: Settings, history: WorkflowHistory) -> DataConverter:
    """Histories kept as test data may have been exported in clear."""
    if _ENCRYPTED in history.to_json():
        return data_converter(settings)
    return pydantic_data_converter


async def _download(settings: Settings, task: str, as_json: bool) -> WorkflowHistory:
    workflow_id = task if task.startswith(("task-", "ingest-")) else f"task-{task}"
    try:
        async with asyncio.timeout(15):
            client = await Client.connect(settings.temporal_address, **connect_kwargs(settings))
            return await client.get_workflow_handle(workflow_id).fetch_history(
                rpc_timeout=timedelta(seconds=10)
            )
    except RPCError as exc:
        if exc.status is RPCStatusCode.NOT_FOUND:
            fail(f"Temporal has no workflow {workflow_id!r}.", as_json)
        fail(f"Temporal did not give the history ({exc.status.name}).", as_json)
    except (TimeoutError, RuntimeError):
        fail(f"Temporal does not answer at {settings.temporal_address}.", as_json, status=3)


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
