"""A request that was made before: its first call is waited for, and what that was answered."""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import Mapping
from uuid import UUID

from activities.lane.live import LiveCall
from store import tasks
from store.calls import Known, read_call
from store.database import Database
from workflows.errors import Conflict, Internal

__all__ = ["first_of"]

# How long the repetition of a call that is being made waits for it.
PATIENCE_S = 60.0
_POLL_S = 0.1


async def first_of(
    known: Known,
    request_digest: str,
    db: Database,
    live: Mapping[UUID, LiveCall],
    *,
    once: bool,
) -> Known | None:
    """Wait for the first call that a repetition repeats, and return it as it ended.

    Args:
        known: That call, as it was found.
        request_digest: Of the repetition.
        db: The database.
        live: Calls that this process makes.
        once: There is to be no second call, however the first one ended.

    Returns:
        None: it failed or was cancelled, so there is no answer to give again. Its idempotency key
        is the repetition's now.

    Raises:
        OverlineError: The key is another request's, or the first one still runs; where there is to
            be no second one, it failed.
    """
    if known.conflict and not await tasks.was_filed_with(
        db, known.organisation_id, known.task_id, request_digest
    ):
        raise Conflict(
            "This idempotency key was used for another request; use a new key for a new request.",
            code="idempotency_key_reused",
        )
    patient_until = time.monotonic() + PATIENCE_S
    while known.status in ("accepted", "running"):
        if time.monotonic() >= patient_until:
            raise Conflict(
                "The first request with this idempotency key is still being answered.",
                code="idempotency_key_in_use",
                retry_after_s=5,
            )
        own = live.get(known.task_id)
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(_POLL_S if own is None else 1.0):
                await (asyncio.sleep(_POLL_S) if own is None else own.over.wait())
        again = await read_call(db, known.organisation_id, known.task_id)
        known = again or known
    if known.ended_at is None:
        # The statement that found it does not say.
        known = await read_call(db, known.organisation_id, known.task_id) or known
    if known.answer is not None and (once or known.status != "cancelled"):
        return known
    if once:
        told = known.error or {}
        raise Internal(
            "The first request with this idempotency key failed: "
            + str(told.get("message", known.status)),
            code=f"earlier_request_{known.status}",
        )
    await tasks.free_idempotency_key(db, known.organisation_id, known.task_id)
    return None
