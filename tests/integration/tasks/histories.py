"""Finished histories replay against today's code: what any of them did can be done again."""

from __future__ import annotations

from collections.abc import Iterable

from temporalio.client import Client

from api.cli.replay import replay_history
from tests.integration.running import RunningStack
from workflows.client import connect_kwargs

__all__ = ["assert_replays"]


async def assert_replays(stack: RunningStack, workflow_ids: Iterable[str]) -> None:
    """Replay workflows of a stack, as `overline replay` does."""
    settings = stack.settings
    client = await Client.connect(settings.temporal_address, **connect_kwargs(settings))
    for workflow_id in workflow_ids:
        history = await client.get_workflow_handle(workflow_id).fetch_history()
        result = await replay_history(settings, history)
        assert result.replays, f"{workflow_id}: {result.divergence}"
