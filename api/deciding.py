"""A decision about a tool call: first the row, then the workflow, whatever dies in between."""

from __future__ import annotations

import asyncio
import logging
from uuid import UUID

from api.orchestrator import Orchestrator
from api.parts import Parts
from api.problems import ProblemError
from store import approvals
from store.errors import StoreError

__all__ = ["sweep_untold", "tell"]

log = logging.getLogger("overline.api")

_SWEEP_EVERY_S = 5.0


async def tell(parts: Parts, organisation_id: UUID, task_id: UUID, call_id: str) -> None:
    """Tell the workflow that its call was decided; if that fails, the sweeper does."""
    try:
        await _tell(parts, organisation_id, task_id, call_id)
    except ProblemError:
        log.warning("a decision could not be told yet", extra={"task_id": str(task_id)})


async def sweep_untold(parts: Parts) -> None:
    """Tell the decisions that nobody has told; runs for ever."""
    while True:
        await asyncio.sleep(_SWEEP_EVERY_S)
        try:
            untold = await approvals.untold_decisions(parts.database)
        except StoreError:
            continue
        for each in untold:
            try:
                await _tell(parts, each.organisation_id, each.task_id, each.call_id)
            except Exception as exc:
                # One that cannot be told must not keep the others from it.
                log.warning("a decision could not be told: %s", type(exc).__name__)


async def _tell(parts: Parts, organisation_id: UUID, task_id: UUID, call_id: str) -> None:
    told = await Orchestrator(parts.temporal, parts.settings).tell_decided(task_id, call_id)
    if told:
        await approvals.mark_told(parts.database, organisation_id, task_id, call_id)
