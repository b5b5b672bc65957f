"""Processes as the embedded stack needs them: own groups, sure identity, sure end.

A process id alone says little, since ids are reused: everything here that outlives one call
remembers a *mark* besides, the moment at which the process started.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

__all__ = ["Identity", "Launch", "end_group", "group_members", "mark_of", "spawn"]

_PROC = Path("/proc")


@dataclass(frozen=True)
class Identity:
    """One process, told apart from a later one with the same id.

    Attributes:
        pid: Process id; the process leads a group of the same number.
        mark: When it started, in the system's own notation.
    """

    pid: int
    mark: str

    @property
    def alive(self) -> bool:
        """Whether this very process still runs (a zombie does not)."""
        return mark_of(self.pid) == self.mark


@dataclass(frozen=True)
class Launch:
    """How to start one process.

    Attributes:
        argv: Program and arguments.
        env: The whole environment.
        cwd: Working folder.
        user: Numeric user to run as; None: the one we are.
        group: Numeric group to run as; None: the one we are.
    """

    argv: Sequence[str]
    env: Mapping[str, str]
    cwd: Path | None = None
    user: int | None = None
    group: int | None = None


def mark_of(pid: int) -> str | None:
    """Return the start mark of a running process; None when there is none (or a zombie)."""
    if _PROC.is_dir():
        fields = _stat(pid)
        return None if fields is None or fields[0] == "Z" else fields[19]
    found = subprocess.run(
        ["ps", "-o", "state=,lstart=", "-p", str(pid)], capture_output=True, text=True, check=False
    ).stdout.strip()
    return None if not found or found.startswith("Z") else found.split(None, 1)[1]


def group_members(group: int) -> list[int]:
    """Return the ids of the running processes in a process group (zombies left out)."""
    if _PROC.is_dir():
        members = []
        for entry in _PROC.iterdir():
            if entry.name.isdigit():
                fields = _stat(int(entry.name))
                if fields is not None and fields[0] != "Z" and fields[2] == str(group):
                    members.append(int(entry.name))
        return members
    listed = subprocess.run(
        ["ps", "-A", "-o", "pid=,pgid=,state="], capture_output=True, text=True, check=False
    ).stdout
    rows = [line.split() for line in listed.splitlines()]
    return [int(r[0]) for r in rows if len(r) == 3 and r[1] == str(group) and r[2][0] != "Z"]


def spawn(launch: Launch, log: Path) -> subprocess.Popen[bytes]:
    """Start a process in a group of its own, its output appended to ``log``.

    Raises:
        OSError: The program is missing or cannot run on this machine.
    """
    log.parent.mkdir(parents=True, exist_ok=True)
    # Opened here, before any change of user: the log folder need not be writable for that user.
    descriptor = os.open(log, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
    try:
        return subprocess.Popen(
            list(launch.argv),
            env=dict(launch.env),
            cwd=launch.cwd,
            stdin=subprocess.DEVNULL,
            stdout=descriptor,
            stderr=subprocess.STDOUT,
            process_group=0,
            user=launch.user,
            group=launch.group,
            extra_groups=None if launch.user is None else [],
        )
    finally:
        os.close(descriptor)


def end_group(
    group: int,
    *,
    first: signal.Signals = signal.SIGTERM,
    patience_s: float = 10.0,
    process: subprocess.Popen[bytes] | None = None,
) -> bool:
    """End a process group: ask with ``first``, and kill what is left after ``patience_s``.

    Args:
        group: Number of the process group.
        first: Signal that asks; it goes to the leader alone when the leader is our child and
            ``first`` is not SIGTERM, as Postgres wants it.
        patience_s: Seconds until SIGKILL goes to the whole group.
        process: The leader when it is our child, so that it is reaped.

    Returns:
        Whether asking was enough.
    """
    with suppress(ProcessLookupError, PermissionError):
        if process is not None and first is not signal.SIGTERM:
            os.kill(group, first)
        else:
            os.killpg(group, first)
    if _gone(group, process, patience_s):
        return True
    with suppress(ProcessLookupError, PermissionError):
        os.killpg(group, signal.SIGKILL)
    _gone(group, process, 5.0)
    return False


def _gone(group: int, process: subprocess.Popen[bytes] | None, patience_s: float) -> bool:
    deadline = time.monotonic() + patience_s
    while True:
        if process is not None:
            process.poll()
        if not group_members(group):
            return True
        if time.monotonic() >= deadline:
            return False
        time.sleep(0.05)


def _stat(pid: int) -> list[str] | None:
    """Fields of /proc/<pid>/stat from the state on; the name before it may contain blanks."""
    try:
        text = (_PROC / str(pid) / "stat").read_text()
    except OSError:
        return None
    return text.rpartition(")")[2].split()


if sys.platform == "win32":
    raise ImportError(
        "The embedded stack runs on Linux and macOS. On Windows use WSL, or point "
        "OVERLINE_TEMPORAL_ADDRESS, OVERLINE_DATABASE_URL and OVERLINE_TRITON_URLS at servers "
        "of your own."
    )
