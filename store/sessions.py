"""Sessions: conversations whose turns are tasks. Their turns are in `store.turns`."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any, Literal
from uuid import UUID

from store.database import Database
from store.identity import Principal
from store.policies import POLICY_SCREENED_BY
from store.text import jsonb, storable

__all__ = [
    "Opened",
    "Said",
    "Session",
    "SessionMessage",
    "SessionPage",
    "Unsent",
    "close_session",
    "get_session",
    "list_messages",
    "list_sessions",
    "mark_sent",
    "open_session",
    "say",
    "unsent_sessions",
]

MessageState = Literal["queued", "running", "answered", "failed", "cancelled", "refused"]


@dataclass(frozen=True, slots=True)
class Opened:
    """A session is on file.

    Attributes:
        session_id: the new one, or the first of the same idempotency key.
        created: False when this request repeats an earlier one.
        conflict: True when the idempotency key was used before for another request.
    """

    session_id: UUID
    created: bool
    conflict: bool


@dataclass(frozen=True, slots=True)
class Session:
    """A session as its owner made it.

    Attributes:
        team_id: whose it is.
        request: what every turn is asked with, as the caller wrote it.
        messages: number of its newest message; 0: none yet.
    """

    session_id: UUID
    team_id: UUID
    key_id: UUID
    request: dict[str, Any]
    messages: int
    created_at: datetime
    closed_at: datetime | None


@dataclass(frozen=True, slots=True)
class SessionPage:
    """A page of sessions, newest first. `next_cursor` is None on the last page."""

    sessions: list[Session]
    next_cursor: UUID | None


@dataclass(frozen=True, slots=True)
class Said:
    """What became of a message; see `store.messages.Sent`.

    Attributes:
        task_id: the task that is its turn, once that is filed.
        closed: True when the session takes no messages any more.
    """

    number: int | None
    task_id: UUID | None
    created: bool
    conflict: bool
    closed: bool


@dataclass(frozen=True, slots=True)
class SessionMessage:
    """A message and what became of it: both sides of a turn.

    Attributes:
        task_id: the task that is its turn; None: its turn has not come, or it was refused.
        code: why it has no turn.
        answer: what was answered; None: nothing, or not yet.
        error: why nothing was answered.
    """

    number: int
    key_id: UUID
    content: str
    state: MessageState
    task_id: UUID | None
    code: str | None
    detail: str | None
    answer: str | None
    error: dict[str, Any] | None
    created_at: datetime
    answered_at: datetime | None


@dataclass(frozen=True, slots=True)
class Unsent:
    """A session that nobody seems to see to, and its newest message."""

    organisation_id: UUID
    team_id: UUID
    session_id: UUID
    number: int


_COLUMNS = ", ".join(Session.__dataclass_fields__)


async def open_session(
    db: Database,
    owner: Principal,
    *,
    session_id: UUID,
    idempotency_key: str | None,
    request: dict[str, Any],
    resolved: dict[str, Any],
    first_max_tokens: int,
) -> Opened:
    """Puts a session on file, or finds the first one of the same idempotency key.

    Args:
        request: what every turn is asked with, as the caller wrote it.
        resolved: the same with every name looked up.
        first_max_tokens: longest first answer of a turn, in tokens.
    """
    made, found = await db.run_many(
        owner.organisation_id,
        [
            (
                (
                    "insert into sessions (organisation_id, session_id, team_id, key_id,"
                    " idempotency_key, request, resolved, first_max_tokens)"
                    " values (%s, %s, %s, %s, %s, %s, %s, %s) on conflict do nothing"
                    " returning session_id"
                ),
                (
                    owner.organisation_id,
                    session_id,
                    owner.team_id,
                    owner.key_id,
                    idempotency_key,
                    jsonb(request),
                    jsonb(resolved),
                    first_max_tokens,
                ),
            ),
            (
                (
                    "select session_id, request <> %s as conflict from sessions"
                    " where organisation_id = %s"
                    " and (session_id = %s or (key_id = %s and idempotency_key = %s))"
                ),
                (
                    jsonb(request),
                    owner.organisation_id,
                    session_id,
                    owner.key_id,
                    idempotency_key,
                ),
            ),
        ],
    )
    return Opened(found[0]["session_id"], bool(made), found[0]["conflict"])


async def get_session(db: Database, organisation_id: UUID, session_id: UUID) -> Session | None:
    """One session of the organisation."""
    rows = await db.run(
        organisation_id,
        f"select {_COLUMNS} from sessions where organisation_id = %s and session_id = %s",
        (organisation_id, session_id),
    )
    return Session(**rows[0]) if rows else None


async def list_sessions(
    db: Database, organisation_id: UUID, *, cursor: UUID | None = None, limit: int = 50
) -> SessionPage:
    """Sessions from the newest to the oldest.

    Args:
        cursor: `next_cursor` of the page before.
        limit: most sessions on the page.
    """
    rows = await db.run(
        organisation_id,
        f"select {_COLUMNS} from sessions where organisation_id = %s"
        " and (%s::uuid is null or session_id < %s) order by session_id desc limit %s",
        (organisation_id, cursor, cursor, limit + 1),
    )
    found = [Session(**row) for row in rows[:limit]]
    return SessionPage(found, found[-1].session_id if len(rows) > limit else None)


async def close_session(db: Database, organisation_id: UUID, session_id: UUID) -> datetime:
    """Ends a session for new messages, once; returns since when.

    Raises:
        NotFound: the organisation has no such session.
    """
    rows = await db.call(organisation_id, "close_session", "%s", (session_id,))
    since: datetime = rows[0]["f"]
    return since


async def say(
    db: Database,
    sender: Principal,
    session_id: UUID,
    *,
    content: str,
    idempotency_key: str | None,
    policy: int = 0,
) -> Said:
    """Says something in a session, unless it is closed. The sender pays for its turn.

    Args:
        policy: version of the safety policy it was screened by; 0: none.

    Raises:
        NotFound: the organisation has no such session.
        DatabaseUnavailable: not known whether it was said.
        PolicyChanged: another safety policy holds by now.
    """
    organisation = sender.organisation_id
    _, rows = await db.run_many(
        organisation,
        [
            (f"select {POLICY_SCREENED_BY}", (str(policy),)),
            (
                "select * from say_in_session(%s, %s, %s, %s, %s, %s)",
                (
                    organisation,
                    sender.team_id,
                    sender.key_id,
                    session_id,
                    storable(content),
                    idempotency_key,
                ),
            ),
        ],
    )
    return Said(**rows[0])


async def mark_sent(db: Database, organisation_id: UUID, session_id: UUID, number: int) -> None:
    """Notes that the session's workflow has heard of the messages up to a number."""
    await db.run(
        organisation_id,
        "update session_messages set sent_at = now() where organisation_id = %s"
        " and session_id = %s and number <= %s and task_id is null and code is null",
        (organisation_id, session_id, number),
    )


async def unsent_sessions(
    db: Database, *, older_than: timedelta = timedelta(seconds=3), limit: int = 100
) -> list[Unsent]:
    """Sessions of every organisation whose workflow should be told of a message, oldest first.

    For the sweeper: telling a workflow twice is harmless.
    """
    rows = await db.run_untenanted("select * from unsent_sessions(%s, %s)", (older_than, limit))
    return [Unsent(**row) for row in rows]


async def list_messages(
    db: Database, organisation_id: UUID, session_id: UUID, *, after: int = 0, limit: int = 50
) -> list[SessionMessage]:
    """A session's messages in order, each with what came of it.

    Args:
        after: number of the last one that was read before.
        limit: most messages to return.
    """
    rows = await db.run(
        organisation_id,
        "select m.number, m.key_id, m.content, m.task_id, m.code, m.detail, t.answer, t.error,"
        " m.created_at, t.finished_at as answered_at,"
        " case when m.code is not null then 'refused' when m.task_id is null then 'queued'"
        " when t.finished_at is null then 'running' when t.status = 'succeeded' then 'answered'"
        " else t.status end as state"
        " from session_messages m left join tasks t"
        " on t.organisation_id = m.organisation_id and t.task_id = m.task_id"
        " where m.organisation_id = %s and m.session_id = %s and m.number > %s"
        " order by m.number limit %s",
        (organisation_id, session_id, after, limit),
    )
    return [SessionMessage(**row) for row in rows]
