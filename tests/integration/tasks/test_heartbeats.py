"""Why a worker's heartbeats are not throttled as the SDK would: side by side, in one run.

What was generated is in the journal, so no resume depends on what heartbeats carry. They decide how
soon a task's wish to end, or its worker's death, is known; and whoever trusted their details would
begin again near the first token.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack
from datetime import timedelta
from typing import Any
from uuid import uuid4

import pytest_asyncio
from temporalio import activity, workflow
from temporalio.client import Client, WorkflowHandle
from temporalio.worker import UnsandboxedWorkflowRunner, Worker

from deploy.worker import HEARTBEAT_THROTTLE
from tests.integration.running import RunningStack

TOKENS_S = 0.02


@activity.defn(name="heartbeats.generate")
async def generate() -> int:
    """Heartbeat with every token until cancelled."""
    token = 0
    try:
        while True:
            token += 1
            activity.heartbeat(token)
            await asyncio.sleep(TOKENS_S)
    except asyncio.CancelledError:
        return token


@workflow.defn(name="Heartbeats")
class Heartbeats:
    """Waits for the activity to notice that it is cancelled."""

    @workflow.run
    async def run(self) -> int:
        """Return the token at which it noticed."""
        return await workflow.execute_activity(
            generate,
            start_to_close_timeout=timedelta(minutes=2),
            heartbeat_timeout=timedelta(seconds=20),
            cancellation_type=workflow.ActivityCancellationType.WAIT_CANCELLATION_COMPLETED,
        )


@pytest_asyncio.fixture
async def both(
    stack: RunningStack,
) -> AsyncIterator[dict[str, WorkflowHandle[Heartbeats, int]]]:
    """One workflow on a worker with our throttle, one on a worker with the SDK's."""
    client = await Client.connect(stack.settings.temporal_address)
    throttles: dict[str, dict[str, Any]] = {
        "ours": {"max_heartbeat_throttle_interval": HEARTBEAT_THROTTLE},
        "default": {},
    }
    async with AsyncExitStack() as running:
        handles = {}
        for name, throttle in throttles.items():
            queue = f"heartbeats-{name}-{uuid4()}"
            await running.enter_async_context(
                Worker(
                    client,
                    task_queue=queue,
                    workflows=[Heartbeats],
                    activities=[generate],
                    workflow_runner=UnsandboxedWorkflowRunner(),
                    **throttle,
                )
            )
            handles[name] = await client.start_workflow(Heartbeats.run, id=queue, task_queue=queue)
        yield handles
        for handle in handles.values():
            if (await handle.describe()).close_time is None:
                await handle.terminate()


async def _reported(handle: WorkflowHandle[Heartbeats, int]) -> int:
    """The newest token that the server knows of; what a next attempt would be given."""
    description = await handle.describe()
    for pending in description.raw_description.pending_activities:
        for detail in pending.heartbeat_details.payloads:
            return int(detail.data)
    return 0


async def test_the_sdks_throttle_would_lose_the_resume_point_and_hear_of_a_cancel_late(
    both: dict[str, WorkflowHandle[Heartbeats, int]],
) -> None:
    async with asyncio.timeout(60):
        while await _reported(both["default"]) == 0 or await _reported(both["ours"]) < 60:
            await asyncio.sleep(0.05)
    # The first heartbeat goes at once, the next ones wait for 0.8 of the heartbeat timeout.
    assert await _reported(both["default"]) <= 3

    await asyncio.gather(*(handle.cancel() for handle in both.values()))
    async with asyncio.timeout(60):
        assert await both["ours"].result() > 60
    # Its engine would still be busy with an answer nobody wants.
    assert (await both["default"].describe()).close_time is None
