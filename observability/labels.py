"""Keeps the number of series of a metric bounded, whatever is passed as a label's value."""

from __future__ import annotations

import threading
from typing import Final

__all__ = ["OTHER", "BoundedLabel"]

OTHER: Final = "other"


class BoundedLabel:
    """Admits the first ``most`` different words, and calls the rest ``other``; thread-safe."""

    def __init__(self, most: int) -> None:
        self._most = most
        self._seen: set[str] = set()
        self._lock = threading.Lock()

    def __call__(self, word: str) -> str:
        """Return the word itself, or ``other``."""
        if word in self._seen:
            return word
        with self._lock:
            if len(self._seen) >= self._most:
                return OTHER
            self._seen.add(word)
            return word
