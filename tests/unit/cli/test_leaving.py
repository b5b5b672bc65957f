"""How the command line ends once Temporal's native core has been loaded."""

from __future__ import annotations

import subprocess
import sys

import pytest

_SCRIPT = """
import atexit
from api import cli
{load}
atexit.register(print, "the interpreter ended")
print("done")
cli._leave(3)
"""


@pytest.mark.parametrize(
    ("load", "said"),
    [
        ("import temporalio.client", "done\n"),
        ("", "done\nthe interpreter ended\n"),
    ],
)
def test_its_status_and_words_survive_and_the_interpreter_is_not_taken_down(
    load: str, said: str
) -> None:
    done = subprocess.run(
        [sys.executable, "-c", _SCRIPT.format(load=load)],
        capture_output=True,
        text=True,
        check=False,
        timeout=60,
    )
    assert (done.returncode, done.stdout) == (3, said), done.stderr
