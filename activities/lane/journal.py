"""The journal of a call that is being made: written every 100 ms; a shorter one writes none.

What it holds back is written by the statement that closes the call. While Postgres is away the
pieces are kept and the call goes on.
"""

from __future__ import annotations

import asyncio
import contextlib
from uuid import UUID

from store import journal
from store.database import Database
from store.errors import DatabaseUnavailable, Fenced

__all__ = ["LaneJournal"]

EVERY_S = 0.1
OUTAGE_RETRY_S = 0.5


class LaneJournal:
    """Takes what one attempt makes.

    Args:
        db: The database.
        organisation_id: Whose call it is.
        generation_key: Which candidate of it.
        epoch: Which attempt.
        seq: Number of the first chunk.
    """

    def __init__(
        self, db: Database, organisation_id: UUID, generation_key: str, epoch: int, seq: int = 0
    ) -> None:
        self._db = db
        self._organisation_id = organisation_id
        self._key = generation_key
        self._epoch = epoch
        self._seq = seq
        self._ids: list[int] = []
        self._texts: list[str] = []
        # A chunk of which it is not known whether it was written: the very same must be sent
        # again, for its number is what makes it once.
        self._unsure: tuple[list[int], str] | None = None
        self._timer: asyncio.TimerHandle | None = None
        self._writing: asyncio.Task[None] | None = None
        self._fenced = False

    def add(self, token_ids: list[int], text: str) -> None:
        """Take a piece; it is written within about 100 ms.

        Raises:
            Fenced: Somebody else has taken the call over; stop.
        """
        if self._fenced:
            raise Fenced("somebody else has taken this call over")
        self._ids.extend(token_ids)
        if text:
            self._texts.append(text)
        if self._timer is None and self._writing is None:
            self._later(EVERY_S)

    async def stop(self) -> None:
        """End the writing; what is left is `rest`."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        if self._writing is not None:
            with contextlib.suppress(DatabaseUnavailable, Fenced):
                await asyncio.shield(self._writing)

    async def settle_doubt(self) -> None:
        """Write the chunk of which it is not known whether it was written.

        Raises:
            DatabaseUnavailable: It is still not known.
            Fenced: Somebody else has taken the call over.
        """
        if self._unsure is not None:
            await self._append()

    def rest(self) -> tuple[int, list[int], str]:
        """Return number, token ids and text of what is not written yet."""
        return self._seq, self._ids, "".join(self._texts)

    def _later(self, seconds: float) -> None:
        self._timer = asyncio.get_running_loop().call_later(seconds, self._begin)

    def _begin(self) -> None:
        self._timer = None
        self._writing = asyncio.create_task(self._write())

    async def _write(self) -> None:
        pause = EVERY_S
        try:
            await self._append()
        except DatabaseUnavailable:
            pause = OUTAGE_RETRY_S
        except Fenced:
            # Said by the next `add`, or by the statement that closes the call.
            self._fenced = True
            return
        finally:
            self._writing = None
        if self._unsure is not None or self._ids or self._texts:
            self._later(pause)

    async def _append(self) -> None:
        if self._unsure is None:
            if not self._ids and not self._texts:
                return
            self._unsure = self._ids, "".join(self._texts)
            self._ids, self._texts = [], []
        ids, text = self._unsure
        kept = await journal.append_chunk(
            self._db,
            organisation_id=self._organisation_id,
            generation_key=self._key,
            epoch=self._epoch,
            seq=self._seq,
            token_ids=ids,
            text=text,
        )
        if not kept:
            raise Fenced("somebody else has taken this call over")
        self._unsure = None
        self._seq += 1
