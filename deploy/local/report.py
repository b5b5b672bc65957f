"""What the supervisor says while it works, and who listens."""

from __future__ import annotations

import json
import sys
import time
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, Literal, Protocol, TextIO

__all__ = ["Event", "FileReport", "PlainReport", "Report", "State", "Tee"]

State = Literal[
    "waiting",
    "preparing",
    "starting",
    "ready",
    "unwell",
    "restarting",
    "stopping",
    "stopped",
    "external",
    "failed",
]


@dataclass(frozen=True)
class Event:
    """One thing that happened.

    Attributes:
        part: Part it is about; `stack` for the whole.
        state: The part's state from now on; None when only a progress line changed.
        text: What to tell a person; may be empty.
        data: Facts for programs (addresses and the like).
        at: Unix time, in seconds.
    """

    part: str
    state: State | None
    text: str = ""
    data: dict[str, Any] = field(default_factory=dict)
    at: float = field(default_factory=time.time)


class Report(Protocol):
    """Listens to events."""

    def __call__(self, event: Event) -> None:
        """Take one event; must not block or raise."""


class Tee:
    """Passes every event to several listeners."""

    def __init__(self, *reports: Report) -> None:
        self._reports = reports

    def __call__(self, event: Event) -> None:
        """Pass on."""
        for report in self._reports:
            report(event)


class PlainReport:
    """One line an event, for terminals that are none and for logs."""

    def __init__(self, out: TextIO | None = None) -> None:
        self._out = out or sys.stderr
        self._last: dict[str, str] = {}

    def __call__(self, event: Event) -> None:
        """Print the event unless it says what the last one of its part said."""
        words = " ".join(filter(None, (event.state, event.text)))
        if not words or self._last.get(event.part) == words:
            return
        self._last[event.part] = words
        stamp = time.strftime("%H:%M:%S", time.localtime(event.at))
        print(f"{stamp} {event.part:<10} {words}", file=self._out, flush=True)


class FileReport:
    """Appends events to a file that another process follows."""

    def __init__(self, path: Path) -> None:
        path.touch(mode=0o600)
        self._file = path.open("a")

    def __call__(self, event: Event) -> None:
        """Append one line."""
        self._file.write(json.dumps(asdict(event)) + "\n")
        self._file.flush()
