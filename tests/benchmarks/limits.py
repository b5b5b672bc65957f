"""How long a part of a benchmark may take, and what it says when that was not enough."""

from __future__ import annotations

import time

__all__ = ["Cut", "Limit"]


class Cut(Exception):
    """A part was ended before its end; the text says where it stood."""


class Limit:
    """The time a part has."""

    def __init__(self, seconds: float) -> None:
        """Begin to count.

        Args:
            seconds: From now.
        """
        self.seconds = seconds
        self._until = time.monotonic() + seconds

    @property
    def over(self) -> bool:
        """Whether the time is up."""
        return time.monotonic() > self._until

    def check(self, stands: str) -> None:
        """Go on, unless the time is up.

        Args:
            stands: How far the part is.

        Raises:
            Cut: It is.
        """
        if self.over:
            raise Cut(f"cut after {self.seconds:.0f} s: {stands}")
