"""The schedule of the house: made by any API process, as it is in this code."""

from __future__ import annotations

import asyncio
import logging
from datetime import timedelta

from temporalio.client import (
    Client,
    Schedule,
    ScheduleActionStartWorkflow,
    ScheduleAlreadyRunningError,
    ScheduleIntervalSpec,
    ScheduleOverlapPolicy,
    SchedulePolicy,
    ScheduleSpec,
    ScheduleUpdate,
    ScheduleUpdateInput,
)
from temporalio.service import RPCError

from api.parts import Parts
from settings import Settings
from workflows.contracts import HOUSEKEEPING_ID, HousekeepingInput

__all__ = ["keep_house"]

log = logging.getLogger("overline.api")

_EVERY = timedelta(hours=6)
_RETRY_S = 5.0
_DEADLINE = timedelta(seconds=5)


async def keep_house(parts: Parts) -> None:
    """Make the schedule, or bring the one there is up to date; waits for Temporal."""
    while True:
        try:
            await _make(parts.temporal, parts.settings)
            return
        except (RPCError, RuntimeError):
            await asyncio.sleep(_RETRY_S)


async def _make(client: Client, settings: Settings) -> None:
    wanted = Schedule(
        action=ScheduleActionStartWorkflow(
            "Housekeeping",
            HousekeepingInput(files=True),
            id=HOUSEKEEPING_ID,
            task_queue=settings.task_queue,
            static_summary="keep the house",
        ),
        spec=ScheduleSpec(intervals=[ScheduleIntervalSpec(_EVERY)]),
        policy=SchedulePolicy(
            overlap=ScheduleOverlapPolicy.SKIP, catchup_window=timedelta(minutes=10)
        ),
    )
    try:
        await client.create_schedule(HOUSEKEEPING_ID, wanted, rpc_timeout=_DEADLINE)
        return
    except ScheduleAlreadyRunningError:
        pass

    def same_but_its_state(there: ScheduleUpdateInput) -> ScheduleUpdate:
        # Somebody may have paused it.
        wanted.state = there.description.schedule.state
        return ScheduleUpdate(schedule=wanted)

    await client.get_schedule_handle(HOUSEKEEPING_ID).update(
        same_but_its_state, rpc_timeout=_DEADLINE
    )
