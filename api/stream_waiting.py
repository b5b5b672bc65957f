"""Waiting for a task's events, and for this process to end, whichever comes first."""

from __future__ import annotations

import asyncio
import contextlib

from api.feeds import Feed, Item
from api.parts import Parts
from store.errors import DatabaseUnavailable

__all__ = ["next_items", "wait_or_stop"]

_OUTAGE_PAUSE_S = 1.0


async def next_items(parts: Parts, feed: Feed, after: int) -> list[Item] | None:
    """Wait for events; None when there will be no more, or this process ends."""
    waiting = asyncio.ensure_future(feed.next(after))
    stopping = asyncio.ensure_future(parts.stopping.wait())
    try:
        await asyncio.wait({waiting, stopping}, return_when=asyncio.FIRST_COMPLETED)
        if not waiting.done():
            return None
        return waiting.result() or None
    except DatabaseUnavailable:
        # Nothing is lost: the reader waits here, and goes on when it is back.
        await wait_or_stop(parts)
        return []
    finally:
        for future in (waiting, stopping):
            future.cancel()
        await asyncio.gather(waiting, stopping, return_exceptions=True)


async def wait_or_stop(parts: Parts) -> None:
    """Wait a moment for a part to come back; not at all when this process ends."""
    with contextlib.suppress(TimeoutError):
        async with asyncio.timeout(_OUTAGE_PAUSE_S):
            await parts.stopping.wait()
