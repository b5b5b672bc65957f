"""One line on stderr that says how far a benchmark is."""

from __future__ import annotations

import sys
import time

__all__ = ["say"]

_SHOWN_EVERY_S = 2.0
_last = 0.0


def say(text: str) -> None:
    """Show where the work stands: in place on a terminal, else a line every two seconds."""
    global _last
    terminal = sys.stderr.isatty()
    if terminal:
        print(f"\r\033[K{text}", end="", file=sys.stderr, flush=True)
    elif time.monotonic() - _last >= _SHOWN_EVERY_S:
        _last = time.monotonic()
        print(text, file=sys.stderr, flush=True)
