"""What takes long to import and is seldom needed: made for the first who asks."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Generic, TypeVar

__all__ = ["Deferred"]

T = TypeVar("T")


class Deferred(Generic[T]):
    """Something that is made once, in a thread: calls that are under way do not wait for it.

    Attributes:
        made: It, once it is there.
    """

    def __init__(self, make: Callable[[], T]) -> None:
        """Take what imports and makes it."""
        self.made: T | None = None
        self._make = make
        self._lock = asyncio.Lock()

    async def get(self) -> T:
        """Return it."""
        if self.made is None:
            async with self._lock:
                if self.made is None:
                    self.made = await asyncio.to_thread(self._make)
        return self.made
