"""What a durable chain costs at the least: a workflow of as many activities that do nothing."""

from __future__ import annotations

import asyncio
from datetime import timedelta

from temporalio import activity, workflow
from temporalio.client import Client
from temporalio.worker import Worker

QUEUE = "bare"


@activity.defn(name="bare.nothing")
async def nothing(value: str) -> str:
    """Return what it was given."""
    return value


@workflow.defn(name="Bare")
class Bare:
    """Runs a number of activities, one after the other, with SDK defaults."""

    @workflow.run
    async def run(self, activities: int) -> str:
        """Run them."""
        value = "x" * 200
        for _ in range(activities):
            value = await workflow.execute_activity(
                "bare.nothing",
                value,
                result_type=str,
                start_to_close_timeout=timedelta(seconds=10),
            )
        return value


async def main(address: str) -> None:
    """Serve the bare workflow until the process is ended."""
    client = await Client.connect(address)
    async with Worker(client, task_queue=QUEUE, workflows=[Bare], activities=[nothing]):
        await asyncio.Event().wait()


if __name__ == "__main__":
    import sys

    asyncio.run(main(sys.argv[1]))
