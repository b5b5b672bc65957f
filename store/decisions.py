"""What safety policies decided: rules and spans, never the content."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any
from uuid import UUID

from psycopg.types.json import Jsonb

from store.database import Database

__all__ = ["NOTE", "Decision", "FiledDecision", "documents", "note", "read_decisions"]

#: The SQL function that files decisions, for `Database.call(..., beside=(NOTE, documents(...)))`:
#: so they are filed by the statement that ends what they are about.
NOTE = "note_decisions"
# Of one thing; more would tell nobody more.
_MOST_FINDINGS = 100


@dataclass(frozen=True, slots=True)
class Decision:
    """What was decided about one thing that was screened.

    Attributes:
        place: `input`, `passage`, `tool_result` or `output`.
        what: tells apart what is screened in one step at one place; decided again it is the same.
        outcome: `allow`, `flag`, `redact`, `block` or `require_approval`.
        findings: rule, kind, action, part, start, end and label of each.
        actor: who is named in the audit log.
    """

    task_id: UUID
    step: int
    place: str
    policy_version: int
    mode: str
    outcome: str
    findings: Sequence[Mapping[str, Any]]
    what: str = ""
    actor: str = "overline"

    def document(self) -> dict[str, Any]:
        """As the SQL functions read it."""
        return {
            "task_id": str(self.task_id),
            "step": self.step,
            "place": self.place,
            "what": self.what,
            "policy_version": self.policy_version,
            "mode": self.mode,
            "outcome": self.outcome,
            "findings": [dict(each) for each in self.findings[:_MOST_FINDINGS]],
            "actor": self.actor,
        }


@dataclass(frozen=True, slots=True)
class FiledDecision:
    """A decision on file."""

    task_id: UUID
    step: int
    place: str
    what: str
    decided_at: datetime
    policy_version: int
    mode: str
    outcome: str
    findings: list[dict[str, Any]] = field(default_factory=list)


def documents(decisions: Iterable[Decision]) -> Jsonb | None:
    """Decisions as the SQL functions take them; None: there are none."""
    made = [decision.document() for decision in decisions]
    return Jsonb(made) if made else None


async def note(db: Database, organisation_id: UUID, decisions: Iterable[Decision]) -> int:
    """Files decisions; one that is on file stays. Returns how many were new."""
    made = documents(decisions)
    if made is None:
        return 0
    rows = await db.call(organisation_id, NOTE, "%s", (made,))
    return int(rows[0]["f"])


async def read_decisions(db: Database, organisation_id: UUID, task_id: UUID) -> list[FiledDecision]:
    """Decisions about a task, in order."""
    rows = await db.run(
        organisation_id,
        "select task_id, step, place, what, decided_at, policy_version, mode, outcome, findings"
        " from safety_decisions where organisation_id = %s and task_id = %s"
        " order by decided_at, step, place, what",
        (organisation_id, task_id),
    )
    return [FiledDecision(**row) for row in rows]
