"""From a map on file to its workflow."""

from __future__ import annotations

import logging
from collections.abc import Mapping
from typing import Any
from uuid import UUID

from api.orchestrator import Orchestrator
from api.parts import Parts
from store import tasks
from store.errors import StoreError
from workflows.child_contracts import MapInput
from workflows.contracts import FiledRequest, Tenant
from workflows.planning import headline, plan_task
from workflows.queueing import task_turn

__all__ = ["start_map"]

log = logging.getLogger("overline.api")


async def start_map(parts: Parts, tenant: Tenant, task_id: UUID, stored: Mapping[str, Any]) -> None:
    """Start a map's workflow, or find it started, and mark its row.

    Args:
        parts: What the API stands on.
        tenant: Who asks and pays.
        task_id: The map.
        stored: What is on file of it.

    Raises:
        ProblemError: Temporal does not answer (503).
    """
    wanted = MapInput(
        task_id=task_id,
        tenant=tenant,
        total=stored["total"],
        concurrency=stored["concurrency"],
        on_error=stored["on_error"],
        deadline_seconds=stored["limits"]["deadline_seconds"],
        run_items=parts.settings.map_run_inputs,
    )
    item = plan_task(task_id, tenant, FiledRequest.model_validate({**stored["task"], "input": "?"}))
    run_id = await Orchestrator(parts.temporal, parts.settings).start_once(
        "MapTask",
        wanted,
        task_id=task_id,
        tenant=tenant,
        headline=f"map over {wanted.total:,} inputs, {wanted.concurrency} at a time; "
        f"each: {headline(item)}"[:180],
        priority=task_turn(tenant, item.plan.priority),
    )
    try:
        await tasks.mark_started(parts.database, tenant.organisation_id, task_id, run_id)
    except StoreError:
        # The workflow runs; the sweeper marks the row when the database is back.
        log.warning("map was started and not marked", extra={"task_id": str(task_id)})
