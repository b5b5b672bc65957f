"""The catalogue as it was a moment ago, for no round trip a call."""

from __future__ import annotations

import asyncio
import time

from store.catalogue import Catalogue, load_catalogue
from store.database import Database

__all__ = ["CatalogueView"]

# Models, routes and prices change by a deployment; a second is how long an old one may be used.
MAX_AGE_S = 1.0


class CatalogueView:
    """A process's view of the catalogue, at most `MAX_AGE_S` old."""

    def __init__(self, db: Database) -> None:
        self._db = db
        self._catalogue: Catalogue | None = None
        self._read_at = float("-inf")
        self._lock = asyncio.Lock()

    async def read(self) -> Catalogue:
        """Return the catalogue.

        Raises:
            DatabaseUnavailable: It must be read again, and the database does not answer.
        """
        async with self._lock:
            if self._catalogue is None or time.monotonic() - self._read_at > MAX_AGE_S:
                self._catalogue = await load_catalogue(self._db)
                self._read_at = time.monotonic()
            return self._catalogue
