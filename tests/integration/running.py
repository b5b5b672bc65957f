"""A running embedded stack as tests see it: started and ended by the command line, as users do."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from deploy.local.home import Home, Secrets
from deploy.local.state import StackState, read_state
from settings import Settings

START_LIMIT_S = 300
OVERLINE = Path(sys.executable).parent / "overline"


@dataclass
class RunningStack:
    """One stack in a folder of its own, on free ports.

    Attributes:
        folder: Its state folder.
        variables: Settings it is started with, besides the folder and the ports.
    """

    folder: Path
    variables: dict[str, str] = field(default_factory=dict)

    @property
    def env(self) -> dict[str, str]:
        """The environment of its commands: nothing of the caller's own Overline settings."""
        kept = {name: value for name, value in os.environ.items() if "OVERLINE_" not in name}
        if engine := os.environ.get("OVERLINE_ENGINE_ENV"):
            kept["OVERLINE_ENGINE_ENV"] = engine
        own = {"OVERLINE_HOME": str(self.folder), "OVERLINE_API_PORT": "0"}
        return {**kept, **own, **self.variables}

    @property
    def settings(self) -> Settings:
        """Settings as its processes read them."""
        return Settings(_env_file=(self.folder / "overline.env",), home=self.folder)

    @property
    def admin_url(self) -> str:
        """Superuser's connection to its database `overline`."""
        port = self.state().ports["postgres"]
        password = Secrets.load(Home(self.folder)).postgres
        return f"postgresql://postgres:{password}@127.0.0.1:{port}/overline"

    def overline(
        self, *words: str, limit_s: float = 120, check: bool = False
    ) -> subprocess.CompletedProcess[str]:
        """Run a command of the command line in this stack."""
        return subprocess.run(
            [OVERLINE, *words],
            env=self.env,
            cwd=self.folder.parent,
            capture_output=True,
            text=True,
            timeout=limit_s,
            check=check,
            stdin=subprocess.DEVNULL,
        )

    def json(self, *words: str, limit_s: float = 120) -> Any:
        """Run a command that must succeed, and read the JSON it prints."""
        done = self.overline(*words, "--json", limit_s=limit_s)
        assert done.returncode == 0, f"{words}: {done.returncode}\n{done.stdout}\n{done.stderr}"
        return json.loads(done.stdout)

    def up(self, *options: str) -> dict[str, Any]:
        """Start it and wait until it is up."""
        started = self.json("up", "--detach", *options, limit_s=START_LIMIT_S)
        assert isinstance(started, dict)
        return started

    def down(self) -> None:
        """Stop it."""
        done = self.overline("down")
        assert done.returncode == 0, done.stderr

    def state(self) -> StackState:
        """What runs."""
        return read_state(Home(self.folder))

    def pid(self, part: str) -> int:
        """Process id of a part."""
        pid = self.state().parts[part]["pid"]
        assert isinstance(pid, int)
        return pid

    def kill(self, part: str) -> int:
        """End a part as a crash would; returns the id it had."""
        pid = self.pid(part)
        os.kill(pid, signal.SIGKILL)
        return pid

    def wait_for(self, holds: Callable[[StackState], bool], *, limit_s: float = 60) -> StackState:
        """Wait until its state is as wished."""
        deadline = time.monotonic() + limit_s
        while not holds(state := self.state()):
            assert time.monotonic() < deadline, f"not within {limit_s} s: {state}"
            time.sleep(0.05)
        return state

    def wait_until_restarted(self, part: str, old_pid: int, *, limit_s: float = 60) -> StackState:
        """Wait until a killed part runs again and all is ready."""
        return self.wait_for(
            lambda state: state.all_ready and state.parts[part]["pid"] not in (None, old_pid),
            limit_s=limit_s,
        )

    def processes(self) -> list[str]:
        """Command lines of every process that belongs to it, by environment or arguments."""
        mark, found = os.fsencode(self.folder), []
        for entry in Path("/proc").iterdir():
            if not entry.name.isdigit() or int(entry.name) == os.getpid():
                continue
            try:
                command = (entry / "cmdline").read_bytes()
                ours = mark in command or mark in (entry / "environ").read_bytes()
                zombie = (entry / "stat").read_text().rpartition(")")[2].split()[0] == "Z"
            except OSError:
                continue
            if ours and not zombie:
                found.append(f"{entry.name} {command.decode(errors='replace')}")
        return found
