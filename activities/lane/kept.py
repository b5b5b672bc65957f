"""A call whose answer is there already, shown as if it were being made."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Mapping
from dataclasses import dataclass
from datetime import datetime
from decimal import Decimal
from typing import Any, Literal
from uuid import UUID

from activities.lane.texts import is_json, restored_answer
from activities.lane.usages import usage_of
from inference.answers import Answer
from inference.upstream.messages import Delta
from inference.usage import TokenUsage
from safety.redactions import Redactions
from store.calls import Known
from workflows.contracts.call import CallSpec

__all__ = ["KeptCall", "kept"]


@dataclass
class KeptCall:
    """A call whose answer is there already: an earlier one's, or the cache's.

    Attributes:
        cancelled: It was ended before its time: what is there is not all of an answer.
    """

    spec: CallSpec
    task_id: UUID
    created_at: datetime
    model: str
    answer: Answer
    used: TokenUsage
    billed_usd: Decimal
    saved_usd: Decimal = Decimal(0)
    cache: Literal["hit", "miss"] = "miss"
    replayed: bool = False
    ended_at: datetime | None = None
    rate: Mapping[str, Any] | None = None
    attempts: int = 0
    safety: str | None = None
    cancelled: bool = False

    async def pieces(self) -> AsyncGenerator[tuple[Delta, ...], None]:
        """Yield the answer, as if it were being made."""
        for delta in self.answer.deltas():
            yield (delta,)

    async def leave(self) -> None:
        """Nothing is left to end."""


def kept(
    spec: CallSpec,
    known: Known,
    originals: Redactions,
    *,
    cache: Literal["hit", "miss"] = "miss",
    replayed: bool = False,
    said: str | None = None,
) -> KeptCall:
    """Return a call that is on file, with what was taken out of its texts put back."""
    assert known.answer is not None
    return KeptCall(
        spec=spec,
        task_id=known.task_id,
        created_at=known.created_at,
        model=known.model,
        answer=restored_answer(Answer.of(known.answer), originals, as_json=is_json(spec)),
        used=usage_of(known.usage),
        billed_usd=known.billed_usd,
        saved_usd=known.saved_usd,
        cache=cache,
        replayed=replayed,
        ended_at=known.ended_at,
        rate=known.rate,
        safety=known.answer.get("safety", said),
        cancelled=known.status == "cancelled",
    )
