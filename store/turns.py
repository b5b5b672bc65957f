"""The turns of a session: which is next, what was said before it, and the task that it is."""

from __future__ import annotations

from dataclasses import dataclass
from decimal import Decimal
from typing import Any
from uuid import UUID

from store.conversations import TURNS
from store.database import Database, Params
from store.errors import NotFound
from store.identity import Principal
from store.refusals import Refusal, refusal_from_row
from store.screened_tasks import TaskScreening, filed
from store.tasks import Submitted
from store.text import jsonb, storable_or_none

__all__ = ["Before", "Head", "base_of", "before", "file_turn", "head", "refuse_turn"]


@dataclass(frozen=True, slots=True)
class Head:
    """The oldest message of a session whose turn is not over.

    Attributes:
        session_team: whose session it is.
        principal: who sent it and pays; with the scopes the key has now.
        key_stands: False when the key was disabled or has expired since.
        task_id: its task, which runs; None: it is to be filed.
        input: the request of that task.
        digest: digest of what was said before it, where it is filed; `chars` its length.
    """

    number: int
    content: str
    session_team: UUID
    principal: Principal
    key_stands: bool
    resolved: dict[str, Any]
    first_max_tokens: int
    task_id: UUID | None
    input: dict[str, Any] | None
    digest: str | None
    chars: int | None


@dataclass(frozen=True, slots=True)
class Before:
    """What was said before a message: the digest before the turn before it, and that turn."""

    digest: str
    chars: int
    turn: list[tuple[str, str]]


async def head(db: Database, organisation_id: UUID, session_id: UUID) -> Head | None:
    """The oldest message whose turn is not over; None when all are.

    Turns are filed in order, so nothing before the newest one that was filed is open.
    """
    rows = await db.run(
        organisation_id,
        "select m.number, m.content, m.team_id, m.key_id, m.task_id, m.digest, m.chars, t.input,"
        " s.resolved, s.first_max_tokens, s.team_id as session_team, k.scopes,"
        " k.enabled and coalesce(k.expires_at > now(), true) as key_stands"
        " from session_messages m"
        " join sessions s on s.organisation_id = m.organisation_id"
        " and s.session_id = m.session_id"
        " join api_keys k on k.organisation_id = m.organisation_id and k.key_id = m.key_id"
        " left join tasks t on t.organisation_id = m.organisation_id and t.task_id = m.task_id"
        " where m.organisation_id = %s and m.session_id = %s and m.code is null"
        " and t.finished_at is null and m.number >= coalesce((select x.number"
        " from session_messages x where x.organisation_id = %s and x.session_id = %s"
        " and (x.task_id is not null or x.code is not null) order by x.number desc limit 1), 1)"
        " order by m.number limit 1",
        (organisation_id, session_id) * 2,
    )
    if not rows:
        return None
    row = rows[0]
    sender = (row.pop("team_id"), row.pop("key_id"), tuple(row.pop("scopes")))
    return Head(principal=Principal(organisation_id, *sender), **row)


_BEFORE = f"""
with of as (
    select organisation_id, number, content, task_id from session_messages
     where organisation_id = %(org)s and session_id = %(session)s
       and number >= %(first)s and number < %(number)s
)
select role, content from ({TURNS}) said order by number, place, nth
"""


async def before(db: Database, organisation_id: UUID, session_id: UUID, number: int) -> Before:
    """What was said before a message, as far as its digest needs it.

    Digests are kept with the turns, so that only the last of them is read. A message without a
    turn is looked past: it has no digest, and what it said is part of what is returned.
    """
    (latest,) = await db.run(
        organisation_id,
        "select coalesce(max(number), 0) as number from session_messages where organisation_id = %s"
        " and session_id = %s and number < %s and digest is not null",
        (organisation_id, session_id, number),
    )
    bound = {
        "org": organisation_id,
        "session": session_id,
        "first": latest["number"],
        "number": number,
    }
    kept, said = await db.run_many(
        organisation_id,
        [
            (
                (
                    "select digest, chars from session_messages where organisation_id = %(org)s"
                    " and session_id = %(session)s and number = %(first)s"
                ),
                bound,
            ),
            (_BEFORE, bound),
        ],
    )
    digest, chars = (kept[0]["digest"], kept[0]["chars"]) if kept else ("", 0)
    return Before(digest, chars, [(row["role"], row["content"]) for row in said])


async def file_turn(
    db: Database,
    sender: Principal,
    *,
    session_id: UUID,
    number: int,
    digest: str,
    chars: int,
    task_id: UUID,
    idempotency_key: str,
    request_digest: str,
    input: dict[str, Any],  # noqa: A002 - the field's name on the wire
    user: str | None,
    tags: dict[str, str],
    route: str,
    worst_case_usd: Decimal,
    max_cost_usd: Decimal | None,
    screening: TaskScreening | None = None,
    content: str | None = None,
) -> Submitted | Refusal:
    """Files the task that is a message's turn, in one round trip.

    Args:
        session_id: the session.
        number: number of the message.
        digest: digest of what was said before it; empty for the first one.
        chars: length of that, in characters.
        screening: what a safety policy decided about it, filed with it.
        content: what the message says, as the policy lets it be kept; None: as it is.

    The other arguments, and what is raised, are those of `store.tasks.submit_task`.
    """
    organisation = sender.organisation_id
    values = (
        session_id,
        number,
        sender.team_id,
        sender.key_id,
        task_id,
        idempotency_key,
        request_digest,
        jsonb(input),
        user,
        jsonb(tags),
        route,
        worst_case_usd,
        max_cost_usd,
        digest,
        chars,
    )
    beside: list[tuple[str, Params]] = []
    if screening is not None:
        kept = (
            "update session_messages set content = coalesce(%s, content)"
            " where organisation_id = %s and session_id = %s and number = %s"
        )
        beside = [
            screening.statement(organisation, task_id),
            (kept, (storable_or_none(content), organisation, session_id, number)),
        ]
    row = await filed(db, organisation, "file_turn", values, *beside)
    refusal = refusal_from_row(row, worst_case_usd)
    return refusal or Submitted(row["task_id"], row["created"], row["conflict"])


async def refuse_turn(
    db: Database, organisation_id: UUID, session_id: UUID, number: int, *, code: str, detail: str
) -> None:
    """Notes why a message has no turn, once."""
    await db.call(
        organisation_id, "refuse_turn", "%s, %s, %s, %s", (session_id, number, code, detail)
    )


async def base_of(db: Database, organisation_id: UUID, task_id: UUID) -> tuple[str, int] | None:
    """Digest and length of what was said in a task's session before it; None: it has none.

    Raises:
        NotFound: the organisation has no such task.
    """
    rows = await db.run(
        organisation_id,
        "select t.session_id, m.digest, m.chars from tasks t left join session_messages m"
        " on m.organisation_id = t.organisation_id and m.session_id = t.session_id"
        " and m.number = t.session_number where t.organisation_id = %s and t.task_id = %s",
        (organisation_id, task_id),
    )
    if not rows:
        raise NotFound("no such task")
    row = rows[0]
    return None if row["session_id"] is None else (row["digest"], row["chars"])
