"""The state folder: its secrets, its lock, its files."""

from __future__ import annotations

import base64
import json
import subprocess
import sys
from pathlib import Path

import pytest

from deploy.local.errors import AlreadyRunning, StackError
from deploy.local.home import Home, Secrets, StackLock, write_atomically


@pytest.fixture
def home(tmp_path: Path) -> Home:
    return Home.open(tmp_path / "state")


def test_only_its_owner_may_look_inside(home: Home) -> None:
    assert home.folder.stat().st_mode & 0o077 == 0
    Secrets.load(home)
    assert (home.folder / "secrets.json").stat().st_mode & 0o777 == 0o600


def test_a_folder_that_cannot_be_made_names_the_setting(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(StackError, match="OVERLINE_HOME"):
        Home.open(tmp_path / "file" / "state")


def test_secrets_are_made_once(home: Home) -> None:
    first = Secrets.load(home)
    first.api_key = "ol_x"
    first.save(home)
    assert Secrets.load(home) == first
    name, _, key = first.payload_keys.partition(":")
    assert name == "k1"
    assert len(base64.b64decode(key)) == 32


def test_damaged_secrets_are_not_replaced(home: Home) -> None:
    (home.folder / "secrets.json").write_text("{half")
    with pytest.raises(StackError, match="damaged"):
        Secrets.load(home)
    assert (home.folder / "secrets.json").read_text() == "{half"


def test_lost_secrets_of_a_database_are_not_made_anew(home: Home) -> None:
    home.postgres.mkdir()
    (home.postgres / "PG_VERSION").write_text("18\n")
    with pytest.raises(StackError, match="Restore"):
        Secrets.load(home)


def test_a_second_supervisor_is_refused_and_told_what_to_do(home: Home) -> None:
    lock = StackLock(home)
    lock.take()
    code = (
        "import sys; from pathlib import Path; from deploy.local.home import *;"
        "StackLock(Home.open(Path(sys.argv[1]))).take()"
    )
    other = subprocess.run(
        [sys.executable, "-c", code, str(home.folder)], capture_output=True, text=True, check=False
    )
    assert "AlreadyRunning" in other.stderr
    assert "overline down" in other.stderr
    with pytest.raises(AlreadyRunning):
        StackLock(home).check()
    lock.free()
    StackLock(home).check()
    assert not StackLock(home).is_held()


def test_the_lock_of_a_killed_supervisor_is_free(home: Home) -> None:
    code = (
        "import os, sys; from pathlib import Path; from deploy.local.home import *;"
        "StackLock(Home.open(Path(sys.argv[1]))).take(); os.kill(os.getpid(), 9)"
    )
    subprocess.run([sys.executable, "-c", code, str(home.folder)], check=False)
    lock = StackLock(home)
    lock.take()
    lock.free()


def test_a_write_that_fails_leaves_the_old_file(home: Home) -> None:
    target = home.folder / "file"
    write_atomically(target, "old")
    with pytest.raises(TypeError):
        write_atomically(target, json)  # type: ignore[arg-type]
    assert target.read_text() == "old"
    assert [path.name for path in home.folder.glob(".file*")] == []
