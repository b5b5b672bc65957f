"""The meter survives its process, adds up, and stays bounded."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from inference import meter as module
from inference.meter import MAX_ID, Meter, Reading


def test_counts_and_states(tmp_path: Path) -> None:
    meter = Meter(tmp_path)
    entry = meter.begin("a@1")
    assert meter.read("a@1") == Reading(0, 0, 0, "running", 1)
    entry.count(10, 4, 3)
    entry.close("finished")
    entry.close("failed")
    assert meter.read("a@1") == Reading(10, 4, 3, "finished", 1)
    assert meter.read("never") is None
    meter.begin("b@1").count(1, 0, 1)
    assert meter.totals() == Reading(11, 4, 4, "", 2)
    meter.close()


def test_one_id_twice_is_summed(tmp_path: Path) -> None:
    meter = Meter(tmp_path)
    for state in ("failed", "finished"):
        entry = meter.begin("a@1")
        entry.count(5, 0, 2)
        entry.close(state)
    assert meter.read("a@1") == Reading(10, 0, 4, "finished", 2)
    meter.close()


def test_survives_kill_9_and_says_lost(tmp_path: Path) -> None:
    """Tokens counted just before the process is killed are there, to the last one."""
    script = (
        "import sys; from pathlib import Path; from inference.meter import Meter\n"
        f"meter = Meter(Path({str(tmp_path)!r})); done = meter.begin('done'); done.count(7, 1, 2)\n"
        "done.close('finished'); entry = meter.begin('cut')\n"
        "for n in range(1, 1001): entry.count(20, 5, n)\n"
        "print('counted', flush=True); sys.stdin.read()\n"
    )
    with subprocess.Popen(
        [sys.executable, "-c", script],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        cwd=Path(module.__file__).parents[1],
    ) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == b"counted\n"
        os.kill(process.pid, signal.SIGKILL)
    meter = Meter(tmp_path)
    assert meter.read("cut") == Reading(20, 5, 1000, "lost", 1)
    assert meter.read("done") == Reading(7, 1, 2, "finished", 1)
    meter.close()


def test_grows_beyond_its_first_pages(tmp_path: Path) -> None:
    meter = Meter(tmp_path)
    for n in range(1500):
        entry = meter.begin(f"r{n}")
        entry.count(1, 0, 1)
        entry.close("finished")
    assert meter.totals() == Reading(1500, 0, 1500, "", 1500)
    meter.close()


def test_old_records_are_folded_and_still_counted(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    meter = Meter(tmp_path)
    for n in range(10):
        entry = meter.begin(f"r{n}")
        entry.count(2, 1, 3)
        entry.close("finished")
    meter.close()
    monkeypatch.setattr(module, "_KEEP_SECONDS", -1.0)
    for _ in range(2):
        meter = Meter(tmp_path)
        assert meter.totals() == Reading(20, 10, 30, "", 10)
        assert meter.read("r3") is None
        meter.close()


def test_too_long_an_id_is_refused(tmp_path: Path) -> None:
    meter = Meter(tmp_path)
    with pytest.raises(ValueError, match="bytes"):
        meter.begin("x" * (MAX_ID + 1))
    meter.close()
