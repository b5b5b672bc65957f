"""When keys were last used: noted in this process, and written a few times a minute."""

from __future__ import annotations

import asyncio
import time
from collections import OrderedDict
from uuid import UUID

from store.database import Database
from store.errors import StoreError
from store.identity import touch_keys

__all__ = ["KeyUse"]

_WRITE_EVERY_S = 2.0
#: A key that goes on being used is written this often, by each process.
_AGAIN_AFTER_S = 60.0
_MOST = 10_000


class KeyUse:
    """Keys that were used since they were last written."""

    def __init__(self) -> None:
        self._noted: OrderedDict[UUID, float] = OrderedDict()
        self._waiting: set[UUID] = set()

    def note(self, key_id: UUID) -> None:
        """Note that a key was good just now; costs no round trip."""
        now = time.monotonic()
        last = self._noted.get(key_id)
        if last is not None and now - last < _AGAIN_AFTER_S:
            return
        self._noted[key_id] = now
        self._waiting.add(key_id)
        if len(self._noted) > _MOST:
            self._noted.popitem(last=False)

    async def write(self, database: Database) -> None:
        """Write what was noted; runs for ever. What an outage keeps from it waits."""
        while True:
            await asyncio.sleep(_WRITE_EVERY_S)
            written = list(self._waiting)
            if not written:
                continue
            try:
                await touch_keys(database, written)
            except StoreError:
                continue
            self._waiting.difference_update(written)
