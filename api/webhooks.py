"""Deliveries of webhooks, started by whoever ended a task here, and by the sweeper for the rest.

The row of a delivery is filed with the task's end, in one transaction. Whichever process dies
afterwards, the sweeper of any API process finds what no workflow works at.
"""

from __future__ import annotations

import asyncio
import logging
from uuid import UUID

from api.orchestrator import Orchestrator
from api.parts import Parts
from api.problems import ProblemError
from store import webhooks
from store.errors import StoreError

__all__ = ["start_deliveries", "start_delivery", "sweep_webhooks"]

log = logging.getLogger("overline.api")

_SWEEP_EVERY_S = 5.0


async def start_deliveries(parts: Parts, organisation_id: UUID, task_id: UUID) -> None:
    """Start the deliveries of a task that was ended here; the sweeper starts what cannot be."""
    try:
        for delivery_id in await webhooks.of_task_unstarted(
            parts.database, organisation_id, task_id
        ):
            await start_delivery(parts, organisation_id, delivery_id)
    except (ProblemError, StoreError):
        log.warning("a webhook was not started yet", extra={"task_id": str(task_id)})


async def start_delivery(parts: Parts, organisation_id: UUID, delivery_id: UUID) -> None:
    """Start one delivery, and note that it was started.

    Raises:
        ProblemError: Temporal does not answer (503).
    """
    orchestrator = Orchestrator(parts.temporal, parts.settings)
    if await orchestrator.start_webhook(organisation_id, delivery_id):
        await webhooks.mark_started(parts.database, organisation_id, delivery_id)


async def sweep_webhooks(parts: Parts) -> None:
    """Start deliveries that no workflow works at; runs for ever."""
    while True:
        await asyncio.sleep(_SWEEP_EVERY_S)
        try:
            left_behind = await webhooks.unstarted(parts.database)
        except StoreError:
            continue
        for delivery in left_behind:
            try:
                await start_delivery(parts, delivery.organisation_id, delivery.delivery_id)
            except Exception as exc:
                # One that cannot be started must not keep the others from it.
                log.warning("a webhook could not be started: %s", type(exc).__name__)
