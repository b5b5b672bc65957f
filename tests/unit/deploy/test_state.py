"""What a stack's description says to others, and what is ended by it."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

from deploy.local.home import Home, StackLock
from deploy.local.part import PartStatus
from deploy.local.processes import Identity, Launch, group_members, mark_of, spawn
from deploy.local.state import end_strays, read_state, stop_stack, write_state

ME = Identity(os.getpid(), mark_of(os.getpid()) or "")


def _describe(home: Home, **parts: Identity | None) -> None:
    write_state(
        home,
        state="ready",
        supervisor=ME,
        parts={name: PartStatus("ready", identity=identity) for name, identity in parts.items()},
        facts={"urls": {"api": "http://127.0.0.1:1"}, "ports": {"api": 1}},
    )


def _sleeper(home: Home) -> tuple[Identity, subprocess.Popen[bytes]]:
    process = spawn(
        Launch(["/bin/sleep", "60"], {"OVERLINE_HOME": str(home.folder)}), home.log("a")
    )
    return Identity(process.pid, mark_of(process.pid) or ""), process


def test_a_folder_without_a_stack_is_stopped(tmp_path: Path) -> None:
    state = read_state(Home.open(tmp_path))
    assert (state.running, state.state, state.all_ready) == (False, "stopped", False)


def test_a_stack_runs_only_while_its_supervisor_holds_the_lock(tmp_path: Path) -> None:
    home = Home.open(tmp_path)
    _describe(home, api=None)
    assert read_state(home).state == "stopped"
    lock = StackLock(home)
    lock.take()
    assert read_state(home).all_ready
    assert read_state(home).urls["api"] == "http://127.0.0.1:1"
    lock.free()


def test_processes_left_behind_are_ended(tmp_path: Path) -> None:
    home = Home.open(tmp_path)
    identity, process = _sleeper(home)
    _describe(home, api=identity)
    assert stop_stack(home)
    process.wait()
    assert group_members(identity.pid) == []
    assert not stop_stack(home)


def test_a_stranger_with_a_reused_id_is_left_alone(tmp_path: Path) -> None:
    home = Home.open(tmp_path)
    process = subprocess.Popen(["/bin/sleep", "60"], process_group=0)
    try:
        _describe(home, api=Identity(process.pid, "an earlier process"))
        assert end_strays(home) == 0
        assert process.poll() is None
    finally:
        process.kill()
        process.wait()
