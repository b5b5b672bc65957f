"""Ends the stack's processes when the process that supervises them is itself killed.

A supervisor killed with SIGKILL can clean up nothing. So it starts one guardian, which holds
the read end of a pipe and a list of process groups; when the pipe closes, whatever is still on
the list is ended. Run as a script (``python -I guardian.py``) it needs the standard library only.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from contextlib import suppress
from pathlib import Path

__all__ = ["Guardian"]

_PATIENCE_S = 8.0


class Guardian:
    """The supervisor's end: tells the guardian process whom to watch."""

    def __init__(self) -> None:
        """Start the guardian process."""
        self._process = subprocess.Popen(
            [sys.executable, "-I", str(Path(__file__).resolve())],
            stdin=subprocess.PIPE,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            start_new_session=True,
            cwd="/",
        )

    @property
    def pid(self) -> int:
        """Process id of the guardian."""
        return self._process.pid

    def watch(self, pid: int, *, ask: signal.Signals = signal.SIGTERM) -> None:
        """Put the group led by ``pid`` on the list; ``ask`` is the signal that ends it politely."""
        self._say(f"watch {pid} {int(ask)}")

    def release(self, pid: int) -> None:
        """Take the group led by ``pid`` off the list."""
        self._say(f"release {pid}")

    def close(self) -> None:
        """End the guardian; groups still on its list are ended first."""
        if self._process.stdin is not None and not self._process.stdin.closed:
            with suppress(OSError):
                self._process.stdin.close()
        with suppress(subprocess.TimeoutExpired):
            self._process.wait(timeout=_PATIENCE_S + 4)

    def _say(self, line: str) -> None:
        assert self._process.stdin is not None
        with suppress(OSError, ValueError):
            self._process.stdin.write(line.encode() + b"\n")
            self._process.stdin.flush()


def _serve() -> None:
    """Read the list from standard input; at its end, end what is on it."""
    for ignored in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(ignored, signal.SIG_IGN)
    watched: dict[int, int] = {}
    for line in sys.stdin:
        words = line.split()
        if words[:1] == ["watch"]:
            watched[int(words[1])] = int(words[2])
        elif words[:1] == ["release"]:
            watched.pop(int(words[1]), None)
    # Last started, first ended: clients go before the servers they talk to.
    for group, ask in reversed(watched.items()):
        _signal(group, ask)
    deadline = time.monotonic() + _PATIENCE_S
    while time.monotonic() < deadline and any(_signal(group, 0) for group in watched):
        time.sleep(0.1)
    for group in watched:
        _signal(group, signal.SIGKILL)


def _signal(group: int, number: int) -> bool:
    """Send to a group that still exists. Ids are not reused while a member of the group lives."""
    try:
        os.killpg(group, number)
    except (ProcessLookupError, PermissionError):
        return False
    return True


if __name__ == "__main__":
    _serve()
