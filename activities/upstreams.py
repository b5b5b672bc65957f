"""The upstreams as activities and calls know them, apart from the HTTP client underneath."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

from inference.upstream.messages import Upstream

if TYPE_CHECKING:
    from inference.upstream.client import UpstreamClient, Upstreams

__all__ = ["UpstreamPool"]


class UpstreamPool:
    """One pool of connections a process, once somebody asks for an upstream.

    Its HTTP client takes longer to import than whatever else a worker needs of its own, and many
    stacks have no upstream: it is imported for the first call, in a thread, so that calls which
    are under way do not wait for it.
    """

    def __init__(self) -> None:
        self._pool: Upstreams | None = None
        self._lock = asyncio.Lock()

    async def at(self, upstream: Upstream) -> UpstreamClient:
        """Return the client of an upstream; cheap, but for the first."""
        async with self._lock:
            if self._pool is None:
                self._pool = await asyncio.to_thread(_imported)
        return self._pool.at(upstream)

    async def close(self) -> None:
        """Close every connection; running streams end."""
        if self._pool is not None:
            await self._pool.close()


def _imported() -> Upstreams:
    from inference.upstream.client import Upstreams

    return Upstreams()
