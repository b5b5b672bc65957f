"""Pause a task and let it go on: first the row, then the workflow, whatever dies in between.

The wish is on the task's row, with its event, before the workflow hears of it. A wish that was
not sent, because this process died or Temporal was away, is sent by the sweeper of any API process.
Wishes have numbers, so one that arrives late does not undo a newer one.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
from uuid import UUID

from api.orchestrator import Orchestrator
from api.parts import Parts
from api.problems import ProblemError
from store import steering
from store.errors import StoreError
from workflows import errors

__all__ = ["let_go_on", "steer", "sweep_unsent", "sweep_waiting"]

log = logging.getLogger("overline.api")

_SWEEP_EVERY_S = 5.0


async def steer(parts: Parts, organisation_id: UUID, task_id: UUID, *, paused: bool) -> None:
    """Have a task, and all below it, pause before the next step, or go on.

    Raises:
        ProblemError: The task has ended (409).
    """
    verdict = await steering.steer_task(parts.database, organisation_id, task_id, paused=paused)
    if verdict.ended:
        raise ProblemError(errors.Conflict, "The task has ended: there is nothing to steer.")
    await _send_all(parts, organisation_id, task_id)


async def _send_all(parts: Parts, organisation_id: UUID, task_id: UUID) -> None:
    for wish in await steering.unsent_of_tree(parts.database, organisation_id, task_id):
        try:
            await _send(parts, wish)
        except ProblemError:
            # It is noted: the sweeper sends it when Temporal is back.
            log.warning("a wish could not be sent yet", extra={"task_id": str(wish.task_id)})
            break


async def sweep_unsent(parts: Parts) -> None:
    """Send the wishes that nobody has sent; runs for ever."""
    while True:
        await asyncio.sleep(_SWEEP_EVERY_S)
        try:
            unsent = await steering.unsent_wishes(parts.database)
        except StoreError:
            continue
        for wish in unsent:
            try:
                await _send(parts, wish)
            except Exception as exc:
                # One that cannot be sent must not keep the others from it.
                log.warning("a wish could not be sent: %s", type(exc).__name__)


async def let_go_on(parts: Parts, organisation_id: UUID | None = None) -> None:
    """Let tasks go on that waited for a budget which has room again.

    Args:
        parts: Connections.
        organisation_id: Only this one's, because its budgets were just changed.
    """
    for organisation, task_id in await steering.tasks_with_room(parts.database, organisation_id):
        # What was paused by somebody below it stays so.
        if await steering.stop_waiting(parts.database, organisation, task_id):
            await _send_all(parts, organisation, task_id)


async def sweep_waiting(parts: Parts) -> None:
    """Let go on what waits for a budget that has room again; runs for ever."""
    while True:
        await asyncio.sleep(_SWEEP_EVERY_S)
        with contextlib.suppress(StoreError):
            await let_go_on(parts)


async def _send(parts: Parts, wish: steering.Wish) -> None:
    """Tell the workflow, if there is one; a task that has not begun hears of it when it has."""
    told = await Orchestrator(parts.temporal, parts.settings).steer_task(
        wish.task_id, paused=wish.paused, number=wish.number
    )
    if told:
        await steering.mark_sent(parts.database, wish.organisation_id, wish.task_id, wish.number)
