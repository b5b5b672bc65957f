"""Calls without a workflow: opened and closed in one statement each (0023, opening in 0025).

What screening says of a call is filed by the same statements (0026).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from decimal import Decimal
from typing import Any, Literal
from uuid import UUID

from store.database import Database
from store.decisions import NOTE, Decision, documents
from store.errors import Fenced
from store.identity import CALLER_KEY, Origin
from store.journal import AttemptTimings, AttemptUsage, pack
from store.policies import POLICY_SCREENED_BY
from store.redactions import Sealed
from store.refusals import Refusal
from store.text import jsonb, storable

__all__ = [
    "Asked",
    "BegunCandidate",
    "Closed",
    "Ending",
    "Known",
    "Staged",
    "Unauthenticated",
    "WrongScope",
    "abandon",
    "begun_candidate",
    "close_call",
    "end_call",
    "next_candidate",
    "open_call",
    "read_call",
]


# As `identity.BIND_CALLER`, by which safety policy the texts were screened, and whether another
# call's slot is used (see `check_limits`).
_BIND = (
    f"(select set_config('overline.caller', %s, true), {POLICY_SCREENED_BY},"
    " set_config('overline.within_call', %s, true) offset 0) bound (caller, policy, within)"
)


def _marks(count: int) -> str:
    return ", ".join(["%s"] * count)


_OPEN = f"from {_BIND} cross join lateral open_call({CALLER_KEY}, {_marks(23)}) o"
_OPEN_PLAIN = f"select o.* {_OPEN}"
_OPEN_SCREENED = (
    "select o.*, file_screening(o.organisation_id, o.task_id, o.verdict, %s, %s, %s)"
    f" as screening {_OPEN}"
)


@dataclass(frozen=True, slots=True)
class Staged:
    """The model that will be asked, and what.

    Attributes:
        replica: who is asked: `host:port`, or the address of an upstream.
        prompt_ids: token ids; none for engines that read text.
        likely_prompt: about how many tokens a text is; None where there are ids.
    """

    model: str
    model_version: str
    tokenizer_version: str
    deployment: str
    replica: str
    prompt_ids: Sequence[int] = ()
    likely_prompt: int | None = None

    def values(self) -> tuple[Any, ...]:
        """The arguments of the SQL functions that begin a candidate."""
        return (
            self.model,
            self.model_version,
            self.tokenizer_version,
            self.deployment,
            self.replica,
            pack(self.prompt_ids),
            self.likely_prompt,
        )


@dataclass(frozen=True, slots=True)
class Asked:
    """A call as it is filed.

    Attributes:
        key_id: the key's id, out of the token.
        key_digest: SHA-256 of the whole token.
        idempotency_key: the same key of the same API key returns the first call.
        request_digest: tells a repetition from a conflict.
        input: the request, as another process can take it up.
        model: as it was asked for.
        amount_usd: the most it can cost.
        cache_key: where an equal call's answer would be; None does not look.
        process_id: who runs it.
        longest: longest answer that was asked for, in tokens; None: it was not said.
        origin: where the request comes from and goes to.
        policy: version of the safety policy that its texts were screened by; 0: none holds.
        within: it is part of a call that is open, whose slot it uses.
        decisions: what screening found in it.
        redactions: the originals of what was taken out of it.
    """

    key_id: UUID
    key_digest: bytes
    task_id: UUID
    idempotency_key: str | None
    request_digest: str
    input: dict[str, Any]
    user: str | None
    tags: Mapping[str, str]
    endpoint: str
    model: str
    route: str
    stored: bool
    amount_usd: Decimal
    cache_key: str | None
    process_id: UUID
    staged: Staged
    trace_id: str | None
    longest: int | None = None
    origin: Origin = field(default_factory=Origin)
    policy: int = 0
    within: bool = False
    decisions: Sequence[Decision] = ()
    redactions: Sealed | None = None


@dataclass(frozen=True, slots=True)
class Known:
    """A call as it is on file.

    Attributes:
        how: `go`: it was just opened and is to be made. `cached`: an equal call's answer is its
            answer. `earlier`: it repeats this call.
        conflict: the idempotency key belongs to another request.
        status: of its task.
        answer: None while it is being made.
        repeatable: it has an idempotency key, by which its caller can ask for it again.
        rate: the tightest limits of its caller, for `requests` and `tokens`: each with `limit`,
            `remaining` and `reset_s`; None: there are none.
        tags: as they were given; only where a call is read from file.
        ended_at: when it ended; only where it is read from file.
    """

    how: Literal["go", "cached", "earlier"]
    organisation_id: UUID
    team_id: UUID
    task_id: UUID
    model: str
    created_at: datetime
    conflict: bool = False
    status: str = "running"
    error: dict[str, Any] | None = None
    answer: dict[str, Any] | None = None
    usage: dict[str, Any] | None = None
    billed_usd: Decimal = Decimal(0)
    saved_usd: Decimal = Decimal(0)
    stored: bool = True
    endpoint: str = ""
    repeatable: bool = False
    rate: Mapping[str, Any] | None = None
    input: dict[str, Any] = field(default_factory=dict)
    tags: dict[str, str] = field(default_factory=dict)
    ended_at: datetime | None = None


@dataclass(frozen=True, slots=True)
class Unauthenticated:
    """The token is nobody's, or not valid any more."""

    reason: str


@dataclass(frozen=True, slots=True)
class WrongScope:
    """The key may not make calls."""


async def open_call(db: Database, asked: Asked) -> Known | Refusal | Unauthenticated | WrongScope:
    """Opens a call: key, repetition, limits, cache, budgets, task, hold, attempt; all or nothing.

    Raises:
        PolicyChanged: it was screened by another safety policy than the one that holds; nothing
            was written.
        DatabaseUnavailable: not known whether it was opened.
    """
    sql: str = _OPEN_PLAIN
    screening: tuple[Any, ...] = ()
    if asked.decisions or asked.redactions is not None:
        kept = asked.redactions
        sql, screening = (
            _OPEN_SCREENED,
            (documents(asked.decisions), kept and kept.sealed, kept and kept.key_id),
        )
    rows = await db.run_untenanted(
        sql,
        (
            *screening,
            asked.origin.said(),
            str(asked.policy),
            "yes" if asked.within else "",
            asked.key_id,
            asked.key_digest,
            asked.task_id,
            asked.idempotency_key,
            asked.request_digest,
            jsonb(asked.input),
            asked.user,
            jsonb(dict(asked.tags)),
            asked.endpoint,
            asked.model,
            asked.route,
            asked.stored,
            asked.amount_usd,
            asked.cache_key,
            asked.process_id,
            *asked.staged.values(),
            asked.trace_id,
            asked.longest,
        ),
    )
    row = rows[0]
    match row["verdict"]:
        case "unauthenticated":
            return Unauthenticated(row["code"])
        case "forbidden":
            return WrongScope()
        case "refused":
            return Refusal(
                code=row["code"],
                scope=row["scope"],
                limit_usd=row["limit_usd"],
                spent_usd=row["spent_usd"],
                held_usd=row["held_usd"],
                needed_usd=asked.amount_usd,
                rate=row["rate"] or {},
            )
        case how:
            return Known(
                how=how,
                organisation_id=row["organisation_id"],
                team_id=row["team_id"],
                task_id=row["task_id"],
                model=row["model"] or asked.staged.model,
                created_at=row["created_at"],
                conflict=bool(row["conflict"]),
                status=row["status"] or "running",
                error=row["error"],
                answer=row["answer"],
                usage=row["usage"],
                billed_usd=row["billed_usd"] or Decimal(0),
                saved_usd=row["saved_usd"] or Decimal(0),
                stored=asked.stored,
                endpoint=asked.endpoint,
                input=asked.input,
                rate=row["rate"],
            )


async def next_candidate(
    db: Database,
    organisation_id: UUID,
    task_id: UUID,
    *,
    candidate: int,
    usage: AttemptUsage,
    error_code: str,
    staged: Staged,
    trace_id: str | None,
) -> None:
    """Ends the candidate before this one, which failed, and begins this one."""
    await db.call(
        organisation_id,
        "next_candidate",
        _marks(15),
        (
            task_id,
            candidate,
            usage.prompt_tokens,
            usage.cached_tokens,
            usage.completion_tokens,
            usage.source,
            error_code,
            *staged.values(),
            trace_id,
        ),
    )


@dataclass(frozen=True, slots=True)
class Ending:
    """How a call ended.

    Attributes:
        seq: number of the journal's next chunk; `token_ids` and `text` are that chunk.
        answer: the whole answer, as it is kept; with its `usage` beside it.
        cache_key: keep the answer for equal calls.
        decisions: what screening found in the answer.
    """

    generation_key: str
    epoch: int
    outcome: Literal["succeeded", "failed", "cancelled"]
    usage: AttemptUsage
    seq: int = 0
    token_ids: Sequence[int] = ()
    text: str = ""
    finish_reason: str | None = None
    stop_reason: str | None = None
    timings: AttemptTimings = field(default_factory=AttemptTimings)
    error_code: str | None = None
    error: dict[str, Any] | None = None
    decision: dict[str, Any] | None = None
    answer: dict[str, Any] | None = None
    answer_usage: dict[str, Any] | None = None
    cache_key: str | None = None
    decisions: Sequence[Decision] = ()


@dataclass(frozen=True, slots=True)
class Closed:
    """What a call cost: `billed_usd` was charged, `waste_usd` was paid for and thrown away."""

    billed_usd: Decimal
    waste_usd: Decimal
    prompt_tokens: int
    completion_tokens: int
    cached_tokens: int
    already_settled: bool


async def close_call(
    db: Database, organisation_id: UUID, task_id: UUID, ending: Ending, trace_id: str | None
) -> Closed:
    """Ends a call: journal, ledger, hold, budgets, answer, cache, task. Safe to repeat.

    Raises:
        Fenced: somebody else has taken the call over.
        DatabaseUnavailable: not known whether it was closed; close it again.
    """
    e = ending
    rows = await db.call(
        organisation_id,
        "close_call",
        f"{_marks(4)}, %s::int4[], {_marks(19)}",
        (
            task_id,
            e.generation_key,
            e.epoch,
            e.seq,
            list(e.token_ids),
            storable(e.text),
            e.usage.prompt_tokens,
            e.usage.cached_tokens,
            e.usage.completion_tokens,
            e.usage.reasoning_tokens,
            e.usage.source,
            e.finish_reason,
            e.stop_reason,
            e.timings.queue_ms,
            e.timings.first_token_ms,
            e.timings.duration_ms,
            e.outcome,
            e.error_code,
            jsonb(e.error),
            jsonb(e.decision),
            jsonb(e.answer),
            jsonb(e.answer_usage),
            e.cache_key,
            trace_id,
        ),
        beside=(NOTE, documents(e.decisions)) if e.decisions else None,
    )
    if not rows:
        raise Fenced("somebody else has taken this call over")
    rows[0].pop(NOTE, None)
    return Closed(**rows[0])


async def read_call(db: Database, organisation_id: UUID, task_id: UUID) -> Known | None:
    """A call of an organisation, with the request it answers; None when there is none."""
    rows = await db.run(
        organisation_id,
        "select t.organisation_id, t.team_id, t.task_id, coalesce(s.model, c.model) as model,"
        " t.created_at, c.ended_at, t.status, t.error, c.answer, c.usage, t.billed_usd,"
        " t.saved_usd, c.stored, c.endpoint, t.input, t.tags, t.idempotency_key is not null"
        " as repeatable from tasks t"
        " join calls c on c.organisation_id = t.organisation_id and c.task_id = t.task_id"
        " left join steps s on s.organisation_id = t.organisation_id and s.task_id = t.task_id"
        " where t.organisation_id = %s and t.task_id = %s",
        (organisation_id, task_id),
    )
    return Known(how="earlier", **rows[0]) if rows else None


@dataclass(frozen=True, slots=True)
class BegunCandidate:
    """The candidate of a call that was asked last."""

    generation_key: str
    candidate: int
    model: str
    model_version: str
    deployment: str


async def begun_candidate(
    db: Database, organisation_id: UUID, task_id: UUID
) -> BegunCandidate | None:
    """The candidate that was asked last; None when there is none."""
    rows = await db.run(
        organisation_id,
        "select generation_key, candidate, model, model_version, deployment from generations"
        " where organisation_id = %s and call_key = %s order by candidate desc limit 1",
        (organisation_id, f"{task_id}:1"),
    )
    return BegunCandidate(**rows[0]) if rows else None


async def end_call(
    db: Database,
    organisation_id: UUID,
    task_id: UUID,
    *,
    outcome: Literal["failed", "cancelled"],
    winner: str | None,
    error: dict[str, Any] | None,
    trace_id: str | None,
) -> bool:
    """Ends a call that nobody goes on with, by what is known of it; False when it had ended.

    Args:
        winner: the generation whose text its caller had; its tokens are billed.
    """
    rows = await db.call(
        organisation_id,
        "end_call",
        "%s, %s, %s, %s, %s",
        (task_id, outcome, winner, jsonb(error), trace_id),
    )
    return bool(rows[0]["f"])


async def abandon(db: Database, key_id: UUID, key_digest: bytes, task_id: UUID) -> None:
    """Ends a call of which it is not known whether it was opened; no engine was asked."""
    await db.run_untenanted("select abandon_call(%s, %s, %s)", (key_id, key_digest, task_id))
