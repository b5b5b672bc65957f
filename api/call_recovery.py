"""Calls whose process died are given to a workflow, by whichever API process sees it first."""

from __future__ import annotations

import asyncio
import logging

from api.orchestrator import Orchestrator
from api.parts import Parts
from store import call_owners
from store.errors import StoreError
from workflows.contracts import Tenant
from workflows.contracts.call import CallInput

__all__ = ["sweep_orphans"]

log = logging.getLogger("overline.api")

_SWEEP_EVERY_S = 1.0


async def sweep_orphans(parts: Parts) -> None:
    """Start the workflows of calls whose process died; runs for ever.

    After an outage of Postgres every process looks dead until it has renewed itself. So only one
    that has been able to do that for a while looks for others that were not.
    """
    while True:
        await asyncio.sleep(_SWEEP_EVERY_S)
        if parts.lane is None or not parts.lane.steady:
            continue
        try:
            orphans = await call_owners.orphaned_calls(parts.database)
        except StoreError:
            continue
        for orphan in orphans:
            try:
                await _hand_over(parts, orphan)
                log.info(
                    "gave a call of a dead process to its workflow",
                    extra={"task_id": str(orphan.task_id)},
                )
            except Exception as exc:
                # One call that cannot be handed over must not keep the others from it.
                log.warning(
                    "a call of a dead process could not be handed over: %s",
                    type(exc).__name__,
                    extra={"task_id": str(orphan.task_id)},
                )


async def _hand_over(parts: Parts, orphan: call_owners.OrphanedCall) -> None:
    tenant = Tenant(
        organisation_id=orphan.organisation_id, team_id=orphan.team_id, key_id=orphan.key_id
    )
    orchestrator = Orchestrator(parts.temporal, parts.settings)
    run_id = await orchestrator.start_once(
        "CallTask",
        CallInput(tenant=tenant, task_id=orphan.task_id),
        task_id=orphan.task_id,
        tenant=tenant,
        headline="a call whose process died",
    )
    await call_owners.hand_over(parts.database, orphan.organisation_id, orphan.task_id, run_id)
    if await call_owners.end_is_wished(parts.database, orphan.organisation_id, orphan.task_id):
        await orchestrator.cancel_task(orphan.task_id)
