"""Processes are ended surely, and none is mistaken for another."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from deploy.local.guardian import Guardian
from deploy.local.processes import Identity, Launch, end_group, group_members, mark_of, spawn

_STUBBORN = """
import signal, time
signal.signal(signal.SIGTERM, signal.SIG_IGN)
print('up', flush=True)
time.sleep(60)
"""
_FAMILY = """
import subprocess, sys, time
subprocess.Popen([sys.executable, '-c', 'import time; time.sleep(60)'])
print('up', flush=True)
time.sleep(60)
"""


def _python(code: str, log: Path) -> subprocess.Popen[bytes]:
    process = spawn(Launch([sys.executable, "-c", code], dict(os.environ)), log)
    deadline = time.monotonic() + 10
    while "up" not in log.read_text() and time.monotonic() < deadline:
        time.sleep(0.02)
    return process


def test_the_mark_tells_a_process_from_a_later_one_with_its_id() -> None:
    mine = mark_of(os.getpid())
    assert mine
    assert Identity(os.getpid(), mine).alive
    assert not Identity(os.getpid(), "an earlier process").alive


def test_a_zombie_does_not_run() -> None:
    process = subprocess.Popen([sys.executable, "-c", ""])
    deadline = time.monotonic() + 10
    while mark_of(process.pid) is not None and time.monotonic() < deadline:
        time.sleep(0.02)
    assert mark_of(process.pid) is None  # not reaped yet: still a zombie
    process.wait()


def test_a_started_process_leads_its_own_group_and_writes_to_its_log(tmp_path: Path) -> None:
    process = _python("print('up', flush=True); import time; time.sleep(60)", tmp_path / "a.log")
    try:
        assert os.getpgid(process.pid) == process.pid
        assert (tmp_path / "a.log").stat().st_mode & 0o077 == 0
    finally:
        assert end_group(process.pid, process=process)


def test_a_family_is_ended_together(tmp_path: Path) -> None:
    process = _python(_FAMILY, tmp_path / "a.log")
    assert len(group_members(process.pid)) == 2
    assert end_group(process.pid, process=process)
    assert group_members(process.pid) == []


def test_what_does_not_listen_is_killed(tmp_path: Path) -> None:
    process = _python(_STUBBORN, tmp_path / "a.log")
    assert not end_group(process.pid, patience_s=0.3, process=process)
    assert process.wait() == -signal.SIGKILL


def test_the_log_survives_a_second_start(tmp_path: Path) -> None:
    for _ in range(2):
        spawn(Launch(["/bin/echo", "once"], {}), tmp_path / "a.log").wait()
    assert (tmp_path / "a.log").read_text() == "once\nonce\n"


def test_a_missing_program_is_an_error_at_once(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError):
        spawn(Launch(["/no/such/program"], {}), tmp_path / "a.log")


def test_the_guardian_ends_what_a_killed_supervisor_leaves(tmp_path: Path) -> None:
    supervisor = subprocess.Popen(
        [sys.executable, "-c", _SUPERVISOR, str(tmp_path)], stdout=subprocess.PIPE, text=True
    )
    assert supervisor.stdout is not None
    child = int(supervisor.stdout.readline())
    identity = Identity(child, mark_of(child) or "")
    assert identity.alive
    supervisor.kill()
    supervisor.wait()
    supervisor.stdout.close()
    deadline = time.monotonic() + 15
    while group_members(child) and time.monotonic() < deadline:
        time.sleep(0.05)
    assert group_members(child) == []


_SUPERVISOR = """
import sys, time
from pathlib import Path
from deploy.local.guardian import Guardian
from deploy.local.processes import Launch, spawn
process = spawn(Launch(["/bin/sleep", "60"], {}), Path(sys.argv[1]) / "child.log")
Guardian().watch(process.pid)
print(process.pid, flush=True)
time.sleep(60)
"""


def test_the_guardian_leaves_alone_what_was_released(tmp_path: Path) -> None:
    process = spawn(Launch(["/bin/sleep", "60"], {}), tmp_path / "a.log")
    try:
        guardian = Guardian()
        guardian.watch(process.pid)
        guardian.release(process.pid)
        guardian.close()
        assert process.poll() is None
    finally:
        end_group(process.pid, process=process)
