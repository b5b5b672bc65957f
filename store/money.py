"""Holds and settlements: no budget is ever exceeded, and no call is ever charged twice.

`admit` reserves the worst case of a call at every level above it, `settle` replaces the
reservation by what the call really cost. Both are single statements that are safe to repeat.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from decimal import Decimal
from typing import Any, Literal
from uuid import UUID

from store.database import Database
from store.refusals import Refusal, refusal_from_row
from store.text import jsonb, storable_or_none

__all__ = [
    "Admission",
    "CacheWrite",
    "Charge",
    "Refusal",
    "Settlement",
    "TaskFinish",
    "admit",
    "conclude",
    "settle",
]

Outcome = Literal["succeeded", "failed", "cancelled", "cached"]
FinalStatus = Literal["succeeded", "failed", "cancelled"]


@dataclass(frozen=True, slots=True)
class Admission:
    """The call may happen; its worst case is held.

    Attributes:
        usual_output_tokens: what the team's last calls made on average; None: not known.
    """

    hold_id: UUID
    usual_output_tokens: int | None = None


@dataclass(frozen=True, slots=True)
class CacheWrite:
    """Keep the answer under this key.

    Attributes:
        key: canonical digest of everything that can change the answer, as hex.
        collections: collections the answer may rest on; a change to any of them outdates it.
        ttl_s: seconds the entry stays valid; None for as long as nothing changes.
    """

    key: str
    collections: list[UUID] = field(default_factory=list)
    ttl_s: float | None = None


@dataclass(frozen=True, slots=True)
class TaskFinish:
    """This was the task's last call. Without an answer, the call's own text is the answer."""

    status: FinalStatus
    answer: str | None = None
    error: dict[str, Any] | None = None


@dataclass(frozen=True, slots=True)
class Settlement:
    """What came of a model call.

    Attributes:
        generation_key: the candidate whose tokens were of use. Its useful tokens are billed
            whatever the outcome: name it for a cancelled call whose text the caller received,
            leave it None when nothing was of use.
        decision: the router's decision, kept on the step.
        provenance: where each part of the prompt came from, kept on the step.
        text: the answer; None takes it from the journal of `generation_key`, or from the cache
            entry. Likewise `tool_call` and `finish_reason` of a cached answer.
        tool_call: what the step chose; a list where it could choose several calls.
        cache_hit: id of the cache entry that answered (`outcome` is `cached`).
        finish: set when the task ends with this call.
        unless_told: let the task go on, though it succeeded, when a message to it is queued.
    """

    organisation_id: UUID
    task_id: UUID
    step: int
    call_key: str
    outcome: Outcome
    generation_key: str | None = None
    decision: dict[str, Any] | None = None
    provenance: list[Any] | None = None
    text: str | None = None
    tool_call: dict[str, Any] | list[dict[str, Any]] | None = None
    finish_reason: str | None = None
    cache_write: CacheWrite | None = None
    cache_hit: UUID | None = None
    finish: TaskFinish | None = None
    unless_told: bool = False
    trace_id: str | None = None


@dataclass(frozen=True, slots=True)
class Charge:
    """What a call cost.

    Attributes:
        billed_usd: charged to the budgets: the useful tokens at their price.
        waste_usd: paid for and thrown away; in the ledger, on nobody's budget.
        saved_usd: what the cache spared.
        overage_usd: the part of `billed_usd` that the hold did not cover (should be 0).
        prompt_tokens: useful prompt tokens, cached ones included.
        completion_tokens: useful output tokens.
        cached_tokens: useful prompt tokens the engine had in its prefix cache.
        already_settled: True when an earlier settlement's figures are repeated.
        goes_on: True when the task did not end with it, because a message to it is queued.
    """

    billed_usd: Decimal
    waste_usd: Decimal
    saved_usd: Decimal
    overage_usd: Decimal
    prompt_tokens: int
    completion_tokens: int
    cached_tokens: int
    already_settled: bool
    goes_on: bool = False


async def admit(
    db: Database,
    *,
    organisation_id: UUID,
    team_id: UUID,
    key_id: UUID,
    task_id: UUID,
    step: int,
    call_key: str,
    amount_usd: Decimal,
    models: Sequence[str] = (),
    input_tokens: int = 0,
    output_tokens: int = 0,
) -> Admission | Refusal:
    """Holds a call's worst case against task, key, team and organisation, all or nothing.

    Idempotent by `call_key`: a call that was admitted stays admitted, also when it has been
    settled meanwhile. Also checks the key and the task, marks the task running and files the
    `step.started` event, once.

    Args:
        amount_usd: the most the call can cost, in USD.
        models: whose limits of rate it counts in: all that may answer, and the route.
        input_tokens: about how long its prompt is.
        output_tokens: longest answer.

    Raises:
        NotFound: the organisation has no such task.
        DatabaseUnavailable: not known whether it was held; ask again.
    """
    rows = await db.call(
        organisation_id,
        "admit",
        "%s, %s, %s, %s, %s, %s, %s, %s, %s",
        (
            team_id,
            key_id,
            task_id,
            step,
            call_key,
            amount_usd,
            list(models),
            input_tokens,
            output_tokens,
        ),
        # What the call's turn at the engine is reckoned by, on the same way.
        beside=("usual_output_tokens", team_id),
    )
    row = rows[0]
    refusal = refusal_from_row(row, amount_usd)
    if refusal is not None:
        return refusal
    return Admission(row["hold_id"], row["usual_output_tokens"])


_BOOKED = "%s, %s, %s, %s, %s, %s, %s, %s, %s, %s, %s, %s::uuid[], %s, %s"


async def settle(db: Database, settlement: Settlement) -> Charge:
    """Books every attempt of a call in the ledger and charges what was of use.

    One transaction: ledger rows, release of the hold, budgets, step, task, cache entry, events and
    (with `finish`) the end of the task. Idempotent by `call_key`: a second settlement changes
    nothing and returns the first one's charge. Never fails over an amount.

    Raises:
        NotAdmitted: the call has no hold.
        DatabaseUnavailable: not known whether it was settled; settle again.
    """
    s = settlement
    cache = s.cache_write
    finish = s.finish
    booked = (
        s.task_id,
        s.step,
        s.call_key,
        s.outcome,
        s.generation_key,
        jsonb(s.decision),
        jsonb(s.provenance),
        storable_or_none(s.text),
        jsonb(s.tool_call),
        s.finish_reason,
        cache.key if cache else None,
        cache.collections if cache else [],
        cache.ttl_s if cache else None,
        s.cache_hit,
    )
    if s.unless_told:
        rows = await db.call(
            s.organisation_id, "settle_answer", f"{_BOOKED}, %s", (*booked, s.trace_id)
        )
        return Charge(**rows[0])
    rows = await db.call(
        s.organisation_id,
        "settle",
        f"{_BOOKED}, %s, %s, %s, %s",
        (
            *booked,
            finish.status if finish else None,
            storable_or_none(finish.answer) if finish else None,
            jsonb(finish.error) if finish else None,
            s.trace_id,
        ),
    )
    return Charge(**rows[0])


async def conclude(
    db: Database,
    *,
    organisation_id: UUID,
    task_id: UUID,
    step: int,
    status: FinalStatus,
    error: dict[str, Any] | None = None,
    unless_told: bool = False,
) -> bool:
    """Ends a task with the answer of a step that is settled already. Idempotent.

    Args:
        unless_told: let the task go on when a message to it is queued.

    Returns:
        True when the task goes on.

    Raises:
        NotFound: the organisation has no such task.
        DatabaseUnavailable: not known whether it was ended; end it again.
    """
    rows = await db.call(
        organisation_id,
        "conclude_answer",
        "%s, %s, %s, %s, %s",
        (task_id, step, status, jsonb(error), unless_told),
    )
    return bool(rows[0]["f"])
