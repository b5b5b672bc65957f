"""A worker that died is noticed by the silence of its activities."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator

from temporalio import activity

__all__ = ["heartbeats"]

HEARTBEAT_SECONDS = 0.5


@contextlib.asynccontextmanager
async def heartbeats() -> AsyncIterator[None]:
    """Tell Temporal that this attempt lives; without it a dead worker is noticed late."""

    async def beat() -> None:
        while True:
            await asyncio.sleep(HEARTBEAT_SECONDS)
            activity.heartbeat()

    beating = asyncio.create_task(beat())
    try:
        yield
    finally:
        beating.cancel()
