"""What runs in a state folder, as told by its ``stack.json``; and ending it from outside."""

from __future__ import annotations

import json
import os
import signal
import time
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from deploy.local.errors import StackError
from deploy.local.home import Home, StackLock, write_atomically
from deploy.local.part import PartStatus
from deploy.local.processes import Identity, end_group, group_members, mark_of

__all__ = ["StackState", "end_strays", "read_state", "stop_stack", "write_state"]


@dataclass(frozen=True)
class StackState:
    """A stack as its supervisor last described it.

    Attributes:
        running: Whether its supervisor runs now.
        state: `starting`, `ready`, `stopping`, `stopped` or `failed`.
        supervisor: The supervising process, when it is known.
        parts: Facts about every part, by name.
        urls: Addresses by name; no secrets.
        ports: Ports by name.
        versions: Versions by name.
    """

    running: bool
    state: str
    supervisor: Identity | None = None
    parts: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)
    urls: Mapping[str, str] = field(default_factory=dict)
    ports: Mapping[str, int] = field(default_factory=dict)
    versions: Mapping[str, str] = field(default_factory=dict)

    @property
    def all_ready(self) -> bool:
        """Whether it runs and every part of it is ready."""
        return (
            self.running
            and self.state == "ready"
            and all(part["state"] in ("ready", "external") for part in self.parts.values())
        )


def write_state(
    home: Home,
    *,
    state: str,
    supervisor: Identity,
    parts: Mapping[str, PartStatus],
    facts: Mapping[str, Mapping[str, Any]],
) -> None:
    """Describe the stack in ``stack.json``."""
    told = {
        "version": 1,
        "state": state,
        "supervisor": {"pid": supervisor.pid, "mark": supervisor.mark},
        "parts": {
            name: {
                "state": status.state,
                "text": status.text,
                "pid": status.identity.pid if status.identity else None,
                "mark": status.identity.mark if status.identity else None,
                "restarts": status.restarts,
                "since": status.since,
                "log": str(home.log(name)),
            }
            for name, status in parts.items()
        },
        **facts,
    }
    write_atomically(home.state, json.dumps(told, indent=1) + "\n")


def read_state(home: Home) -> StackState:
    """Read what runs; a folder that never had a stack reads as stopped."""
    running = StackLock(home).is_held()
    try:
        told = json.loads(home.state.read_text())
    except (OSError, ValueError):
        return StackState(running, "starting" if running else "stopped")
    return StackState(
        running=running,
        state=told["state"] if running else "stopped",
        supervisor=Identity(told["supervisor"]["pid"], told["supervisor"]["mark"]),
        parts=told["parts"],
        urls=told.get("urls", {}),
        ports=told.get("ports", {}),
        versions=told.get("versions", {}),
    )


def stop_stack(home: Home, *, limit_s: float = 90.0) -> bool:
    """Stop the stack of a state folder and wait until it is gone.

    Returns:
        Whether anything ran.

    Raises:
        StackError: It did not end within ``limit_s`` seconds.
    """
    lock = StackLock(home)
    if not lock.is_held():
        return end_strays(home) > 0
    holder = lock.holder()
    if holder is None or not holder.alive:
        raise StackError(f"{home.folder} is locked by a process that cannot be told; end it first.")
    with suppress(ProcessLookupError):
        os.kill(holder.pid, signal.SIGTERM)
    deadline = time.monotonic() + limit_s
    # The lock is free a moment before the process is gone.
    while lock.is_held() or mark_of(holder.pid) == holder.mark:
        if time.monotonic() > deadline:
            raise StackError(
                f"The supervisor (process {holder.pid}) did not end within {limit_s:.0f} s. "
                f"Its log: {home.log('supervisor')}"
            )
        time.sleep(0.1)
    end_strays(home)
    return True


def end_strays(home: Home) -> int:
    """End processes that a supervisor, itself killed, left in this folder; return how many groups.

    Only call this while no supervisor runs.
    """
    try:
        parts = json.loads(home.state.read_text())["parts"]
    except (OSError, ValueError, KeyError):
        return 0
    ended = 0
    for part in reversed(list(parts.values())):
        pid, mark = part.get("pid"), part.get("mark")
        if pid is None:
            continue
        # The leader by its start mark; members it left behind by what they were started with.
        if Identity(pid, mark).alive or any(_is_ours(home, m) for m in group_members(pid)):
            end_group(pid, patience_s=10)
            ended += 1
    return ended


def _is_ours(home: Home, pid: int) -> bool:
    try:
        environment = Path(f"/proc/{pid}/environ").read_bytes()
    except OSError:
        return False
    return b"OVERLINE_HOME=" + os.fsencode(home.folder) + b"\0" in environment
