"""What a safety policy means to a task, and what it decided about one thing that was screened.

A history tells which rule decided, about what and where; never the content.
"""

from __future__ import annotations

from typing import Literal
from uuid import UUID

from pydantic import Field

from workflows.contracts.base import Wire

__all__ = ["Found", "Safety", "Screened"]

Outcome = Literal["allow", "flag", "redact", "block", "require_approval"]


class Safety(Wire):
    """The policy a task keeps to, from its submission to its end."""

    version: int = Field(description="The policy's version; a version never changes.")
    scope: UUID = Field(
        description="Whose redactions it shares: those of the task its caller submitted, or of "
        "its session."
    )
    team: UUID | None = Field(
        default=None,
        description="Whose keys may read the originals: its session's; none: the task's own.",
    )
    asks: str | None = Field(
        default=None, description="The rule that wants a person asked before the task may begin."
    )
    judges: bool = Field(
        default=False, description="Models are to judge what is asked before the task may begin."
    )


class Found(Wire):
    """One finding of a rule: which, where, and what is done about it."""

    rule: str
    kind: str
    action: Outcome
    place: Literal["input", "passage", "tool_result", "output"]
    part: int = Field(default=0, description="Which of the texts, from 0.")
    start: int = Field(description="Where it begins, in characters.")
    end: int = Field(description="Where it ends, in characters.")
    label: str = Field(default="", description="What it was found to be, such as EMAIL_ADDRESS.")


class Screened(Wire):
    """What the policy decided about one thing; none where nothing was found."""

    version: int
    mode: Literal["enforce", "dry_run"] = "enforce"
    outcome: Outcome
    findings: tuple[Found, ...] = Field(default=(), description="The first of them.")
    rule: str | None = Field(
        default=None, description="The rule that blocked it, or wants a person asked."
    )

    @property
    def blocked(self) -> str | None:
        """The rule that blocked it, if one did."""
        return self.rule if self.outcome == "block" else None

    @property
    def held(self) -> str | None:
        """The rule that wants a person asked, if one does."""
        return self.rule if self.outcome == "require_approval" else None
