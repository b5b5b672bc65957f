"""The part of a worker process that makes model calls: one Temporal worker a deployment class.

Each takes from its class's queue as many calls as this process's share of the engines behind it,
and no more: what the engines cannot run yet waits in Temporal, in its order, not in the engine.
Classes and slots are in the catalogue; what changes there is followed within seconds.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from datetime import timedelta
from math import ceil
from typing import Any

from temporalio.client import Client
from temporalio.worker import Worker

from activities.dependencies import Dependencies
from deploy.versioning import build_id, deployment_config
from settings import Settings
from store.errors import DatabaseUnavailable
from workflows.queueing import model_queue

__all__ = ["ModelWorkers", "slots_of_process"]

logger = logging.getLogger(__name__)

FOLLOW_SECONDS = 2.0
# A call that ends makes room for one that waits at once, if somebody asks for it already.
MOST_POLLS = 5


def slots_of_process(engine_slots: int, settings: Settings) -> int:
    """Return how many calls of a class one process runs at a time: its share, rounded up.

    Args:
        engine_slots: Requests that the engines of the class run at a time.
        settings: They say how many processes share the engines, and what one takes at most.
    """
    share = ceil(engine_slots / max(1, settings.workers))
    return max(1, min(share, settings.worker_concurrency))


@dataclass
class _Serving:
    slots: int
    worker: Worker
    running: asyncio.Task[None]


class ModelWorkers:
    """The workers of all deployment classes in this process."""

    def __init__(
        self,
        client: Client,
        deps: Dependencies,
        activities: Sequence[Callable[..., Any]],
        *,
        heartbeat_throttle: timedelta,
        grace: timedelta,
    ) -> None:
        """Prepare; `run` serves.

        Args:
            client: Temporal.
            deps: What the activities share.
            activities: Those that run on these queues.
            heartbeat_throttle: Longest that a heartbeat is held back.
            grace: What a call is given to end when its worker stops.
        """
        self._client = client
        self._deps = deps
        self._activities = activities
        self._heartbeat_throttle = heartbeat_throttle
        self._grace = grace
        self._serving: dict[str, _Serving] = {}

    async def run(self) -> None:
        """Serve what the catalogue names, until cancelled; then stop all, side by side.

        Raises:
            Exception: A worker broke for good; the process should end and begin again.
        """
        try:
            while True:
                # Without Postgres no call could be made anyway; what is served stays served.
                with contextlib.suppress(DatabaseUnavailable):
                    await self._follow((await self._deps.catalogue.read()).class_slots())
                running = [each.running for each in self._serving.values()]
                if not running:
                    await asyncio.sleep(FOLLOW_SECONDS)
                    continue
                ended, _ = await asyncio.wait(
                    running, timeout=FOLLOW_SECONDS, return_when=asyncio.FIRST_COMPLETED
                )
                for each in ended:
                    each.result()
        finally:
            # A worker that broke has ended already, and was told of above.
            await asyncio.gather(*map(_stop, self._serving.values()), return_exceptions=True)

    async def _follow(self, classes: dict[str, int]) -> None:
        """Serve new classes; those with other slots anew; one that is gone while calls may wait."""
        for name, engine_slots in classes.items():
            slots = slots_of_process(engine_slots, self._deps.settings)
            served = self._serving.get(name)
            if served is not None:
                if served.slots == slots:
                    continue
                # Two workers of one process cannot share a queue. What this one leaves unfinished
                # is gone on with from the journal.
                await _stop(served)
            worker = self._worker(name, slots)
            self._serving[name] = _Serving(slots, worker, asyncio.create_task(worker.run()))
            logger.info("model calls of class %s: %d at a time", name, slots)

    def _worker(self, name: str, slots: int) -> Worker:
        settings = self._deps.settings
        return Worker(
            self._client,
            task_queue=model_queue(settings.task_queue, name),
            activities=self._activities,
            max_concurrent_activities=slots,
            max_concurrent_activity_task_polls=min(slots, MOST_POLLS),
            max_heartbeat_throttle_interval=self._heartbeat_throttle,
            graceful_shutdown_timeout=self._grace,
            build_id=build_id(settings),
            deployment_config=deployment_config(settings),
        )


async def _stop(served: _Serving) -> None:
    await served.worker.shutdown()
    await served.running
