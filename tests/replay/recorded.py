"""Where the recorded histories are, and the key they were encrypted with."""

from __future__ import annotations

import base64
import json
from pathlib import Path

from pydantic import SecretStr
from temporalio.client import WorkflowHistory

from settings import Settings

__all__ = ["FOLDER", "PAYLOAD_KEYS", "load", "recorded_kinds", "settings_of_recordings"]

FOLDER = Path(__file__).parent / "histories"
# Of the recordings only, which hold nothing but what `record.py` asks; no stack uses it otherwise.
PAYLOAD_KEYS = "recordings:" + base64.b64encode(b"no secret: key of recorded tests").decode()


def recorded_kinds() -> list[str]:
    """Return the kinds of task there is a recording of."""
    return sorted(path.stem for path in FOLDER.glob("*.json"))


def load(kind: str) -> WorkflowHistory:
    """Read a recording."""
    told = json.loads((FOLDER / f"{kind}.json").read_text())
    return WorkflowHistory.from_json(told["workflow_id"], told["history"])


def settings_of_recordings() -> Settings:
    """Return settings with the key of the recordings."""
    return Settings(_env_file=None, payload_keys=SecretStr(PAYLOAD_KEYS))
