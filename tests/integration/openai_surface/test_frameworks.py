"""LangChain's and LlamaIndex's OpenAI classes work with only their base URL changed."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.integration.tasks.caller import Caller

ROOT = Path(__file__).parents[3]
ENVIRONMENT = Path(sys.prefix) / "frameworks"


@pytest.fixture(scope="session")
def python() -> Path:
    """The interpreter of the frameworks' environment, which `make test` installs."""
    found = ENVIRONMENT / "bin" / "python"
    if not found.exists():
        uv = [str(Path(sys.executable).parent / "uv")]
        subprocess.run([*uv, "venv", "--quiet", str(ENVIRONMENT)], check=True)
        locked = str(ROOT / "requirements" / "frameworks.txt")
        sync = ["pip", "sync", "--quiet", "--require-hashes", "--python", str(found), locked]
        subprocess.run([*uv, *sync], check=True, timeout=300)
    return found


def test_the_frameworks_classes_work(caller: Caller, python: Path) -> None:
    script = Path(__file__).with_name("frameworks.py")
    done = subprocess.run(
        [str(python), str(script), f"{caller.base_url}/v1", caller.token],
        capture_output=True,
        text=True,
        timeout=100,
        check=False,
        # LlamaIndex has a package `workflows`, too: ours must not stand in its way.
        env={name: value for name, value in os.environ.items() if name != "PYTHONPATH"},
    )
    assert done.returncode == 0, done.stderr[-3000:]
    told = json.loads(done.stdout.strip().splitlines()[-1])
    said = "tok " * 32
    assert told["langchain"] == {
        "whole": said,
        "usage": 32,
        "streamed": said,
        "calls": [["weather", {"city": "Ulm"}]],
        "formed": 0,
        "responses": said,
        "gone_on": [True, True],
        "vectors": [384, 384],
    }
    assert told["llama_index"] == {"whole": said, "streamed": said, "vectors": [384, 384]}
