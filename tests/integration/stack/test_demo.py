"""What `make demo` shows, against the session's stack: it exits 0 only if every promise held."""

from __future__ import annotations

import subprocess
import sys

import pytest

from tests.integration.running import RunningStack


@pytest.mark.timeout(500)
def test_the_demo_holds(stack: RunningStack) -> None:
    done = subprocess.run(
        [sys.executable, "-P", "-m", "deploy.demo"],
        env=stack.env,
        capture_output=True,
        text=True,
        check=False,
        timeout=450,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert done.stdout.count("✓") == 8
    assert "✗" not in done.stdout
    assert "kill -9 worker-" in done.stdout
    assert stack.wait_for(lambda state: state.all_ready).all_ready
