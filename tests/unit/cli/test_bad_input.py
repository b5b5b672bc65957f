"""What cannot be used is said in words, and before anything is begun."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest
from typer.testing import CliRunner

from api import cli
from settings import load_settings

#: Nothing listens there: whoever asks the API ends with 3.
NOWHERE = {
    "OVERLINE_HOME": "/no/such/home",
    "OVERLINE_API_URL": "http://127.0.0.1:1",
    "OVERLINE_ADMIN_DATABASE_URL": "postgres://x",
}


def said(*words: str, **env: str) -> tuple[int, str]:
    # A command reads its settings once a process.
    load_settings.cache_clear()
    done = CliRunner().invoke(cli._app, list(words), env=NOWHERE | env)
    load_settings.cache_clear()
    assert done.exception is None or isinstance(done.exception, SystemExit), done.exception
    return done.exit_code, done.output


@pytest.mark.parametrize("cap", ["1e30", "1000000000", "1e-30", "nan", "inf", "-1", "much"])
def test_a_cap_that_no_budget_can_hold(cap: str) -> None:
    status, words = said("org", "create", "acme", f"--cap={cap}")
    assert status == 2
    assert "--cap must be" in words


def test_a_file_that_cannot_be_written_is_looked_at_first(tmp_path: Path) -> None:
    given = tmp_path / "in.jsonl"
    given.write_text('{"url": "/v1/chat/completions"}\n')
    for output in (tmp_path / "no" / "such", tmp_path):
        for words in (
            ("batch", "submit", str(given), "--wait", "-o", str(output)),
            ("batch", "submit", str(given), "--wait", "--errors", str(output)),
            ("batch", "results", "batch_x", "-o", str(output)),
            ("map", str(given), "-o", str(output)),
        ):
            status, told = said(*words)
            assert status == 1, told
            assert "cannot be written" in told.replace("\n", " ")
    assert said("batch", "results", "batch_x", "-o", str(tmp_path / "new"))[0] == 3
    assert not (tmp_path / "new").exists()


def test_a_key_that_is_none() -> None:
    status, words = said("team", "list", OVERLINE_API_KEY="ß")
    assert status == 1
    assert "OVERLINE_API_KEY is no key" in words
    # An empty one is as good as none: it is for the API to refuse.
    for empty in ("", " "):
        status, words = said("team", "list", OVERLINE_API_KEY=empty)
        assert status == 3
        assert "ConnectError" in words


def test_words_that_are_not_utf_8() -> None:
    command = [sys.executable, "-c", "from api import cli; cli.main()", "org", "create", b"a\xff"]
    done = subprocess.run(command, capture_output=True, check=False, timeout=60)
    assert (done.returncode, done.stderr) == (2, b"What was typed is not UTF-8.\n")
