"""Payloads that are too large for a history, as the command line reads them."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from datetime import timedelta

from settings import Settings
from store.database import Database
from store.payloads import PayloadShelf

__all__ = ["opened_shelf"]


@asynccontextmanager
async def opened_shelf(settings: Settings) -> AsyncIterator[PayloadShelf]:
    """Give the shelf; nothing is connected to before a history refers to it."""
    url = settings.reader_database_url or settings.database_url
    database = await Database.open(url.get_secret_value(), min_size=0, max_size=4, name="overline")
    try:
        yield PayloadShelf(database, keep=timedelta(days=settings.keep_days), read_only=True)
    finally:
        await database.close()
