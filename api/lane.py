"""The fast lane as the API needs it; who makes it work is wired in from outside.

The API never imports activities: whoever starts the process gives it a lane (see `deploy.api`). A
process without one answers everything else.
"""

from __future__ import annotations

from collections.abc import AsyncGenerator, Callable, Mapping
from datetime import datetime
from decimal import Decimal
from typing import Any, Protocol
from uuid import UUID

from inference.answers import Answer
from inference.upstream.messages import Delta
from inference.usage import TokenUsage
from settings import Settings
from store.calls import Known
from store.database import Database
from store.identity import Origin
from workflows.contracts.call import CallSpec

__all__ = ["Call", "Embedded", "Lane", "MakeLane"]


class Call(Protocol):
    """A call whose answer has begun.

    Attributes:
        model: Who answers.
        cache: `hit` or `miss`.
        replayed: Whether it repeats an earlier one.
        ended_at: When that one ended.
        answer: What was made so far; whole after the last piece.
        used: Tokens; right after the last piece.
        billed_usd: What it cost; right after the last piece.
        rate: The tightest limits of its caller; None: there are none.
        attempts: How many engines were asked for it.
        safety: What its safety policy did so far: `flag`, `redact` or `dry_run`; None: nothing.
    """

    task_id: UUID
    created_at: datetime
    model: str
    cache: str
    replayed: bool
    ended_at: datetime | None
    answer: Answer
    used: TokenUsage
    billed_usd: Decimal
    rate: Mapping[str, Any] | None
    attempts: int

    @property
    def safety(self) -> str | None:
        """See there."""

    def pieces(self) -> AsyncGenerator[tuple[Delta, ...], None]:
        """Yield what is made; after the last piece the call is closed."""


class Embedded(Protocol):
    """Vectors, and what they cost."""

    task_id: UUID
    model: str
    cache: str
    replayed: bool
    billed_usd: Decimal
    rate: Mapping[str, Any] | None
    safety: str | None
    tokens: int
    vectors: list[list[float]]


class Lane(Protocol):
    """Opens calls.

    Attributes:
        steady: Whether this process has long been known to live, without a break.
    """

    @property
    def steady(self) -> bool:
        """See there."""

    async def start(self) -> None:
        """Begin to say that this process lives."""

    async def stop(self) -> None:
        """Say that it ends."""

    async def open(
        self,
        spec: CallSpec,
        *,
        key_id: UUID,
        key_digest: bytes,
        origin: Origin,
        idempotency_key: str | None,
        request_digest: str,
        cache: str,
    ) -> Any:
        """Open a call and wait for the first of its answer: a `Call`."""

    async def embed(
        self,
        spec: CallSpec,
        texts: list[str],
        *,
        key_id: UUID,
        key_digest: bytes,
        origin: Origin,
        idempotency_key: str | None,
        request_digest: str,
    ) -> Any:
        """Embed texts: an `Embedded`."""

    def cancel(self, task_id: UUID) -> bool:
        """End a call that this process makes; False when it makes no such call."""

    def let_go(self, call: Any) -> None:
        """End a call whose client has gone."""

    async def read(
        self, organisation_id: UUID, task_id: UUID, team_id: UUID | None = None
    ) -> tuple[Known, CallSpec] | None:
        """Return a call that is on file, with what was asked, as the reading team may see it."""


MakeLane = Callable[[Settings, Database], Lane]
