"""An embedded stack of the benchmark's own: temporary folder, free ports, always ended."""

from __future__ import annotations

import contextlib
import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

__all__ = ["own_stack"]

START_SECONDS = 300


@contextlib.contextmanager
def own_stack(**variables: str) -> Iterator[Path]:
    """Run a stack with the given settings; yields its state folder.

    `OVERLINE_HOME` of this process is set to it, so that `settings.load_settings` finds it.
    """
    with tempfile.TemporaryDirectory(prefix="overline-bench-") as folder:
        environment = {**os.environ, **variables, "OVERLINE_HOME": folder}
        os.environ.update(environment)
        overline = Path(sys.executable).parent / "overline"
        subprocess.run(
            [overline, "up", "--detach", "--json"],
            env=environment,
            check=True,
            timeout=START_SECONDS,
            stdout=subprocess.DEVNULL,
        )
        try:
            yield Path(folder)
        finally:
            subprocess.run(
                [overline, "down"],
                env=environment,
                check=False,
                timeout=60,
                stdout=subprocess.DEVNULL,
            )


def parse(line: str) -> dict[str, object]:
    """Read one JSON object."""
    value = json.loads(line)
    assert isinstance(value, dict)
    return value
