"""From a batch on file to its workflow, and to its end before its time."""

from __future__ import annotations

import asyncio
import hashlib
import logging
from typing import Any
from uuid import UUID

import msgspec
from uuid_utils.compat import uuid7

from api.openai.batches import BatchRequest, no_such_input, window_of
from api.openai.files import file_id_of, keep_of
from api.orchestrator import Orchestrator
from api.parts import Parts
from api.problems import ProblemError
from store import batches
from store.batches import Batch, OnBudget
from store.errors import StoreError
from store.identity import Origin, Principal
from workflows import errors
from workflows.contracts import Tenant
from workflows.contracts.batch import BatchInput

__all__ = ["cancel_batch", "submit_batch", "sweep_batches"]

log = logging.getLogger("overline.api")

_SWEEP_EVERY_S = 5.0


async def submit_batch(
    parts: Parts,
    caller: Principal,
    request: BatchRequest,
    document: dict[str, Any],
    *,
    origin: Origin,
    idempotency_key: str | None,
    on_budget: OnBudget,
) -> Batch:
    """File a batch and start it; it is on file before its workflow is asked for.

    Raises:
        OpenAIError: There is no such input (400).
        ProblemError: The idempotency key is another request's (422).
    """
    input_file_id = file_id_of(request.input_file_id)
    assert input_file_id is not None
    kept = request.output_expires_after
    essence = msgspec.json.encode([document, on_budget], order="deterministic")
    filed = await batches.file_batch(
        parts.database,
        caller,
        batch_id=uuid7(),
        idempotency_key=idempotency_key,
        request_digest=hashlib.sha256(essence).hexdigest(),
        endpoint=request.endpoint,
        input_file_id=input_file_id,
        completion_window=request.completion_window,
        window=window_of(request.completion_window),
        metadata=request.metadata or {},
        on_budget=on_budget,
        keep_output=keep_of(
            kept.anchor if kept else None,
            kept.seconds if kept else None,
            parts.settings.keep_days,
            "output_expires_after",
        ),
        address=origin.address,
    )
    if filed is None:
        raise no_such_input()
    if filed.conflict:
        raise ProblemError(
            errors.Conflict,
            "This idempotency key was used for another request; use a new key for a new request.",
            status=422,
        )
    batch = await batches.get_batch(parts.database, caller.organisation_id, filed.batch_id)
    assert batch is not None
    if filed.created:
        tenant = Tenant(
            organisation_id=caller.organisation_id, team_id=caller.team_id, key_id=caller.key_id
        )
        try:
            await _start(parts, tenant, batch.batch_id, batch.expires_at.timestamp())
        except ProblemError:
            # Temporal is away. The batch is on file, and any API process starts it.
            log.info("a batch waits for Temporal", extra={"batch_id": str(batch.batch_id)})
    return batch


async def _start(parts: Parts, tenant: Tenant, batch_id: UUID, expires_at: float) -> None:
    settings = parts.settings
    await Orchestrator(parts.temporal, settings).start_batch(
        BatchInput(
            tenant=tenant,
            batch_id=batch_id,
            expires_at=expires_at,
            width=settings.batch_concurrency,
            run_slices=settings.batch_run_slices,
        )
    )
    try:
        await batches.mark_batch_started(parts.database, tenant.organisation_id, batch_id)
    except StoreError:
        # The workflow runs; the sweeper marks the row when the database is back.
        log.warning("batch was started and not marked", extra={"batch_id": str(batch_id)})


async def cancel_batch(parts: Parts, organisation_id: UUID, batch_id: UUID) -> bool:
    """Have a batch begin nothing more; False when it is over, or about to be.

    The row says it first, so a workflow that does not hear of it finds it there.
    """
    if not await batches.cancel_batch(parts.database, organisation_id, batch_id):
        return False
    try:
        await Orchestrator(parts.temporal, parts.settings).cancel_batch(batch_id)
    except ProblemError:
        log.info("a batch hears later that it is cancelled", extra={"batch_id": str(batch_id)})
    return True


async def sweep_batches(parts: Parts) -> None:
    """Start batches that no workflow is known to carry; runs for ever.

    What there is of them is on file, so one whose workflow was ended from outside goes on, too.
    """
    while True:
        await asyncio.sleep(_SWEEP_EVERY_S)
        try:
            stranded = await batches.stranded_batches(parts.database)
        except StoreError:
            continue
        for each in stranded:
            tenant = Tenant(
                organisation_id=each.organisation_id, team_id=each.team_id, key_id=each.key_id
            )
            try:
                await _start(parts, tenant, each.batch_id, each.expires_at.timestamp())
                log.info("started a batch left behind", extra={"batch_id": str(each.batch_id)})
            except Exception as exc:
                # One that cannot be started must not keep the others from it.
                log.warning(
                    "a batch left behind could not be started: %s",
                    type(exc).__name__,
                    extra={"batch_id": str(each.batch_id)},
                )
