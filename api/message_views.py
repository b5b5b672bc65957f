"""How messages look to callers: what is said to a running task, and in a session."""

from __future__ import annotations

from datetime import datetime
from typing import Any, Literal
from uuid import UUID

from pydantic import Field

from api.task_views import Failure, View
from workflows.contracts import Asked, SessionRequest

__all__ = [
    "MessageAccepted",
    "MessageRequest",
    "SessionEvent",
    "SessionLinks",
    "SessionPage",
    "SessionSummary",
    "SessionView",
    "TaskMessageList",
    "TaskMessageView",
    "TurnAccepted",
    "TurnList",
    "TurnView",
]


class MessageRequest(Asked):
    """Something to say."""

    content: str = Field(
        min_length=1, max_length=1_000_000, description="The text, at most 1,000,000 characters."
    )
    role: Literal["user"] = Field(default="user", description="Who speaks: the user.")


class MessageAccepted(View):
    """A message that is queued."""

    task_id: UUID = Field(description="The task.")
    number: int = Field(description="Its place among the task's messages, from 1.", ge=1)
    replayed: bool = Field(
        description="Whether an earlier request with the same idempotency key queued it."
    )


class TaskMessageView(View):
    """What was said to a task while it ran."""

    number: int = Field(description="Its place among the task's messages, from 1.", ge=1)
    role: Literal["user"] = Field(default="user", description="Who speaks.")
    content: str = Field(description="The text.")
    state: Literal["queued", "taken", "unread"] = Field(
        description="`taken` into the conversation; `unread`: the task ended first."
    )
    at_step: int | None = Field(description="The first step that saw it; none: none has.")
    created_at: datetime = Field(description="When it came, RFC 3339 in UTC.")
    taken_at: datetime | None = Field(description="When it was taken in, RFC 3339 in UTC.")


class TaskMessageList(View):
    """What was said to a task while it ran."""

    task_id: UUID = Field(description="The task.")
    messages: tuple[TaskMessageView, ...] = Field(description="The messages, oldest first.")
    next_cursor: int | None = Field(
        description="`cursor` of the next page; none: this is the last."
    )


class SessionSummary(View):
    """A conversation."""

    id: UUID = Field(description="Id of the session (UUIDv7).")
    state: Literal["open", "closed"] = Field(
        description="`closed`: it takes no messages any more; those in it are still answered."
    )
    agent: str | None = Field(description="The agent it names, if it does.")
    key_id: UUID = Field(description="Key that began it.")
    messages: int = Field(description="Number of its newest message; 0: none yet.", ge=0)
    created_at: datetime = Field(description="When it began, RFC 3339 in UTC.")
    closed_at: datetime | None = Field(description="When it was closed, RFC 3339 in UTC.")


class SessionLinks(View):
    """Where a session can be read, as paths of this API, and in Temporal."""

    session: str = Field(description="The session itself.")
    messages: str = Field(description="Both sides of the conversation.")
    events: str = Field(description="Its turns as they happen: server-sent events.")
    web_ui: str = Field(description="URL of its workflow in Temporal's Web UI.")


class SessionView(SessionSummary):
    """A conversation, and what its turns are asked with."""

    asked_with: SessionRequest = Field(description="What every turn is asked with.")
    links: SessionLinks = Field(description="Where to read on.")


class SessionPage(View):
    """A page of sessions, newest first."""

    sessions: tuple[SessionSummary, ...] = Field(description="The sessions.")
    next_cursor: str | None = Field(
        description="`cursor` of the next page; none: this is the last."
    )


class TurnAccepted(View):
    """A message of a session: its turn comes when those before it are over."""

    session_id: UUID = Field(description="The session.")
    number: int = Field(description="Its place among the session's messages, from 1.", ge=1)
    task_id: UUID | None = Field(description="The task that is its turn, if that has come.")
    replayed: bool = Field(
        description="Whether an earlier request with the same idempotency key said it."
    )


class TurnView(View):
    """A message of a session and what came of it: both sides of a turn."""

    number: int = Field(description="Its place among the session's messages, from 1.", ge=1)
    content: str = Field(description="What was said.")
    key_id: UUID = Field(description="Key that said it, and pays for the answer.")
    state: Literal["queued", "running", "answered", "failed", "cancelled", "refused"] = Field(
        description="`queued` until the turns before it are over; `refused`: no task was made."
    )
    task_id: UUID | None = Field(description="The task that is its turn.")
    answer: str | None = Field(description="What was answered.")
    error: Failure | None = Field(description="Why nothing was answered.")
    created_at: datetime = Field(description="When it was said, RFC 3339 in UTC.")
    answered_at: datetime | None = Field(description="When its turn was over, RFC 3339 in UTC.")


class TurnList(View):
    """The messages of a session, each with its answer."""

    session_id: UUID = Field(description="The session.")
    messages: tuple[TurnView, ...] = Field(description="The messages, oldest first.")
    next_cursor: int | None = Field(
        description="`cursor` of the next page; none: this is the last."
    )


class SessionEvent(View):
    """Data of one server-sent event of a session; its `id` field is `turn:seq`."""

    turn: int = Field(description="Number of the message whose turn it is.", ge=1)
    seq: int = Field(description="Place in the events of this turn; 0: the message.", ge=0)
    task_id: UUID | None = Field(description="The task whose event it is; none: the session's own.")
    step: int = Field(description="Step of that task; 0: not of a step.", ge=0)
    type: str = Field(
        description="`message` for what was said, `turn.refused` when it gets no answer, "
        "`session.closed` at the end; all others are those of the turn's task."
    )
    at: datetime = Field(description="When it happened, RFC 3339 in UTC.")
    payload: dict[str, Any] = Field(description="Facts of this type of event.")
