"""The upstreams as activities and calls know them, apart from the HTTP client underneath."""

from __future__ import annotations

from typing import TYPE_CHECKING

from activities.deferred import Deferred
from inference.upstream.messages import Upstream

if TYPE_CHECKING:
    from inference.upstream.client import UpstreamClient, Upstreams

__all__ = ["UpstreamPool"]


class UpstreamPool:
    """One pool of connections a process, once somebody asks for an upstream.

    Its HTTP client takes longer to import than whatever else a worker needs of its own, and many
    stacks have no upstream.
    """

    def __init__(self) -> None:
        self._pool = Deferred(_imported)

    async def at(self, upstream: Upstream) -> UpstreamClient:
        """Return the client of an upstream; cheap, but for the first."""
        return (await self._pool.get()).at(upstream)

    async def close(self) -> None:
        """Close every connection; running streams end."""
        if self._pool.made is not None:
            await self._pool.made.close()


def _imported() -> Upstreams:
    from inference.upstream.client import Upstreams

    return Upstreams()
