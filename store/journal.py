"""The token journal: what a generation has produced, and which attempt may add to it.

Every attempt of a generation has an epoch, counted from 1. Only the newest epoch may write: a
worker that was thought dead and comes back finds itself fenced, and its next write says so.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Literal
from uuid import UUID

from store.database import Database
from store.decisions import NOTE, Decision, documents
from store.errors import Fenced, NotFound
from store.journal_records import (
    AttemptTimings,
    AttemptUsage,
    Begun,
    Channel,
    FinishedGeneration,
    StagedRequest,
    UnresolvedAttempt,
    UsageSource,
    begun_from_row,
    pack,
    unpack,
)
from store.text import jsonb, storable

__all__ = [
    "AttemptTimings",
    "AttemptUsage",
    "Begun",
    "Channel",
    "FinishedGeneration",
    "StagedRequest",
    "UnresolvedAttempt",
    "UsageSource",
    "append_chunk",
    "begin_attempt",
    "finish_attempt",
    "pack",
    "release_text",
    "resolve_attempt",
    "restart",
    "stage_prompt",
    "stage_request",
    "staged_request",
    "text_of_attempt",
    "unpack",
    "unresolved_attempts",
]


async def stage_prompt(
    db: Database,
    *,
    organisation_id: UUID,
    workflow_id: str,
    task_id: UUID,
    step: int,
    call_key: str,
    candidate: int,
    channel: Channel,
    model: str,
    model_version: str,
    tokenizer_version: str,
    deployment: str,
    prompt_ids: Sequence[int],
    provenance: list[Any] | None = None,
    generation_key: str | None = None,
) -> None:
    """Keeps the prompt of one candidate. Repeating it is harmless; once begun, the first stands.

    Args:
        candidate: 0 for the router's first choice, 1 for its first fallback, and so on.
        generation_key: `<call key>#<candidate>` unless given.
    """
    await db.call(
        organisation_id,
        "stage_prompt",
        "%s, %s, %s, %s, %s, %s, %s, %s, %s, %s, %s, %s, %s",
        (
            generation_key or f"{call_key}#{candidate}",
            call_key,
            candidate,
            workflow_id,
            task_id,
            step,
            channel,
            model,
            model_version,
            tokenizer_version,
            deployment,
            pack(prompt_ids),
            jsonb(provenance),
        ),
    )


async def stage_request(
    db: Database,
    *,
    organisation_id: UUID,
    generation_key: str,
    workflow_id: str,
    task_id: UUID,
    step: int,
    call_key: str,
    candidate: int,
    channel: Channel,
    model: str,
    model_version: str,
    deployment: str,
    request: StagedRequest,
    provenance: list[Any] | None = None,
) -> None:
    """Keeps what an upstream is asked, as `stage_prompt` does the token ids of a prompt."""
    await db.call(
        organisation_id,
        "stage_request",
        "%s, %s, %s, %s, %s, %s, %s, %s, %s, %s, %s, %s, %s, %s",
        (
            generation_key,
            call_key,
            candidate,
            workflow_id,
            task_id,
            step,
            channel,
            model,
            model_version,
            "",
            deployment,
            request.request,
            request.prompt_tokens,
            jsonb(provenance),
        ),
    )


async def staged_request(db: Database, organisation_id: UUID, generation_key: str) -> StagedRequest:
    """What an upstream is asked.

    Raises:
        NotFound: Nothing was staged under this key, or token ids were.
    """
    rows = await db.run(
        organisation_id,
        "select request, prompt_tokens from generations"
        " where organisation_id = %s and generation_key = %s and request is not null",
        (organisation_id, generation_key),
    )
    if not rows:
        raise NotFound("no request was staged under this key")
    return StagedRequest(**rows[0])


async def text_of_attempt(
    db: Database, organisation_id: UUID, generation_key: str, epoch: int
) -> str:
    """The text that one attempt has written to the journal."""
    rows = await db.run(
        organisation_id,
        "select coalesce(string_agg(text, '' order by seq), '') as text from token_chunks"
        " where organisation_id = %s and step_key = %s and epoch = %s",
        (organisation_id, generation_key, epoch),
    )
    return str(rows[0]["text"])


async def begin_attempt(
    db: Database,
    *,
    organisation_id: UUID,
    generation_key: str,
    replica: str,
    temporal_attempt: int,
    trace_id: str | None = None,
) -> Begun:
    """Opens the next attempt and fences every earlier one.

    Args:
        replica: the Triton replica that will be asked, `host:port`.
        temporal_attempt: the activity's attempt number, kept for the ledger.

    Raises:
        NotFound: no prompt was staged under this key.
        NotAdmitted: the call has no hold.
        AlreadySettled: the call is over.
        DatabaseUnavailable: not known whether it was opened; begin again (one more epoch).
    """
    rows = await db.call(
        organisation_id,
        "begin_attempt",
        "%s, %s, %s, %s",
        (generation_key, replica, temporal_attempt, trace_id),
    )
    return begun_from_row(generation_key, rows[0])


async def append_chunk(
    db: Database,
    *,
    organisation_id: UUID,
    generation_key: str,
    epoch: int,
    seq: int,
    token_ids: Sequence[int],
    text: str,
) -> bool:
    """Adds tokens and their text to the journal and to the task's event stream.

    Returns:
        False when fenced: a newer attempt exists or the call is over. Stop generating.

    Raises:
        JournalGap: `seq` is ahead of the journal.
        DatabaseUnavailable: not known whether it was written; the same chunk may be sent again.
    """
    rows = await db.call(
        organisation_id,
        "append_chunk",
        "%s, %s, %s, %s::int4[], %s",
        (generation_key, epoch, seq, list(token_ids), storable(text)),
    )
    return bool(rows[0]["f"])


async def resolve_attempt(
    db: Database,
    *,
    organisation_id: UUID,
    generation_key: str,
    epoch: int,
    usage: AttemptUsage,
    outcome: Literal["succeeded", "failed", "cancelled", "lost"],
    cause: str | None = None,
    error_code: str | None = None,
    timings: AttemptTimings | None = None,
) -> bool:
    """Says how an attempt that never reported ended (a killed worker's, a lost replica's).

    Args:
        cause: why its tokens were lost, as it will stand in the ledger (`worker_lost`,
            `engine_lost`, ...); None lets settlement name it.

    Returns:
        False when somebody had resolved it before; nothing is changed then.
    """
    t = timings or AttemptTimings()
    rows = await db.call(
        organisation_id,
        "resolve_attempt",
        "%s, %s, %s, %s, %s, %s, %s, %s, %s, %s, %s, %s, %s",
        (
            generation_key,
            epoch,
            outcome,
            cause,
            error_code,
            usage.prompt_tokens,
            usage.cached_tokens,
            usage.completion_tokens,
            usage.source,
            t.queue_ms,
            t.first_token_ms,
            t.duration_ms,
            usage.reasoning_tokens,
        ),
    )
    return bool(rows[0]["f"])


async def unresolved_attempts(
    db: Database, organisation_id: UUID, generation_key: str
) -> list[UnresolvedAttempt]:
    """The attempts of a generation of which nobody has said how they ended, oldest first."""
    rows = await db.run(
        organisation_id,
        "select epoch, request_id, replica, journaled_tokens from generation_attempts"
        " where organisation_id = %s and generation_key = %s and outcome is null order by epoch",
        (organisation_id, generation_key),
    )
    return [UnresolvedAttempt(**row) for row in rows]


async def finish_attempt(
    db: Database,
    *,
    organisation_id: UUID,
    generation_key: str,
    epoch: int,
    seq: int,
    token_ids: Sequence[int],
    text: str,
    usage: AttemptUsage,
    finish_reason: str | None,
    stop_reason: str | None = None,
    timings: AttemptTimings | None = None,
    outcome: Literal["succeeded", "cancelled", "failed"] = "succeeded",
    error_code: str | None = None,
    cause: str | None = None,
    decisions: Sequence[Decision] = (),
) -> bool:
    """Writes the last chunk (it may be empty) and how the attempt ended.

    `succeeded` ends the generation. After `failed` or `cancelled` a later attempt may go on from
    the journal, until the call is settled. Repeating the report is harmless.

    Args:
        decisions: what a safety policy decided about it: filed in the same statement.

    Returns:
        False when fenced: a newer attempt exists or the call is over.
    """
    t = timings or AttemptTimings()
    rows = await db.call(
        organisation_id,
        "finish_attempt",
        "%s, %s, %s, %s::int4[], %s, %s, %s, %s, %s, %s, %s, %s, %s, %s, %s, %s, %s, %s",
        (
            generation_key,
            epoch,
            seq,
            list(token_ids),
            storable(text),
            usage.prompt_tokens,
            usage.cached_tokens,
            usage.completion_tokens,
            usage.source,
            finish_reason,
            stop_reason,
            t.queue_ms,
            t.first_token_ms,
            t.duration_ms,
            outcome,
            error_code,
            cause,
            usage.reasoning_tokens,
        ),
        beside=(NOTE, documents(decisions)) if decisions else None,
    )
    return bool(rows[0]["f"])


async def release_text(db: Database, organisation_id: UUID, generation_key: str, text: str) -> None:
    """Tells the text of a finished generation that was held back whole, once.

    Raises:
        NotFound: there is no such generation, or it is not finished.
    """
    await db.call(organisation_id, "release_text", "%s, %s", (generation_key, storable(text)))


async def restart(
    db: Database, *, organisation_id: UUID, generation_key: str, epoch: int, reason: str
) -> Begun:
    """Gives up what earlier epochs wrote, because it cannot be continued, and begins anew.

    Their tokens become waste, readers get a `reset` event, sequence numbers go on. The caller's
    attempt is closed with no tokens used, and a new one opened.

    Args:
        epoch: the caller's own epoch.
        reason: why, in a word (`cannot_resume`, `grammar_changed`).

    Raises:
        Fenced: a newer attempt exists or the call is over.
    """
    rows = await db.call(
        organisation_id,
        "restart_generation",
        "%s, %s, %s",
        (generation_key, epoch, reason),
    )
    if not rows:
        raise Fenced("a newer attempt has taken over")
    return begun_from_row(generation_key, rows[0])
