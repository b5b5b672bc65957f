"""A session as its workflow knows it: which one, and its next turn."""

from __future__ import annotations

from uuid import UUID

from pydantic import Field

from workflows.contracts.base import Wire
from workflows.contracts.task import TaskInput

__all__ = ["NextTurn", "SessionInput", "SessionOutcome", "session_workflow_id"]


def session_workflow_id(session_id: UUID) -> str:
    """Return the id of the workflow that sees to a session's turns."""
    return f"session-{session_id}"


class SessionInput(Wire):
    """Input of `Session`. What was said is in the session's rows."""

    organisation_id: UUID
    session_id: UUID
    idle_seconds: int = Field(
        default=300, description="The workflow ends when nothing is said for so long."
    )


class NextTurn(Wire):
    """The turn to take: its task, or that it was refused, or that there is none."""

    number: int | None = Field(default=None, description="Number of the message; none: no turn.")
    task: TaskInput | None = None
    headline: str = ""
    code: str | None = None
    closed: bool = False


class SessionOutcome(Wire):
    """Result of `Session`: what its last run did; the next message starts it again."""

    session_id: UUID
    turns: int
