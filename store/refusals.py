"""Why a request or a call may not go ahead, with the numbers the caller needs."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from decimal import Decimal
from typing import Any


@dataclass(frozen=True, slots=True)
class Refusal:
    """A typed no.

    Attributes:
        code: `budget_exceeded`, `key_unknown`, `key_disabled`, `key_expired`, `task_cancelled`,
            `task_failed`, `task_succeeded`, `task_discarded`, `tokens_exceeded`, `too_deep`,
            `rate_limited` or `key_restricted`.
        scope: what refused: `task`, `parent` (a task above it), `key`, `team` or `organisation`;
            of a restricted key, what it may not use: `model`, `route` or `tool`.
        limit_usd: the cap that would be exceeded (None unless a budget refused).
        spent_usd: charged against it so far.
        held_usd: reserved for calls in flight; comes back, in part, when they settle.
        needed_usd: what was asked for.
        patient: the task is a child: what its relatives hold is worth waiting for.
        rate: what a limit of rate said: `measure`, `limit`, `needed`, `never`, `retry_after_s`.
    """

    code: str
    scope: str
    limit_usd: Decimal | None
    spent_usd: Decimal | None
    held_usd: Decimal | None
    needed_usd: Decimal
    patient: bool = False
    rate: Mapping[str, Any] = field(default_factory=dict)

    @property
    def may_pass_later(self) -> bool:
        """True when it would fit once the calls now in flight have settled for less."""
        if self.limit_usd is None or self.spent_usd is None:
            return False
        return self.spent_usd + self.needed_usd <= self.limit_usd


def refusal_from_row(row: Mapping[str, Any], needed_usd: Decimal) -> Refusal | None:
    """Reads the refusal columns of a function's result; None when it did not refuse."""
    if row["code"] is None:
        return None
    return Refusal(
        code=row["code"],
        scope=row["scope"],
        limit_usd=row["limit_usd"],
        spent_usd=row["spent_usd"],
        held_usd=row["held_usd"],
        needed_usd=needed_usd,
        patient=bool(row.get("patient")),
        rate=row.get("rate") or {},
    )
