"""Ending a call here, in the process that makes it, or in the workflow that took it over."""

from __future__ import annotations

from uuid import UUID

from api.orchestrator import Orchestrator
from api.parts import Parts
from store import call_owners

__all__ = ["end_call"]


async def end_call(parts: Parts, organisation_id: UUID, task_id: UUID) -> bool:
    """Ask a call to end, and what was made to be billed; False: it has ended.

    The wish is on file before anybody is told. The process that makes the call hears of it at once,
    and looks for wishes besides; whoever takes over the call of a dead process looks, too.

    Raises:
        ProblemError: A workflow has it, and Temporal does not answer (503).
    """
    if parts.lane is not None and parts.lane.cancel(task_id):
        return True
    who = await call_owners.wish_end(parts.database, organisation_id, task_id)
    if who == "workflow":
        await Orchestrator(parts.temporal, parts.settings).cancel_task(task_id)
    return who is not None
