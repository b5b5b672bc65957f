"""Says that this process lives, so that its calls are its own; and makes up for what went wrong."""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import Awaitable, Callable
from uuid import UUID, uuid4

from store import call_owners, calls
from store.database import LONGEST_STATEMENT_S, Database
from store.errors import StoreError

__all__ = ["Lease"]

RENEW_EVERY_S = 2.0
LEASE_S = 10.0
# When a call that may have been opened is looked for, in seconds since it was asked for: cut off
# from Postgres, the statement that opens it may wait for its locks as long as any may run.
LOOKS_S = (0.0, 4.0, 12.0, LONGEST_STATEMENT_S + 5.0)


class Lease:
    """What a process holds its calls by.

    Attributes:
        process_id: As whose calls are filed.
    """

    def __init__(self, db: Database, renewed: Callable[[], Awaitable[None]]) -> None:
        """Takes the database, and what is done with each renewal."""
        self.process_id = uuid4()
        self._db = db
        self._renewed = renewed
        # Since when, and how often it was looked for.
        self._doubtful: dict[tuple[UUID, bytes, UUID], tuple[float, int]] = {}
        self._given_up: set[tuple[UUID, UUID]] = set()
        self._renewing: asyncio.Task[None] | None = None
        self._held_once = False
        self._steady_since: float | None = None

    @property
    def steady(self) -> bool:
        """Whether this process has said that it lives for longer than others are waited for."""
        return self._steady_since is not None and time.monotonic() - self._steady_since > LEASE_S

    def start(self) -> None:
        """Begin to say so."""
        self._renewing = asyncio.create_task(self._renew())

    async def stop(self) -> None:
        """Say that it ends: what it leaves open is taken over at once."""
        if self._renewing is not None:
            self._renewing.cancel()
            await asyncio.gather(self._renewing, return_exceptions=True)
        with contextlib.suppress(StoreError):
            await call_owners.forget_process(self._db, self.process_id)

    async def held(self) -> None:
        """See to it that it has been said once, before anything is filed under it."""
        if not self._held_once:
            await self._say()

    def doubt(self, key_id: UUID, key_digest: bytes, task_id: UUID) -> None:
        """Have a call that may have been opened closed: nobody else would, while this lives."""
        self._doubtful[key_id, key_digest, task_id] = time.monotonic(), 0

    def give_up(self, organisation_id: UUID, task_id: UUID) -> None:
        """Let go of a call that could not be closed: its workflow makes an end of it."""
        self._given_up.add((organisation_id, task_id))

    async def _say(self) -> None:
        await call_owners.renew_process(self._db, self.process_id, LEASE_S)
        self._held_once = True

    async def _renew(self) -> None:
        while True:
            try:
                await self._say()
                self._steady_since = self._steady_since or time.monotonic()
                await self._make_up()
                await self._renewed()
            except StoreError:
                self._steady_since = None
                await asyncio.sleep(0.2)
                continue
            await asyncio.sleep(RENEW_EVERY_S)

    async def _make_up(self) -> None:
        for doubt, (since, looks) in list(self._doubtful.items()):
            if time.monotonic() - since < LOOKS_S[looks]:
                continue
            await calls.abandon(self._db, *doubt)
            self._doubtful[doubt] = since, looks + 1
            if looks + 1 == len(LOOKS_S):
                del self._doubtful[doubt]
        for given_up in list(self._given_up):
            await call_owners.disown(self._db, *given_up)
            self._given_up.discard(given_up)
