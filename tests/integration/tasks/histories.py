"""Finished histories replay against today's code: what any of them did can be done again."""

from __future__ import annotations

from collections.abc import Iterable

from temporalio.client import Client, WorkflowHistory

from api.cli.replay import replay_history
from tests.integration.running import RunningStack
from workflows.client import connect_kwargs

__all__ = ["assert_replays", "runs_of", "size_of"]


async def assert_replays(stack: RunningStack, workflow_ids: Iterable[str]) -> None:
    """Replay every run of workflows of a stack, as `overline replay` does."""
    settings = stack.settings
    client = await Client.connect(settings.temporal_address, **connect_kwargs(settings))
    for workflow_id in workflow_ids:
        for history in await runs_of(client, workflow_id):
            result = await replay_history(settings, history)
            assert result.replays, f"{workflow_id} {history.run_id}: {result.divergence}"


async def runs_of(client: Client, workflow_id: str) -> list[WorkflowHistory]:
    """Return the histories of a workflow's runs, the first run first."""
    found: list[WorkflowHistory] = []
    run_id: str | None = None
    while True:
        handle = client.get_workflow_handle(workflow_id, run_id=run_id)
        found.insert(0, await handle.fetch_history())
        started = found[0].events[0].workflow_execution_started_event_attributes
        run_id = started.continued_execution_run_id
        if not run_id:
            return found


def size_of(history: WorkflowHistory) -> int:
    """Return the size of a history as Temporal stores it, in bytes."""
    return sum(event.ByteSize() for event in history.events)
